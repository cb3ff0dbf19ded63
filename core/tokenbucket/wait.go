package tokenbucket

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Wait takes one token of the key, when there is one. It is WaitN(ctx, key, 1).
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN takes n tokens of the key, of every limit of its plan, as soon as all of them have as many.
// The waiters for a key in this process are served in order of arrival, and one of them asks the
// store. There is no order among processes, and between waiters and callers of [Limiter.Allow].
//
// It blocks until the context ends. If the tokens are known to come after the context's deadline,
// it returns at once an error that matches context.DeadlineExceeded. Waiters notice within 10 s
// that tokens were given back ([Reservation.Settle], [Limiter.Reset]). Other errors are those of
// [Limiter.AllowN], at any time: it does not wait for a store that is unavailable. After an error
// nothing was charged, except if it matches store.ErrUnconfirmed.
//
// If the limits of the key are not enforced ([Limiter.SetEnforcement]), it waits for no token.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	x := l.telemetry.Wait(ctx)
	err := l.waitUntraced(ctx, key, n)
	x.End(ctx, err)
	return err
}

// KeyWaiter waits for the tokens of one key: [Limiter.Key] makes one.
type KeyWaiter struct {
	limiter *Limiter
	key     string
}

// Key returns a waiter for one key, with methods of a [golang.org/x/time/rate.Limiter]. Code that
// takes an interface of these methods can so be limited across processes.
func (l *Limiter) Key(key string) KeyWaiter { return KeyWaiter{l, key} }

// Wait is [Limiter.Wait] for the key.
func (w KeyWaiter) Wait(ctx context.Context) error { return w.limiter.WaitN(ctx, w.key, 1) }

// WaitN is [Limiter.WaitN] for the key.
func (w KeyWaiter) WaitN(ctx context.Context, n int) error {
	return w.limiter.WaitN(ctx, w.key, int64(n))
}

// waitUntraced is WaitN without telemetry.
func (l *Limiter) waitUntraced(ctx context.Context, key string, n int64) error {
	if n < 0 {
		return invalidCost("WaitN", n, 0)
	}
	again := false // only the first decision is counted
	if !l.queues.any(key) || !l.Enforces(key) {
		var d Decision
		err := l.decide(ctx, key, n, &d)
		again = true
		if err != nil || d.Allowed {
			return err
		}
		if err := inTime(ctx, time.Now().Add(d.RetryAfter)); err != nil {
			return err
		}
	}
	q := l.queues.join(key)
	defer l.queues.leave(key, q)
	if err := q.lock(ctx, l.closed); err != nil {
		return err
	}
	defer q.unlock()
	for {
		changed := l.queues.change()
		d := Decision{again: again}
		err := l.decide(ctx, key, n, &d)
		again = true
		if err != nil || d.Allowed {
			return err
		}
		due := time.Now().Add(d.RetryAfter)
		if err := inTime(ctx, due); err != nil {
			return err
		}
		ask := due
		if d.RetryAfter > lookAgain { // tokens may be given back, or the key reset
			ask = time.Now().Add(lookAgain)
		}
		if err := q.until(ctx, l.closed, changed, due, ask); err != nil {
			return err
		}
	}
}

// inTime returns an error if due is after the deadline of a context.
func inTime(ctx context.Context, due time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && due.After(deadline) {
		return fmt.Errorf("tokenbucket: the tokens come after the deadline: %w", context.DeadlineExceeded)
	}
	return nil
}

// queues has a queue for each key with waiters in this process.
type queues struct {
	mu      sync.Mutex
	byKey   map[string]*queue
	changed chan struct{} // closed by a change of plan; nil before there is a waiter
}

// queue has the waiters for a key.
type queue struct {
	members int           // waiters, and the one that is served
	head    chan struct{} // holds a value while a waiter is served; senders are served in order of arrival

	mu  sync.Mutex
	due time.Time // no waiter is served earlier
}

// change returns a channel that the next change of plan closes.
func (qs *queues) change() <-chan struct{} {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.changed == nil {
		qs.changed = make(chan struct{})
	}
	return qs.changed
}

// wake makes waiters ask again, since the plan has changed.
func (qs *queues) wake() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.changed == nil {
		return
	}
	close(qs.changed)
	qs.changed = nil
	for _, q := range qs.byKey {
		q.mu.Lock()
		q.due = time.Time{}
		q.mu.Unlock()
	}
}

func (qs *queues) any(key string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.byKey[key] != nil
}

func (qs *queues) join(key string) *queue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byKey[key]
	if q == nil {
		q = &queue{head: make(chan struct{}, 1)}
		if qs.byKey == nil {
			qs.byKey = map[string]*queue{}
		}
		qs.byKey[strings.Clone(key)] = q // it may outlive the request that the key is a part of
	}
	q.members++
	return q
}

func (qs *queues) leave(key string, q *queue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q.members--; q.members == 0 {
		delete(qs.byKey, key)
	}
}

// lock blocks until the caller is the first in the queue. It returns an error at once if that will
// be after the context's deadline.
func (q *queue) lock(ctx context.Context, closed <-chan struct{}) error {
	q.mu.Lock()
	due := q.due
	q.mu.Unlock()
	if err := inTime(ctx, due); err != nil {
		return err
	}
	select {
	case q.head <- struct{}{}:
		return nil
	case <-closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) unlock() { <-q.head }

// lookAgain is the longest time between two questions of a waiter.
const lookAgain = 10 * time.Second

// until blocks the first in the queue until it is to ask again, or until the plan has changed. No
// tokens are known to come before due.
func (q *queue) until(ctx context.Context, closed, changed <-chan struct{}, due, ask time.Time) error {
	q.mu.Lock()
	select {
	case <-changed:
	default:
		q.due = due
	}
	q.mu.Unlock()
	timer := time.NewTimer(time.Until(ask))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-changed:
		return nil
	case <-closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
