package background

import (
	"context"
	"fmt"
	"sync"
)

const (
	// maxBatch is the maximum of tasks in a call.
	maxBatch = 100
	// maxPending bounds the memory of a queue; beyond it the newest task is refused.
	maxPending = 1 << 16
)

// BatchQueue batches tasks. The first one runs at once. Tasks that are added during a call run
// together in the next one: a single task does not wait, and concurrent ones wait for one call. One
// goroutine runs the calls, and ends when there are no tasks.
type BatchQueue[T any] struct {
	do func([]T)

	mu      sync.Mutex
	pending []T
	// done is closed when the goroutine that works on the tasks ends; nil while there is none.
	done chan struct{}
}

// NewBatchQueue returns a queue that runs its tasks with do, up to 100 in a call, one call at a
// time. The function may keep the slice.
func NewBatchQueue[T any](do func([]T)) *BatchQueue[T] { return &BatchQueue[T]{do: do} }

// Add adds a task. It returns false if too many are pending.
func (q *BatchQueue[T]) Add(task T) bool {
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

// Wait blocks until there are no tasks. If ctx ends first, it returns an error that matches ctx's
// cause, and the queue continues.
func (q *BatchQueue[T]) Wait(ctx context.Context) error {
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

func (q *BatchQueue[T]) work(done chan struct{}) {
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
