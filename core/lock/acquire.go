package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Lock blocks until it holds the lock of key exclusively, or until ctx ends.
//
// It returns a lease, or: ctx's cause if ctx has ended, or a *[HeldError] that matches it if it
// ended while others held the lock; [ErrDeadlock] if ctx holds the same lock shared; [ErrLost],
// [ErrExpired] or [ErrReleased] if ctx belongs to a lease of the same lock that has ended so;
// [ErrInvalidKey]; [ErrClosed]; or an error that matches store.ErrUnavailable. After an error the
// lock is not held: a late grant is released in the background.
//
// ctx is the parent of the lease's context. Its end does not release the lock.
func (l *Locker) Lock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusiveMode, true)
}

// TryLock is Lock without waiting: if others hold the lock, or wait for it, it returns a
// *[HeldError] at once. A call during another request of the process for the lock shares the result
// of that request if it is a *[HeldError] or an error that matches store.ErrUnavailable.
func (l *Locker) TryLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusiveMode, false)
}

// RLock blocks until it holds the lock of key together with other shared holders, or until ctx
// ends. It waits for earlier exclusive holders and waiters. With a context that holds the lock
// exclusively it shares that lease. Errors are those of Lock.
func (l *Locker) RLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, sharedMode, true)
}

// TryRLock is RLock without waiting: if it had to wait, it returns a *[HeldError] at once.
func (l *Locker) TryRLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, sharedMode, false)
}

const (
	exclusiveMode = false
	sharedMode    = true
)

func (l *Locker) acquire(ctx context.Context, key string, shared, wait bool) (*Lease, error) {
	x := l.telemetry.Begin(ctx, wait)
	lease, err := l.acquireTraced(ctx, key, shared, wait, x)
	result := resultOf(ctx, err)
	l.telemetry.End(ctx, x, result, err)
	return lease, err
}

// resultOf returns the result of a request for telemetry.
func resultOf(ctx context.Context, err error) telemetry.AcquireResult {
	switch {
	case err == nil:
		return telemetry.Acquired
	case ctx.Err() != nil:
		return telemetry.Canceled
	case errors.Is(err, ErrNotAcquired):
		return telemetry.Busy
	}
	return telemetry.AcquireError
}

// acquireTraced is acquire; it links x to the span of the holder that the caller waits for.
func (l *Locker) acquireTraced(ctx context.Context, key string, shared, wait bool, x telemetry.Acquisition) (*Lease, error) {
	if err := naming.CheckKey(key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	if ctx.Err() != nil {
		return nil, lease.Ended(ctx)
	}
	l.calls.Begin() // before checking closing, or a shutdown might not wait for it
	defer l.calls.End()
	if l.closing.Err() != nil {
		return nil, ErrClosed
	}
	if lease, err := l.reenter(ctx, key, shared); lease != nil || err != nil {
		return lease, err
	}
	if shared || l.config.fair {
		return l.acquireDirect(ctx, key, shared, wait, x)
	}
	return l.acquireQueued(ctx, key, wait, x)
}

// reenter returns a lease on the hold of the lock that ctx already has, or an error if that hold
// has ended: the work of ctx may have been interrupted then. Without such a hold it returns
// neither.
func (l *Locker) reenter(ctx context.Context, key string, shared bool) (*Lease, error) {
	for held, _ := FromContext(ctx); held != nil; held = held.state.outer {
		if held.state.hold.core != l.core || held.Key() != key {
			continue
		}
		if held.Shared() && !shared {
			if err := held.state.ended(); err != nil {
				return nil, err
			}
			return nil, ErrDeadlock
		}
		return held.enter(ctx)
	}
	return nil, nil
}

// request returns a request for a lock. A hold that may be handed on needs several fences.
func (l *Locker) request(ctx context.Context, key string, shared, queue bool) store.LockRequest {
	fences := 1
	if !shared && !l.config.fair {
		fences = maxHandOffs
	}
	return store.LockRequest{
		Name: l.name, Key: key, ID: naming.NewID(), Shared: shared, Queue: queue, Fair: l.config.fair,
		TTL: l.config.ttl, Delay: l.config.delay, Fences: fences, Holder: withSpan(ctx, l.config.holder),
	}
}

// acquireDirect sends a request to the store, without the local queue.
func (l *Locker) acquireDirect(ctx context.Context, key string, shared, wait bool, x telemetry.Acquisition) (*Lease, error) {
	req := l.request(ctx, strings.Clone(key), shared, wait) // as in acquireQueued
	reply, err := l.send(ctx, req)
	if err != nil {
		return nil, err
	}
	grant := reply.Grant
	if reply.Outcome == store.Queued {
		x.Behind(cutSpan(reply.Holder))
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(l.closing, cancel)()
		if grant, err = l.store.AwaitLock(waiting, req); err != nil {
			l.releaseAsync(req.Ref())
			return nil, l.waitError(ctx, reply, err)
		}
	}
	h, err := l.newHold(req, grant, nil)
	if err != nil {
		return nil, err
	}
	return l.startLease(ctx, h)
}

// send sends a request to acquire. Without an error, the request was granted or queued.
func (l *Locker) send(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := l.store.AcquireLock(ctx, req)
	if err != nil {
		if errors.Is(err, store.ErrUnconfirmed) || ctx.Err() != nil {
			l.releaseAsync(req.Ref())
		}
		if ctx.Err() != nil {
			err = lease.Ended(ctx)
		}
		return reply, err
	}
	switch {
	case reply.Outcome == store.Granted, reply.Outcome == store.Queued && req.Queue:
		return reply, nil
	case reply.Outcome == store.Taken:
		return reply, heldError(reply, nil)
	}
	l.releaseAsync(req.Ref())
	return reply, fmt.Errorf("%w: unexpected reply to acquire: %d", store.ErrUnavailable, reply.Outcome)
}

// startLease returns a lease on a hold, unless the caller's context has ended since.
func (l *Locker) startLease(ctx context.Context, h *hold) (*Lease, error) {
	var err error
	switch {
	case ctx.Err() != nil:
		err = lease.Ended(ctx)
	case l.closing.Err() != nil:
		err = ErrClosed
	default:
		return newLease(ctx, h), nil
	}
	l.calls.Run(func() { _ = l.endLease(context.Background(), h) })
	return nil, err
}

// waitError returns the error of a wait that failed with err.
func (l *Locker) waitError(ctx context.Context, reply store.LockReply, err error) error {
	switch {
	case ctx.Err() != nil:
		return heldError(reply, lease.Ended(ctx))
	case l.closing.Err() != nil:
		return ErrClosed
	}
	return err
}

func heldError(reply store.LockReply, cause error) *HeldError {
	holder, _ := cutSpan(reply.Holder)
	return &HeldError{Holder: holder, Remaining: reply.Remaining, Waiting: reply.Waiting, cause: cause}
}
