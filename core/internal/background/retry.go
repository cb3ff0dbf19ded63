package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

const (
	// TaskBytes is the accounted size of a task without its own Bytes.
	TaskBytes = 1 << 10
	// defaultBytes is the default of MaxBytes.
	defaultBytes = 1024 * TaskBytes
	// tryTimeout bounds one try; stores have shorter timeouts of their own.
	tryTimeout = 2 * time.Second
	// minPause and maxPause bound the back-off while no try succeeds.
	minPause, maxPause = 20 * time.Millisecond, 500 * time.Millisecond
	// The number of concurrent tries: minWidth while they fail, which is enough to probe the store
	// if one hangs, and doubled with each success up to maxWidth.
	minWidth, maxWidth = 4, 128
	// manyTries is the number of tries from which on further ones do not change a task's priority.
	manyTries = 8
)

// RetryQueue retries tasks until each has succeeded, has run out of time, or the store is closed.
// Tasks with the fewest failures come first, so that a task with a failure of its own does not
// block others. The queue backs off as a whole: an outage costs a few tries a second, however many
// tasks there are, and no goroutine between them. The zero value is ready to use.
type RetryQueue struct {
	// MaxBytes bounds the tasks: each counts TaskBytes and its own Bytes. Zero is 1 MiB.
	MaxBytes int

	mu      sync.Mutex
	tasks   heap.Heap[*Task]
	added   uint64
	left    int // tasks that have not ended, including running ones
	bytes   int
	running int // tries
	width   int // maximum of concurrent tries
	pause   backoff.Growing
	timer   *time.Timer   // ends a pause
	rested  time.Time     // start of the pause
	idle    chan struct{} // closed when no task is left; nil without tasks

	resting atomic.Bool // in a pause
}

// Task is something to retry.
type Task struct {
	// Until is the end of the tries: after it the task is tried at most once more.
	Until time.Time
	// Bytes is the memory that the task holds.
	Bytes int
	// Try is called until it returns nil, by one goroutine at a time.
	Try func(context.Context) error
	// After is called when the task has ended, with the last try's error. It may be nil.
	After func(error)

	tries  int
	number uint64
	index  int
}

// Add adds a task. It returns false if there is no room.
func (q *RetryQueue) Add(t Task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+TaskBytes+t.Bytes > q.max() {
		return false
	}
	q.bytes += TaskBytes + t.Bytes
	if q.left++; q.left == 1 {
		q.idle = make(chan struct{})
		q.width = minWidth
		q.pause = backoff.Growing{Min: minPause, Max: maxPause}
	}
	q.added++
	t.number = q.added
	q.tasks.Push(&t)
	q.fill()
	return true
}

func (q *RetryQueue) max() int { return cmp.Or(q.MaxBytes, defaultBytes) }

// Free returns the free bytes.
func (q *RetryQueue) Free() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.max() - q.bytes
}

// Left returns the number of tasks that have not ended.
func (q *RetryQueue) Left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.left
}

// Hurry shortens a pause to the minimum, since the store works. It is cheap if there is no pause.
func (q *RetryQueue) Hurry() {
	if q.resting.Load() {
		q.wakeAfter(minPause)
	}
}

// wakeAfter ends a pause when it has lasted for d, if it does not end before.
func (q *RetryQueue) wakeAfter(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resting.Load() && q.timer.Stop() {
		q.timer.Reset(time.Until(q.rested.Add(d)))
	}
}

// Drain retries all tasks at once, and waits until none is left. If ctx ends first, the error has
// their number, and the queue continues.
func (q *RetryQueue) Drain(ctx context.Context) error {
	q.wakeAfter(0)
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d unconfirmed requests left: %w", q.Left(), context.Cause(ctx))
	}
}

// fill starts tries up to the maximum. The caller holds mu.
func (q *RetryQueue) fill() {
	for !q.resting.Load() && q.running < q.width && len(q.tasks) > 0 {
		t := q.tasks.Pop()
		q.running++
		go q.try(t)
	}
}

func (q *RetryQueue) try(t *Task) {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	err := t.Try(ctx)
	cancel()
	closed := errors.Is(err, store.ErrClosed)
	over := err == nil || closed || !time.Now().Before(t.Until)
	if over && t.After != nil {
		t.After(err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	switch {
	case err == nil || closed:
		q.width = min(2*q.width, maxWidth)
		q.pause.Reset()
		if q.resting.Load() && q.timer.Stop() {
			q.resting.Store(false)
		}
	default:
		q.width = minWidth
		q.rest()
	}
	if over {
		q.bytes -= TaskBytes + t.Bytes
		if q.left--; q.left == 0 {
			close(q.idle)
			q.idle, q.tasks = nil, nil
			if q.resting.Load() && q.timer.Stop() {
				q.resting.Store(false)
			}
			return
		}
	} else {
		t.tries = min(t.tries+1, manyTries)
		q.added++
		t.number = q.added
		q.tasks.Push(t)
	}
	q.fill()
}

// rest starts a pause, unless there is one. The caller holds mu.
func (q *RetryQueue) rest() {
	if q.resting.Swap(true) {
		return
	}
	q.rested = time.Now()
	next := q.pause.Next()
	if q.timer == nil {
		q.timer = time.AfterFunc(next, q.wake)
		return
	}
	q.timer.Reset(next)
}

func (q *RetryQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.resting.Store(false)
	q.fill()
}

// Before implements heap.Item: the least often tried task is first.
func (t *Task) Before(other *Task) bool {
	return t.tries < other.tries || t.tries == other.tries && t.number < other.number
}

// Index implements heap.Item.
func (t *Task) Index() *int { return &t.index }
