// Package batch has many small tasks done in few calls, soon and in the background.
package batch

import (
	"context"
	"fmt"
	"sync"
)

const (
	// maxBatch bounds what one call is given.
	maxBatch = 100
	// maxPending bounds the memory of a queue; beyond it the newest task is refused.
	maxPending = 1 << 16
)

// Queue collects tasks. The first is done at once, and those that come meanwhile are done together
// when it is done: so a lone one waits for nobody, and many wait for one call. One goroutine does
// it, and is gone while there is nothing to do.
type Queue[T any] struct {
	do func([]T)

	mu      sync.Mutex
	pending []T
	// done is closed when the goroutine that works on the tasks ends; nil while there is none.
	done chan struct{}
}

// NewQueue returns a queue that has its tasks done by the given function, up to 100 in a call, one
// call at a time. The function may keep the slice.
func NewQueue[T any](do func([]T)) *Queue[T] { return &Queue[T]{do: do} }

// Add has a task done soon. It reports false if too many are pending.
func (q *Queue[T]) Add(task T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) >= maxPending {
		return false
	}
	q.pending = append(q.pending, task)
	if q.done == nil {
		q.done = make(chan struct{})
		go q.work(q.done)
	}
	return true
}

// Wait waits until nothing is left to do, or until ctx ends: then it returns an error that
// matches ctx's cause, and the queue goes on.
func (q *Queue[T]) Wait(ctx context.Context) error {
	q.mu.Lock()
	done := q.done
	q.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not all that was to be done soon is done: %w", context.Cause(ctx))
	}
}

func (q *Queue[T]) work(done chan struct{}) {
	for {
		q.mu.Lock()
		n := min(len(q.pending), maxBatch)
		if n == 0 {
			q.pending, q.done = nil, nil
			close(done)
			q.mu.Unlock()
			return
		}
		batch := q.pending[:n:n]
		q.pending = q.pending[n:]
		q.mu.Unlock()
		q.do(batch)
	}
}
