package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

// Leases are several locks that are held at once. Always call Unlock.
type Leases struct {
	leases []*Lease // in the order of their keys
	ctx    context.Context
}

// LockAll blocks until it holds the locks of all keys exclusively, or until ctx ends; then it holds
// none. It acquires them one after the other in byte order, so that callers with common keys do not
// wait for each other in a circle. It renews the acquired ones while it waits. A duplicate key is
// locked once.
//
// Its errors are [Locker.Lock]'s; also [ErrInvalidKey] without any key, and [ErrDeadlock] if ctx
// holds a lock of this Locker that comes after a new one, which would be out of order.
func (l *Locker) LockAll(ctx context.Context, keys []string) (*Leases, error) {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	if len(sorted) == 0 {
		return nil, fmt.Errorf("%w: no keys", ErrInvalidKey)
	}
	for _, key := range sorted {
		if err := l.pool.CheckKey(key); err != nil {
			return nil, err
		}
	}
	if err := l.checkOrder(ctx, sorted); err != nil {
		return nil, err
	}
	all := &Leases{ctx: ctx}
	for _, key := range sorted {
		lease, err := l.Lock(all.ctx, key)
		if err != nil {
			_ = all.Unlock(ctx)
			return nil, err
		}
		all.leases = append(all.leases, lease)
		all.ctx = lease.Context()
	}
	return all, nil
}

// checkOrder returns [ErrDeadlock] for a new key that sorts before one that ctx holds.
func (l *Locker) checkOrder(ctx context.Context, sorted []string) error {
	var last string
	has := make(map[string]bool)
	for held, _ := FromContext(ctx); held != nil; held = held.outer() {
		if held.lease.Of(l.pool) && held.ended() == nil {
			has[held.Key()] = true
			last = max(last, held.Key())
		}
	}
	for _, key := range sorted {
		if !has[key] && key <= last {
			return ErrDeadlock
		}
	}
	return nil
}

// Context ends when the first of the leases does, with its cause: see [Lease.Context].
func (a *Leases) Context() context.Context { return a.ctx }

// Keys returns the held keys in order.
func (a *Leases) Keys() []string {
	keys := make([]string, len(a.leases))
	for i, l := range a.leases {
		keys[i] = l.Key()
	}
	return keys
}

// Fence returns the fence of a key. It returns false if the key is not held.
func (a *Leases) Fence(key string) (fence.Token, bool) {
	for _, l := range a.leases {
		if l.Key() == key {
			return l.Fence(), true
		}
	}
	return fence.Token{}, false
}

// Unlock releases all of them, the last first, even if ctx is cancelled. Its error joins the errors
// of [Lease.Unlock].
func (a *Leases) Unlock(ctx context.Context) error {
	var errs []error
	for _, l := range slices.Backward(a.leases) {
		errs = append(errs, l.Unlock(ctx))
	}
	return errors.Join(errs...)
}
