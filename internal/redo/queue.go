// Package redo carries out, in the background, what a store did not confirm at the first try.
package redo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lockkeeper/lockkeeper/internal/outage"
)

const (
	// maxTasks bounds the memory of a queue; beyond it the newest task is refused.
	maxTasks = 1024
	// tryTimeout bounds one try; stores have shorter deadlines of their own.
	tryTimeout = 2 * time.Second
)

// Queue retries tasks until each has succeeded, has run out of time, or the store is closed. One
// goroutine does it, one task after the other, and is gone while there are none: an outage costs
// no goroutine per task. The zero value is ready to use.
type Queue struct {
	mu    sync.Mutex
	tasks []task
	// done is closed when the goroutine that works on the tasks ends; nil while there is none.
	done chan struct{}
	// hurry ends the present back-off.
	hurry chan struct{}
}

type task struct {
	until time.Time
	try   func(context.Context) error
	after func()
}

// Add has try called until it returns nil, until the given time. Then after is called, if it is
// not nil. It reports false, and does neither, if the queue is full.
func (q *Queue) Add(until time.Time, try func(context.Context) error, after func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tasks) >= maxTasks {
		return false
	}
	q.tasks = append(q.tasks, task{until, try, after})
	if q.done == nil {
		q.done = make(chan struct{})
		q.hurry = make(chan struct{}, 1)
		go q.work(q.done, q.hurry)
	}
	return true
}

// Drain tries everything again at once and waits until nothing is left to do, or until ctx ends;
// then the error says how much is left, and the queue goes on.
func (q *Queue) Drain(ctx context.Context) error {
	q.mu.Lock()
	done, hurry := q.done, q.hurry
	q.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case hurry <- struct{}{}:
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		q.mu.Lock()
		left := len(q.tasks)
		q.mu.Unlock()
		return fmt.Errorf("%d unconfirmed requests left: %w", left, context.Cause(ctx))
	}
}

func (q *Queue) work(done, hurry chan struct{}) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 20 * time.Millisecond
	pause.MaxInterval = time.Second
	for {
		q.mu.Lock()
		if len(q.tasks) == 0 {
			q.done, q.hurry = nil, nil
			close(done)
			q.mu.Unlock()
			return
		}
		next := q.tasks[0]
		q.mu.Unlock()

		ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
		err := next.try(ctx)
		cancel()
		if err == nil || errors.Is(err, outage.ErrClosed) || !time.Now().Before(next.until) {
			q.mu.Lock()
			q.tasks[0] = task{} // let go of what it refers to
			q.tasks = q.tasks[1:]
			q.mu.Unlock()
			if next.after != nil {
				next.after()
			}
			if err == nil {
				pause.Reset()
			}
			continue
		}
		q.mu.Lock() // to the back: what fails for a reason of its own must not hold up the rest
		q.tasks = append(q.tasks[1:], next)
		q.mu.Unlock()
		wait := time.NewTimer(pause.NextBackOff())
		select {
		case <-wait.C:
		case <-hurry:
			wait.Stop()
		}
	}
}
