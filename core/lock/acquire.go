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

// Lock waits until it holds the lock of key exclusively, or until ctx ends.
//
// It returns a lease, or: ctx's cause if ctx has ended, or a *[HeldError] that matches it if it ended
// while others had the lock; [ErrDeadlock] if ctx holds the same lock shared; [ErrLost], [ErrExpired] or
// [ErrReleased] if ctx belongs to a lease of the same lock that has ended so; [ErrInvalidKey];
// [ErrClosed]; or an error that matches store.ErrUnavailable. After an error the lock is not held: what
// the store may have granted too late is given back in the background.
//
// ctx is the parent of the lease's context. Its end does not release the lock.
func (l *Locker) Lock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusively, true)
}

// TryLock is Lock without waiting: if others have the lock, or wait for it, it returns a *[HeldError]
// at once. A call that comes while another one of the process asks the store shares that one's answer:
// a *[HeldError], or the error that matches store.ErrUnavailable.
func (l *Locker) TryLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, exclusively, false)
}

// RLock waits until it holds the lock of key beside others that hold it shared, or until ctx ends. It
// waits for exclusive ones that came before it, held or waiting. With a context that holds the lock
// exclusively it shares that lease. Errors are those of Lock.
func (l *Locker) RLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, sharing, true)
}

// TryRLock is RLock without waiting: if it would have to, it returns a *[HeldError] at once.
func (l *Locker) TryRLock(ctx context.Context, key string) (*Lease, error) {
	return l.acquire(ctx, key, sharing, false)
}

const (
	exclusively = false
	sharing     = true
)

func (l *Locker) acquire(ctx context.Context, key string, shared, wait bool) (*Lease, error) {
	x := l.telemetry.Begin(ctx, wait)
	lease, err := l.acquireTold(ctx, key, shared, wait, x)
	result := resultOf(ctx, err)
	l.telemetry.End(ctx, x, result, err)
	return lease, err
}

// resultOf says in a word what a request came to.
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

// acquireTold has x told of whom the caller waits for.
func (l *Locker) acquireTold(ctx context.Context, key string, shared, wait bool, x telemetry.Acquisition) (*Lease, error) {
	if err := naming.CheckKey(key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	if ctx.Err() != nil {
		return nil, lease.Ended(ctx)
	}
	l.errands.Begin() // before the look at closing, or a shutdown might not wait for it
	defer l.errands.End()
	if l.closing.Err() != nil {
		return nil, ErrClosed
	}
	if lease, err := l.reenter(ctx, key, shared); lease != nil || err != nil {
		return lease, err
	}
	if shared || l.config.fair {
		return l.acquireAlone(ctx, key, shared, wait, x)
	}
	return l.acquireInLine(ctx, key, wait, x)
}

// reenter returns a lease on the hold that ctx has of the lock already, or an error if that hold has
// ended: work that ctx belongs to may have been under way when it did. Without such a hold it returns
// neither.
func (l *Locker) reenter(ctx context.Context, key string, shared bool) (*Lease, error) {
	for held, _ := FromContext(ctx); held != nil; held = held.grip.outer {
		if held.grip.hold.core != l.core || held.Key() != key {
			continue
		}
		if held.Shared() && !shared {
			if err := held.grip.ended(); err != nil {
				return nil, err
			}
			return nil, ErrDeadlock
		}
		return held.enter(ctx)
	}
	return nil, nil
}

// request asks for a lock. Whoever hands it on wants several fences.
func (l *Locker) request(ctx context.Context, key string, shared, queue bool) store.LockRequest {
	fences := 1
	if !shared && !l.config.fair {
		fences = maxPasses
	}
	return store.LockRequest{
		Name: l.name, Key: key, ID: naming.NewID(), Shared: shared, Queue: queue, Fair: l.config.fair,
		TTL: l.config.ttl, Delay: l.config.delay, Fences: fences, Holder: withSpan(ctx, l.config.holder),
	}
}

// acquireAlone asks the store, beside everybody else in the process who does.
func (l *Locker) acquireAlone(ctx context.Context, key string, shared, wait bool, x telemetry.Acquisition) (*Lease, error) {
	req := l.request(ctx, strings.Clone(key), shared, wait) // as in acquireInLine
	reply, err := l.ask(ctx, req)
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
			l.giveBack(req.Ref())
			return nil, l.whyNot(ctx, reply, err)
		}
	}
	h, err := l.newHold(req, grant, nil)
	if err != nil {
		return nil, err
	}
	return l.start(ctx, h)
}

// ask sends a request to acquire. The reply is that it was granted or queued.
func (l *Locker) ask(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := l.store.AcquireLock(ctx, req)
	if err != nil {
		if errors.Is(err, store.ErrUnconfirmed) || ctx.Err() != nil {
			l.giveBack(req.Ref())
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
		return reply, held(reply, nil)
	}
	l.giveBack(req.Ref())
	return reply, fmt.Errorf("%w: unexpected answer to acquire: %d", store.ErrUnavailable, reply.Outcome)
}

// start returns the lease of a caller who has got a hold, unless the caller has left meanwhile.
func (l *Locker) start(ctx context.Context, h *hold) (*Lease, error) {
	var err error
	switch {
	case ctx.Err() != nil:
		err = lease.Ended(ctx)
	case l.closing.Err() != nil:
		err = ErrClosed
	default:
		return newLease(ctx, h), nil
	}
	l.errands.Run(func() { _ = l.leave(context.Background(), h) })
	return nil, err
}

// whyNot says why waiting has ended.
func (l *Locker) whyNot(ctx context.Context, reply store.LockReply, err error) error {
	switch {
	case ctx.Err() != nil:
		return held(reply, lease.Ended(ctx))
	case l.closing.Err() != nil:
		return ErrClosed
	}
	return err
}

func held(reply store.LockReply, cause error) *HeldError {
	holder, _ := cutSpan(reply.Holder)
	return &HeldError{Holder: holder, Remaining: reply.Remaining, Waiting: reply.Waiting, cause: cause}
}
