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

// WaitN takes n tokens of the key, of every limit of its plan, as soon as all of them have as many. Those
// who wait for a key in this process are served in the order in which they came, and one of them asks the
// store; among processes, and between those who wait and those who call [Limiter.Allow], there is no
// order.
//
// It waits for as long as the context lasts. If it is known that the tokens will come after the context's
// deadline, it returns at once an error that matches context.DeadlineExceeded. Other errors are those of
// [Limiter.AllowN], also in the middle of waiting: a store that is unavailable is not waited for. After an
// error nothing was charged, except where it matches store.ErrUnconfirmed.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	x := l.telemetry.Wait(ctx)
	err := l.waitUntold(ctx, key, n)
	x.End(ctx, err)
	return err
}

func (l *Limiter) waitUntold(ctx context.Context, key string, n int64) error {
	if !l.queues.any(key) {
		d, err := l.AllowN(ctx, key, n)
		if err != nil || d.Allowed {
			return err
		}
		if err := inTime(ctx, time.Now().Add(d.RetryAfter)); err != nil {
			return err
		}
	}
	q := l.queues.join(key)
	defer l.queues.leave(key, q)
	if err := q.turn(ctx); err != nil {
		return err
	}
	defer q.pass()
	for {
		d, err := l.AllowN(ctx, key, n)
		if err != nil || d.Allowed {
			return err
		}
		due := time.Now().Add(d.RetryAfter)
		if err := inTime(ctx, due); err != nil {
			return err
		}
		if err := q.until(ctx, due); err != nil {
			return err
		}
	}
}

// inTime returns an error if what is due then comes too late for a context.
func inTime(ctx context.Context, due time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && due.After(deadline) {
		return fmt.Errorf("tokenbucket: the tokens come after the deadline: %w", context.DeadlineExceeded)
	}
	return nil
}

// queues has one for each key that somebody in this process waits for.
type queues struct {
	mu    sync.Mutex
	byKey map[string]*queue
}

// queue is those who wait for a key.
type queue struct {
	members int           // who waits or has the turn
	head    chan struct{} // holds a value while somebody has the turn; who sends waits first come, first served

	mu  sync.Mutex
	due time.Time // before which nobody is served
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
		qs.byKey[strings.Clone(key)] = q // it may be there for longer than the request that the key was cut out of
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

// turn waits until it is the caller's. Whoever joins behind others is served after what the first of
// them waits for.
func (q *queue) turn(ctx context.Context) error {
	q.mu.Lock()
	due := q.due
	q.mu.Unlock()
	if err := inTime(ctx, due); err != nil {
		return err
	}
	select {
	case q.head <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) pass() { <-q.head }

// until waits, with the turn, for what is due then.
func (q *queue) until(ctx context.Context, due time.Time) error {
	q.mu.Lock()
	q.due = due
	q.mu.Unlock()
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
