package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// maxRetryAfter bounds the estimate from an average and a long queue.
const maxRetryAfter = time.Hour

// minSpread is the least time over which a full server spreads the retries of refused requests.
const minSpread = 3 * time.Second

// NewConcurrency returns a Hold that limits the running requests of a key. It panics, as
// concurrency.New, if the semaphore is nil.
func NewConcurrency(s *semaphore.Semaphore, set setting.Settings) *Hold {
	if s == nil {
		panic("concurrency: New: nil semaphore")
	}
	h := &Hold{
		Watch: newWatch(set, "semaphore", s.Name()), Package: "concurrency", Status: "Concurrency-Status",
		mechanism: permits{s, set.Overload}, counts: true, overload: set.Overload,
		kind: "semaphore", name: s.Name(), wait: set.Wait,
	}
	if set.Tiers != nil {
		for tier := policy.Critical; tier <= policy.Background; tier++ {
			h.tiers = append(h.tiers, permits{s.Tier(tier), set.Overload})
		}
	}
	return h
}

type permits struct {
	semaphore *semaphore.Semaphore
	overload  bool
}

func (p permits) try(ctx context.Context, key string) (held, bool, error) {
	return permitted(p.semaphore.TryAcquire(ctx, key))
}

func (p permits) await(ctx context.Context, key string, _ error) (held, bool, error) {
	return permitted(p.semaphore.Acquire(ctx, key))
}

func permitted(permit *semaphore.Permit, err error) (held, bool, error) {
	if err != nil {
		return nil, errors.Is(err, semaphore.ErrNotAcquired), err
	}
	return permitHeld{permit}, false, nil
}

func (p permits) refusal(err error, typical time.Duration) (policy.Denial, bool) {
	var busy *semaphore.BusyError
	switch {
	case errors.As(err, &busy) && p.overload:
		after := spread(untilRoom(busy, typical), 0)
		return policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: spread(after, max(after, minSpread)), Err: err}, true
	case errors.As(err, &busy):
		return policy.Denial{Reason: policy.TooManyAtOnce, RetryAfter: untilRoom(busy, typical), Err: err}, true
	case errors.Is(err, semaphore.ErrInvalidKey):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}, true
	}
	return policy.Denial{}, false
}

// untilRoom estimates when a permit is free: the waiters, and then this request, get permits at the
// recent rate of releases, as many at a time as the capacity.
func untilRoom(busy *semaphore.BusyError, typical time.Duration) time.Duration {
	rounds := float64(busy.Waiting+1) / float64(max(busy.Capacity, 1))
	after := float64(typical) * rounds
	return time.Duration(min(max(after, float64(time.Second)), float64(maxRetryAfter)))
}

type permitHeld struct{ *semaphore.Permit }

// end does not delay the answer for the store's reply.
func (h permitHeld) end(_ context.Context, how Sample) error {
	switch how {
	case FailedSample:
		h.Failed()
	case StreamedSample:
		h.Void()
	}
	err := h.overdue()
	h.ReleaseAsync() // the handler may have released it itself
	return err
}

// overdue returns the reason why others may have had the permit while the handler ran, or nil.
func (h permitHeld) overdue() error {
	ctx := h.Context()
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, semaphore.ErrLost) || errors.Is(cause, semaphore.ErrExpired) {
		return cause
	}
	return nil
}

func (h permitHeld) discard(context.Context) {
	h.Void()
	h.ReleaseAsync()
}
