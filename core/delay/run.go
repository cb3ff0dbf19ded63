package delay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// Run takes tasks that are due, and calls fn for each, for up to n at a time, until ctx ends or the
// queue is closed. Then it waits until all calls have returned, and returns the context's error, or
// [ErrClosed]. n is at least 1. Run may be called more than once, and in many processes, which
// share the tasks.
//
// The context of fn ends when the worker must stop: see [Task.Context]. The result of fn settles
// the task, unless fn has settled it by a method of the task:
//   - nil: the task is done;
//   - an error that [Again] or [Bury] has made, or that wraps one: as that says;
//   - another error: the task runs again after the back-off ([WithBackoff]), or is buried after its
//     last attempt ([WithAttempts]);
//   - an error, when ctx has ended or the queue is closed: the task is due at once, for others, and
//     the attempt does not count.
//
// A panic of fn counts as an attempt that has failed, also when ctx has ended; when the other calls
// have returned, Run panics with its value and stack. So it does if the text of an error panics,
// after the task was given back. The end of fn's goroutine by runtime.Goexit counts likewise, and
// Run continues.
//
// A task that is damaged, or whose workers have died in each of its attempts, is buried without a
// call of fn.
//
// While the store does not reply, or refuses the calls (store.ErrUnavailable), Run tries again,
// with pauses of up to 2 s, and logs it. It returns other errors of the store.
func (q *Queue) Run(ctx context.Context, n int, fn func(ctx context.Context, t *Task) error) error {
	switch {
	case n < 1:
		return fmt.Errorf("delay: Run: %d calls at a time, at least 1 is needed", n)
	case fn == nil:
		return errors.New("delay: Run: nil function")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := workers{queue: q, fn: fn, stop: cancel, places: make(chan struct{}, n)}
	err := w.work(ctx)
	cancel()
	w.calls.Wait()
	if w.panicked != nil {
		panic(w.panicked)
	}
	return err
}

// workers are the calls of a Run.
type workers struct {
	queue  *Queue
	fn     func(context.Context, *Task) error
	stop   context.CancelFunc
	places chan struct{} // one for each call
	calls  sync.WaitGroup

	mu       sync.Mutex
	panicked any
}

func (w *workers) work(ctx context.Context) error {
	t := newTaker(w.queue)
	for {
		free := w.reserve(ctx)
		tasks, err := t.take(ctx, free)
		for range free - len(tasks) {
			<-w.places
		}
		for _, task := range tasks {
			w.calls.Go(func() {
				defer func() { <-w.places }()
				w.run(ctx, task)
			})
		}
		if err == nil {
			err = t.wait(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// reserve takes all free places, and waits for one if there is none. It returns their number, which
// is zero if ctx has ended.
func (w *workers) reserve(ctx context.Context) (free int) {
	select {
	case w.places <- struct{}{}:
	case <-ctx.Done():
		return 0
	case <-w.queue.closing.Done():
		return 0
	}
	for free = 1; free < store.MaxTaken; free++ {
		select {
		case w.places <- struct{}{}:
		default:
			return free
		}
	}
	return free
}

// run calls the function, and settles the task, also if the function panics or ends its goroutine.
func (w *workers) run(ctx context.Context, t *Task) {
	if t.instead != nil {
		t.settleInstead()
		return
	}
	err, returned := errors.New("delay: the function ended its goroutine"), false
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("delay: the function panicked: %v", value)
			w.panics(fmt.Sprintf("%v\n\n%s", err, debug.Stack()))
		}
		if !t.settled.Load() {
			w.settle(ctx, t, err, returned)
		}
	}()
	err = w.fn(t.ctx, t)
	returned = true
}

// settle settles a task whose function has ended, also if that of WithBackoff, or the text of the
// error, panics or ends its goroutine.
func (w *workers) settle(ctx context.Context, t *Task, err error, returned bool) {
	req := store.SettleTaskRequest{How: store.TaskAgain, After: usualBackoff(t.Attempt())}
	defer func() {
		if value := recover(); value != nil {
			const what = "delay: the back-off, or the text of an error, panicked"
			w.panics(fmt.Sprintf("%s: %v\n\n%s", what, value, debug.Stack()))
		}
		_ = t.settle(t.ctx, req) // the telemetry reports an error
	}()
	req = w.settlementOf(ctx, t, err, returned)
}

// panics stops the workers, and keeps the text with which Run panics.
func (w *workers) panics(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.panicked == nil {
		w.panicked = text
	}
	w.stop()
}

// settlementOf returns how a task is settled whose function has ended with an error, or nil.
func (w *workers) settlementOf(ctx context.Context, t *Task, err error, returned bool) store.SettleTaskRequest {
	var (
		again *againError
		bury  *buryError
	)
	switch {
	case err == nil:
		return store.SettleTaskRequest{How: store.TaskDone}
	case errors.As(err, &again):
		return store.SettleTaskRequest{How: store.TaskAgain, After: again.after, Uncounted: true}
	case errors.As(err, &bury):
		return t.burial(bury.err.Error())
	case returned && (ctx.Err() != nil || w.queue.closing.Err() != nil):
		return store.SettleTaskRequest{How: store.TaskAgain, Uncounted: true}
	case t.Attempt() >= w.queue.config.attempts:
		return t.burial(err.Error())
	}
	after := w.queue.config.backoff(t.Attempt())
	return store.SettleTaskRequest{How: store.TaskAgain, After: min(max(after, 0), store.MaxTaskDelay)}
}

// Take waits until a task is due, and takes it, for loops of the caller's own: most callers want
// [Queue.Run], which takes and settles several in a call of the store. The task's context ends with
// ctx. The caller settles the task; until then its lease is renewed.
//
// It returns the context's error, [ErrClosed], or one that matches store.ErrUnavailable: the store
// has not replied, or refuses the call. A task that may not run is buried in the background.
func (q *Queue) Take(ctx context.Context) (*Task, error) {
	t := newTaker(q)
	t.once = true
	for {
		tasks, err := t.take(ctx, 1)
		for _, task := range tasks {
			if task.instead == nil {
				return task, nil
			}
			go task.settleInstead()
		}
		if err == nil {
			err = t.wait(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
}

// taker takes tasks.
type taker struct {
	queue *Queue
	once  bool // an outage is an error
	reply store.TakeTasksReply
	down  bool // the store has not replied
	pause backoff.Growing
}

func newTaker(q *Queue) *taker {
	return &taker{queue: q, pause: backoff.Growing{Min: 50 * time.Millisecond, Max: 2 * time.Second}}
}

// Processes that wait for the same task take at different times, so that most takes find it taken.
const (
	spreadEach = 2 * time.Millisecond
	spreadMost = 20 * time.Millisecond
)

// take takes up to n tasks. Tasks that may not run have a settlement instead, as do all of a take
// that ends after the context or the queue.
func (t *taker) take(ctx context.Context, n int) ([]*Task, error) {
	q := t.queue
	if err := t.over(ctx); err != nil {
		return nil, err
	}
	owner := newID()
	reply, err := q.store.TakeTasks(ctx, store.TakeTasksRequest{
		Queue: q.name, Owner: owner, Max: n, Lease: q.config.lease, Holder: q.config.holder,
	})
	err = t.failed(ctx, err)
	if err == nil && !t.down {
		t.reply = reply
	}
	tasks := make([]*Task, len(reply.Tasks))
	for i, taken := range reply.Tasks {
		tasks[i] = q.begin(ctx, reply.Sent, taken, owner)
		if err != nil {
			tasks[i].instead = &store.SettleTaskRequest{How: store.TaskAgain, Uncounted: true}
		}
	}
	return tasks, err
}

// wait waits until a task may be due, or the queue is closed.
func (t *taker) wait(ctx context.Context) error {
	waiting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(t.queue.closing, end)()
	if t.down {
		backoff.Sleep(waiting, t.pause.Next())
		return t.over(ctx)
	}
	next, idle := t.reply.Next, t.reply.Idle
	if next == 0 {
		return nil
	}
	err := t.queue.store.AwaitTasks(waiting, t.queue.name, next)
	if err = t.failed(ctx, err); err != nil {
		return err
	}
	if next > 0 && idle > 0 && time.Since(t.reply.Sent) >= next { // by the clock, as others
		spread := min(time.Duration(idle)*spreadEach, spreadMost)
		backoff.Sleep(waiting, rand.N(spread)) //nolint:gosec // spreads takes; no secret
	}
	return nil
}

// failed returns the error that ends the taking, if there is one. After an outage the next wait is
// a pause.
func (t *taker) failed(ctx context.Context, err error) error {
	t.down = false
	if over := t.over(ctx); over != nil {
		return over
	}
	t.queue.telemetry.Taken(ctx, err)
	switch {
	case err == nil:
		t.pause.Reset()
		return nil
	case t.once || !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrClosed):
		return err
	}
	t.down = true
	return nil
}

// over returns the error of a context that has ended, or of a queue that is closed.
func (t *taker) over(ctx context.Context) error {
	if t.queue.closing.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}
