package lock

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Lock blocks until it holds the lock of key exclusively, or until ctx ends.
//
// It returns a lease, or:
//
//   - ctx's cause if ctx has ended, or a *[HeldError] that matches it if ctx ended while others
//     held the lock;
//   - [ErrDeadlock] if ctx holds the same lock shared;
//   - [ErrLost], [ErrExpired] or [ErrReleased] if ctx belongs to a lease of the same lock that has
//     ended so;
//   - [ErrInvalidKey];
//   - [ErrClosed]; or
//   - an error that matches store.ErrUnavailable.
//
// After an error the lock is not held: a late grant is released in the background.
//
// ctx is the parent of the lease's context. Its end does not release the lock.
func (l *Locker) Lock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusive, true)
}

// TryLock is Lock without waiting: if others hold the lock, or wait for it, it returns a
// *[HeldError] at once. A call during another request of the process for the lock shares the result
// of that request if it is a *[HeldError] or an error that matches store.ErrUnavailable.
func (l *Locker) TryLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusive, false)
}

// RLock blocks until it holds the lock of key together with other shared holders, or until ctx
// ends. It waits for earlier exclusive holders and waiters. With a context that holds the lock
// exclusively it shares that lease. Its errors are Lock's.
func (l *Locker) RLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, shared, true)
}

// TryRLock is RLock without waiting: if it had to wait, it returns a *[HeldError] at once.
func (l *Locker) TryRLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, shared, false)
}

// A lock is a semaphore: an exclusive lease takes its whole capacity, and a shared lease one unit.
const (
	exclusive = store.MaxCapacity
	shared    = 1
)

func (l *Locker) acquire(ctx context.Context, key string, weight int, wait bool) (*Lease, error) {
	got, err := l.pool.Acquire(ctx, lease.Request{
		Config: l.config, Key: key, Weight: weight, Wait: wait, Direct: l.config.Fair || weight == shared,
	})
	if err != nil {
		return nil, err
	}
	return got.Owner().(*Lease), nil
}
