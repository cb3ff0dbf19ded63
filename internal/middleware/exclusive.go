package middleware

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// maxWaiting is the default of policy.MaxWaiting.
const maxWaiting = 1024

// NewExclusive returns a Hold that runs the requests of a key one at a time. It panics, as
// exclusive.New, if the locker is nil, or if the settings limit the waiters and let none wait.
func NewExclusive(l *lock.Locker, s setting.Settings) *Hold {
	if l == nil {
		panic("exclusive: New: nil locker")
	}
	if s.MaxWaiting > 0 && s.Wait == 0 {
		panic("exclusive: New: policy.MaxWaiting has no effect without policy.Wait")
	}
	return &Hold{
		Watch: newWatch(s, "lock", l.Name()), Package: "exclusive", Status: "Lock-Status",
		mechanism: locks{l, newWaiters(cmp.Or(s.MaxWaiting, maxWaiting))}, kind: "lock", name: l.Name(), wait: s.Wait,
	}
}

type locks struct {
	locker  *lock.Locker
	waiters *waiters
}

func (l locks) try(ctx context.Context, key string) (held, bool, error) {
	return leased(l.locker.TryLock(ctx, key))
}

func (l locks) await(ctx context.Context, key string, tried error) (held, bool, error) {
	var others *lock.HeldError
	if errors.As(tried, &others) && others.Waiting >= l.waiters.max || !l.waiters.join(key) {
		return nil, true, tried
	}
	defer l.waiters.leave(key)
	return leased(l.locker.Lock(ctx, key))
}

func leased(lease *lock.Lease, err error) (held, bool, error) {
	if err != nil {
		return nil, errors.Is(err, lock.ErrNotAcquired), err
	}
	return leaseHeld{lease}, false, nil
}

func (locks) refusal(err error, typical time.Duration) (policy.Denial, bool) {
	var others *lock.HeldError
	switch {
	case errors.As(err, &others):
		return policy.Denial{Reason: policy.Locked, RetryAfter: untilFree(others, typical), Err: err}, true
	case errors.Is(err, lock.ErrInvalidKey):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}, true
	}
	return policy.Denial{}, false
}

// untilFree estimates when the lock is free: after the recent duration of handlers, for the holder
// and each waiter. The lease is only the upper bound, after which a dead holder's lock is free,
// since it is long and renewed.
func untilFree(others *lock.HeldError, typical time.Duration) time.Duration {
	after := typical * time.Duration(others.Waiting+1)
	if others.Remaining > 0 {
		after = min(after, others.Remaining)
	}
	return max(after, time.Second)
}

type leaseHeld struct{ *lock.Lease }

func (h leaseHeld) end(ctx context.Context, _ Sample) error {
	// Unlock continues when the client has disconnected; the handler may have called it itself.
	if err := h.Unlock(ctx); !errors.Is(err, lock.ErrReleased) {
		return err
	}
	return nil
}

func (h leaseHeld) discard(ctx context.Context) { _ = h.Unlock(ctx) }
