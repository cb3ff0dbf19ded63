// Package redisrate is a bridge from github.com/go-redis/redis_rate/v10: the same names and types, on
// a token bucket of package tokenbucket. A program moves to it by its imports, and from it one call
// after the other.
//
//	import redis_rate "github.com/lockkeeper/lockkeeper/migrate/redisrate"
//
// Buckets start full once, when a program moves: redis_rate keeps other keys. Until all processes have
// moved, those of each library have the whole limit.
//
// What differs:
//
//   - The client needs ContextTimeoutEnabled, and is a *redis.Client or a *redis.ClusterClient.
//   - [NewLimiter] makes a store, so call it once for each client. [Limiter.Close] ends it.
//   - Remaining is the tokens that are left, after a denial too. redis_rate returns 0 then, and one too
//     few after some calls, since it rounds.
//   - A cost above the burst, and a burst below 1, is a denial whose RetryAfter is [Never]. redis_rate
//     returns a time after which the call is denied again.
//   - [Limiter.AllowAtMost] takes whole tokens, and returns how many. redis_rate also takes the part of
//     the next one, and may return one too few.
//   - A key that is charged at another rate than before keeps the tokens that were used. redis_rate
//     keeps the time until the bucket is full instead.
//   - A negative cost, an empty key and one of more than 1,024 bytes are errors, and nothing is sent.
//   - A denial may come from the store's denial cache. A Reset by another process is seen a second
//     later, unless the limiter has redisstore.WithoutDenialCache.
//   - An error of Redis matches store.ErrUnavailable, after 250 ms at the latest
//     (redisstore.WithTimeout). A charge that may have been made is not repeated.
package redisrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Name is the name under which a [Limiter] keeps its buckets. A tokenbucket.Limiter with this name, on
// a store with the same options, shares them.
const Name = "redis_rate"

// Never is the RetryAfter of a cost that no waiting makes affordable.
const Never time.Duration = math.MaxInt64

// Limit is Rate tokens in each Period, of which Burst may come at once.
type Limit struct {
	Rate   int
	Burst  int
	Period time.Duration
}

// PerSecond is a limit of rate tokens a second with a burst of rate.
func PerSecond(rate int) Limit { return Limit{rate, rate, time.Second} }

// PerMinute is a limit of rate tokens a minute with a burst of rate.
func PerMinute(rate int) Limit { return Limit{rate, rate, time.Minute} }

// PerHour is a limit of rate tokens an hour with a burst of rate.
func PerHour(rate int) Limit { return Limit{rate, rate, time.Hour} }

// String returns a text such as "10 req/s (burst 10)".
func (l Limit) String() string {
	period := l.Period.String()
	switch l.Period {
	case time.Second:
		period = "s"
	case time.Minute:
		period = "m"
	case time.Hour:
		period = "h"
	}
	return fmt.Sprintf("%d req/%s (burst %d)", l.Rate, period, l.Burst)
}

// IsZero reports whether l is the zero value, which calls refuse.
func (l Limit) IsZero() bool { return l == Limit{} }

// Result is a decision about a key.
type Result struct {
	Limit      Limit         // that the call was given
	Allowed    int           // tokens that were taken
	Remaining  int           // tokens that are left
	RetryAfter time.Duration // until the same cost can be afforded: -1 if it was, or [Never]
	ResetAfter time.Duration // until the bucket is full
}

// Limiter decides how often something may happen, by the limit of each call. Its methods may be called
// concurrently.
type Limiter struct{ state *state }

type state struct {
	store *redisstore.Store
	err   error // of all calls, if there is no store

	mu      sync.RWMutex
	byLimit map[Limit]*tokenbucket.Limiter
}

// maxLimits bounds the limits that are kept compiled. Most programs have a few.
const maxLimits = 1024

// NewLimiter returns a limiter on rdb, with a store that has these options.
//
// If redisstore.New refuses the client or an option, every call returns its error, which matches
// store.ErrMisconfigured, and NewLimiter logs it to slog.Default(), since some callers let requests
// pass after an error.
func NewLimiter(rdb redis.UniversalClient, opts ...redisstore.Option) *Limiter {
	st, err := redisstore.New(rdb, opts...)
	if err != nil {
		err = fmt.Errorf("NewLimiter: %w: %w", store.ErrMisconfigured, err)
		slog.Error("redisrate: every call will fail", "error", err)
	}
	return &Limiter{&state{store: st, err: err, byLimit: make(map[Limit]*tokenbucket.Limiter)}}
}

// Close ends the limiter: later calls return store.ErrClosed. It does not close the client.
func (l *Limiter) Close() error {
	if l.state == nil || l.state.store == nil {
		return nil
	}
	return named(l.state.store.Close())
}

// Allow takes one token of the key. It is AllowN(ctx, key, limit, 1).
func (l Limiter) Allow(ctx context.Context, key string, limit Limit) (*Result, error) {
	return l.AllowN(ctx, key, limit, 1)
}

// AllowN takes n tokens of the key, or none: the result's Allowed is n or 0. With an n of 0 it only
// looks at the bucket.
//
// The error matches tokenbucket.ErrInvalidLimit for a rate below 1 or a period that is not positive,
// tokenbucket.ErrInvalidCost for a negative n, tokenbucket.ErrInvalidKey, or store.ErrUnavailable, or
// the context's error. Nothing was charged then, except where it matches store.ErrUnconfirmed.
func (l Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	limiter, err := l.of(limit)
	if err != nil {
		return nil, named(err)
	}
	var d tokenbucket.Decision
	never := n > 0 && n > limit.Burst
	if never {
		d, err = limiter.Peek(ctx, key)
	} else {
		d, err = limiter.AllowN(ctx, key, int64(n))
	}
	if err != nil {
		return nil, named(err)
	}
	r := resultOf(limit, &d)
	switch {
	case never:
		r.RetryAfter = Never
	case d.Allowed:
		r.Allowed = n
	}
	return r, nil
}

// AllowAtMost takes as many tokens of the key as there are, up to n, which the result's Allowed has. If
// there is none, RetryAfter is the time until there is one. With an n of 0 it only looks at the bucket.
// Errors are those of AllowN.
func (l Limiter) AllowAtMost(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	limiter, err := l.of(limit)
	if err != nil {
		return nil, named(err)
	}
	var d tokenbucket.Decision
	never := limit.Burst < 1
	if never || n == 0 {
		d, err = limiter.Peek(ctx, key)
	} else {
		d, err = limiter.AllowAtMost(ctx, key, int64(n))
	}
	if err != nil {
		return nil, named(err)
	}
	r := resultOf(limit, &d)
	r.Allowed = int(d.Taken)
	if never {
		r.RetryAfter = Never
	}
	return r, nil
}

// Reset fills the bucket of the key. Errors are those of AllowN.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	limiter, err := l.of(PerSecond(1)) // all limits have the same bucket
	if err != nil {
		return named(err)
	}
	return named(limiter.Reset(ctx, key))
}

// named returns an error with the prefix of this package, whichever other one it comes from.
func named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("redisrate: %w", err)
}

// of returns the limiter of a limit.
func (l Limiter) of(limit Limit) (*tokenbucket.Limiter, error) {
	s := l.state
	switch {
	case s == nil:
		return nil, errors.New("a Limiter that NewLimiter has not made")
	case s.err != nil:
		return nil, s.err
	}
	s.mu.RLock()
	limiter := s.byLimit[limit]
	s.mu.RUnlock()
	if limiter != nil {
		return limiter, nil
	}
	burst := max(limit.Burst, 1) // less is denied here
	limiter, err := tokenbucket.New(unregistered{s.store}, Name, tokenbucket.Per(int64(limit.Rate), limit.Period).Burst(int64(burst)))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byLimit) >= maxLimits {
		clear(s.byLimit)
	}
	s.byLimit[limit] = limiter
	return limiter, nil
}

// unregistered hides that a store compares the plans of limiters with the same name, which differ here.
type unregistered struct{ store.Buckets }

func resultOf(limit Limit, d *tokenbucket.Decision) *Result {
	var room [1]tokenbucket.LimitState
	bucket := &d.AppendLimits(room[:0])[0]
	r := &Result{Limit: limit, RetryAfter: -1, ResetAfter: bucket.Reset}
	r.Remaining = min(int(bucket.Remaining), max(limit.Burst, 0))
	if !d.Allowed {
		r.RetryAfter = d.RetryAfter
	}
	return r
}
