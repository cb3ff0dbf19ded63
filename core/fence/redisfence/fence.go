// Package redisfence refuses stale tokens for what is kept in Redis.
//
//	carts, err := redisfence.New(client)
//	…
//	err = carts.Set(ctx, "cart:42", data, 0, lease.Fence())
//	if errors.Is(err, fence.ErrStale) {
//		// somebody else has had the lock since, and may have written; this write did nothing
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
	"github.com/lockkeeper/lockkeeper/internal/naming"
)

//go:embed check.lua
var checkSource string

var check = redis.NewScript(checkSource)

// ErrInvalidKey is matched by the error of a call whose key is empty, or has braces that leave no
// way to name a second key in the same slot of a Cluster: a "}" outside of a hash tag. Nothing has
// been sent. It is [fence.ErrInvalidKey].
var ErrInvalidKey = fence.ErrInvalidKey

// Fence keeps a mark for each key, in Redis 6.2 or later or in a Cluster. All methods may be called
// concurrently, and all processes that use the same Redis and prefix share the marks.
//
// [Fence.Set] is what most callers want. Its value and its mark are written in one step and have the
// same slot, so they are also replicated, and lost, together.
//
// Each call is one round trip and as patient as the client is. After an error that matches
// store.ErrUnavailable, or is the context's, it is not known whether the token has passed and the
// value been written. The holder may call again: a call does no harm twice.
//
// A mark lives for [WithTTL] after the last call for its key, refused or not. Redis must not evict
// it before: use the maxmemory-policy noeviction.
//
// A Fence is a [fence.Checker], for the middleware that refuse requests whose fence is stale.
type Fence struct {
	client redis.UniversalClient
	config config
}

var _ fence.Checker = (*Fence)(nil)

// Option is an optional setting of [New].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	prefix string
	ttl    time.Duration
}

// WithPrefix sets what the Redis keys of marks begin with: "fence" if not set, 1 to 64 bytes without
// braces.
func WithPrefix(prefix string) Option { return optionFunc(func(c *config) { c.prefix = prefix }) }

// WithTTL sets for how long a mark is kept after the last call for its key: 24 h if not set, 1 s to
// 366 days. It must be longer than the longest time for which a holder may be paused, or its request
// delayed, and then still write: once the mark is forgotten, the oldest token passes.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// New returns a fence on client, which stays the caller's to close. It talks to nobody yet.
//
// It returns an error for an option out of its range, and for a client that is nil or neither a *redis.Client nor a
// *redis.ClusterClient. A Ring is refused: it moves a key to another server, without its mark, when its own is away.
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
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	switch {
	case c.prefix == "" || len(c.prefix) > 64 || strings.ContainsAny(c.prefix, "{}"):
		return nil, fmt.Errorf("redisfence: New: prefix %q has not 1 to 64 bytes without braces", c.prefix)
	case c.ttl < time.Second || c.ttl > 366*24*time.Hour:
		return nil, fmt.Errorf("redisfence: New: a ttl of %v is not between 1s and 366 days", c.ttl)
	}
	return &Fence{client, c}, nil
}

// Check admits a token or refuses it, by the rule of [fence.Mark], and writes nothing but the mark.
// By the time that the caller acts on it a newer token may have passed: use it where it saves work,
// or where the resource is not in Redis and nothing better can be had.
//
// An error matches [fence.ErrStale], [fence.ErrInvalid], [ErrInvalidKey] or store.ErrUnavailable, or
// is the context's.
func (f *Fence) Check(ctx context.Context, key string, t fence.Token) error {
	mark, err := f.markKey(key)
	if err != nil {
		return err
	}
	return f.run(ctx, t, []string{mark})
}

// Set makes value the string under key if the token passes, in one step with its mark. The value
// lives for ttl, in whole milliseconds, rounded up: for ever if it is 0.
//
// Errors are those of Check, or an error for a negative ttl. But for an outage nothing has been
// written then. Two writes with the same token are the same holder's, who has to keep them in order.
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
	if err != nil && strings.Contains(err.Error(), "NOSCRIPT") { // which proxies put behind an "ERR"
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
	return redisfault.Explain(err, false)
}

func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// markKey names the mark of a key, in the slot of the key: that of its hash tag, or of all of it.
func (f *Fence) markKey(key string) (string, error) {
	if key == "" {
		return "", fmt.Errorf("%w: it is empty", ErrInvalidKey)
	}
	// Two forms that nothing can be both of: "{a}" and "a" are different keys.
	if _, rest, ok := strings.Cut(key, "{"); ok && strings.Index(rest, "}") > 0 {
		return f.config.prefix + ":t:" + key, nil
	}
	if strings.Contains(key, "}") {
		return "", fmt.Errorf("%w: it has a brace outside of a hash tag", ErrInvalidKey)
	}
	return f.config.prefix + ":k:{" + key + "}", nil
}
