// Package redisfence refuses stale tokens for data in Redis.
//
//	carts, err := redisfence.New(client)
//	…
//	err = carts.Set(ctx, "cart:42", data, 0, lease.Fence())
//	if errors.Is(err, fence.ErrStale) {
//		// another holder has had the lock since, and may have written; this write had no effect
//	}
//
// Readers read "cart:42" as they would any key.
package redisfence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

//go:embed check.lua
var checkSource string

var check = redis.NewScript(checkSource)

// ErrInvalidKey is matched by the error of a call whose key is empty or has a "}" outside of a hash
// tag, with which no second key can be in the same slot of a Cluster. Nothing was sent. It is
// [fence.ErrInvalidKey].
var ErrInvalidKey = fence.ErrInvalidKey

// Fence keeps a mark for each key, in Redis 6.2 or later or in a Cluster. All methods may be called
// concurrently, and all processes that use the same Redis and prefix share the marks.
//
// Most callers want [Fence.Set]. It writes its value and its mark in one step and in one slot, so
// they are also replicated, and lost, together.
//
// Each call is one round trip, with the client's timeouts. After an error that matches
// store.ErrUnavailable, or is the context's, it is unknown whether the token has passed and the
// value was written. The holder may call again: a call may be repeated.
//
// A mark is kept for [WithTTL] after the last call for its key, refused or not. Redis must not
// evict it before: use the maxmemory-policy noeviction.
//
// A Fence is a [fence.Checker], for the middleware that refuse requests whose fence is stale.
type Fence struct {
	client redis.UniversalClient
	config config
}

var _ fence.Checker = (*Fence)(nil)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	prefix string
	ttl    time.Duration
}

// WithPrefix sets the prefix of the Redis keys of marks: "fence" by default, 1 to 64 bytes without
// braces.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a mark is kept after the last call for its key: 24 h by default, 1 s to 366
// days. It must be longer than any pause of a holder, or delay of its request, before a write: once
// the mark has expired, the oldest token passes.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// New returns a fence on client, which the caller closes. It sends nothing yet.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error for an option out of its range, and for a client that is nil or neither a
// *redis.Client nor a *redis.ClusterClient. A Ring is refused: while a server is unreachable, it
// uses another one for its keys, without their marks.
func New(client redis.UniversalClient, opts ...Option) (*Fence, error) {
	if naming.IsNil(client) {
		return nil, errors.New("redisfence: New: nil client")
	}
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
	case *redis.Ring:
		return nil, errors.New("redisfence: New: a Ring forgets marks when a server is away")
	default:
		return nil, fmt.Errorf("redisfence: New: a client of type %T is neither a *redis.Client nor a *redis.ClusterClient; "+
			"pass the one that it wraps", client)
	}
	c := config{prefix: "fence", ttl: 24 * time.Hour}
	option.Apply(&c, opts)
	switch {
	case c.prefix == "" || len(c.prefix) > 64 || strings.ContainsAny(c.prefix, "{}"):
		return nil, fmt.Errorf("redisfence: New: prefix %q has not 1 to 64 bytes without braces", c.prefix)
	case c.ttl < time.Second || c.ttl > 366*24*time.Hour:
		return nil, fmt.Errorf("redisfence: New: a ttl of %v is not between 1s and 366 days", c.ttl)
	}
	return &Fence{client, c}, nil
}

// Check admits a token or refuses it, by the rule of [fence.Mark], and writes nothing but the mark.
// A newer token may have passed when the caller acts on it: use it to save work, or if the resource
// is not in Redis and there is no atomic check.
//
// An error matches [fence.ErrStale], [fence.ErrInvalid], [ErrInvalidKey] or store.ErrUnavailable,
// or is the context's.
func (f *Fence) Check(ctx context.Context, key string, t fence.Token) error {
	mark, err := f.markKey(key)
	if err != nil {
		return err
	}
	return f.run(ctx, t, []string{mark})
}

// Set makes value the string under key if the token passes, in one step with its mark. The value
// expires after ttl, in whole milliseconds, rounded up; never if it is 0.
//
// Its errors are Check's, or an error for a negative ttl. Except in an outage, nothing was written
// then. Writes with the same token are from the same holder, which has to keep them in order.
func (f *Fence) Set(ctx context.Context, key string, value []byte, ttl time.Duration, t fence.Token) error {
	mark, err := f.markKey(key)
	if err != nil {
		return err
	}
	if ttl < 0 {
		return fmt.Errorf("redisfence: Set: a ttl of %v is negative", ttl)
	}
	return f.run(ctx, t, []string{mark, key}, value, millis(ttl))
}

func (f *Fence) run(ctx context.Context, t fence.Token, keys []string, write ...any) error {
	if _, err := fence.Mark(0).Admit(t); err != nil {
		return err
	}
	shared := "0"
	if t.Shared {
		shared = "1"
	}
	args := append([]any{t.Number, shared, millis(f.config.ttl)}, write...)
	reply, err := check.EvalSha(ctx, f.client, keys, args...).Text()
	if err != nil && strings.Contains(err.Error(), "NOSCRIPT") { // proxies put "ERR" before it
		reply, err = check.Eval(ctx, f.client, keys, args...).Text()
	}
	switch {
	case err == nil && reply == "":
		return nil
	case err == nil:
		seen, err := strconv.ParseInt(reply, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: redis: unexpected reply", store.ErrUnconfirmed)
		}
		_, err = fence.Mark(seen).Admit(t)
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return redisfault.Explain(err, false, false)
}

// millis returns a duration in milliseconds, rounded up. It is not negative.
func millis(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

// markKey returns the key of the mark of a key, in the same slot. The slot is of the key's hash
// tag, or of the whole key.
func (f *Fence) markKey(key string) (string, error) {
	if key == "" {
		return "", fmt.Errorf("%w: it is empty", ErrInvalidKey)
	}
	// Two disjoint forms, since "{a}" and "a" are different keys.
	if _, rest, ok := strings.Cut(key, "{"); ok && strings.Index(rest, "}") > 0 {
		return f.config.prefix + ":t:" + key, nil
	}
	if strings.Contains(key, "}") {
		return "", fmt.Errorf("%w: it has a brace outside of a hash tag", ErrInvalidKey)
	}
	return f.config.prefix + ":k:{" + key + "}", nil
}
