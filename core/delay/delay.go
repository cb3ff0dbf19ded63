// Package delay runs tasks later: one task at a time for each key, which can be moved, and
// cancelled with an answer that holds.
//
// The usual case is a time-out in business terms: an order that is not paid within 15 minutes is
// cancelled. The order's number is the key, Put starts the time-out, Cancel ends it, and a function
// that Run calls cancels the order. A timer proposes, and the data disposes: the function changes
// the order by a statement with its condition, such as WHERE status = 'unpaid', since it may run
// more than once, and at the same time as a payment.
package delay

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Queue is a queue of delayed tasks. Most callers want [Queue.Put] and [Queue.Cancel] where the
// application decides, and [Queue.Run] in the processes that do the work.
//
//   - A task runs when it is due by the store's clock, and not before.
//   - It runs at least once: until its function has returned nil, or until its attempts are used up.
//     Then it is buried: [Queue.Buried] lists it, and [Queue.Revive] makes it due again.
//   - At most one worker has the task of a key, as far as leases go: a worker that continues after
//     the end of its lease is stopped by the fence of its task, if the resource checks it.
//   - [Task.ID] is the same in all attempts at a task. A guard with it as its key makes the effect
//     happen once; on PostgreSQL, so does pgstore.Finish.
//
// Queues with the same name on the same store share their tasks, in one process as in several. All
// methods may be called concurrently.
//
// Close, and the store's Shutdown, end a queue: Put, Run and Take return ErrClosed from then on,
// and the contexts of running tasks end. Shutdown waits until their functions have returned, while
// their leases are renewed. A function that returns an error then gives its task back, which is due
// at once, and the attempt does not count.
type Queue struct {
	store  store.Delays
	name   string
	config config
	keeper *lease.Keeper[keptTask]
	// settlements are batched: workers that end at the same time share a call.
	settlements *background.BatchQueue[*settlement]
	running     background.Group // tasks that are not settled
	closing     context.Context  // ends with the queue
	close       context.CancelFunc
	detach      func() // from the store's Shutdown
	namesake    *namesake.Member
	telemetry   *telemetry.Delay
	leases      *telemetry.Leases

	mu    sync.Mutex
	tasks map[*Task]struct{} // that run
}

// New returns a queue that keeps its tasks in store, under name. Queues with the same name should
// have the same settings; different ones in this process are logged.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(st store.Delays, name string, opts ...Option) (*Queue, error) {
	if naming.IsNil(st) {
		return nil, errors.New("delay: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("delay: New: %w", err)
	}
	c := defaults()
	option.Apply(&c, opts)
	if err := c.check(); err != nil {
		return nil, err
	}
	q := &Queue{store: st, name: name, config: c, tasks: make(map[*Task]struct{})}
	q.closing, q.close = context.WithCancel(context.Background())
	q.keeper = lease.NewKeeper(q.renew)
	q.settlements = background.NewBatchQueue(q.send)
	q.detach = hooks.AtShutdown(q, st.AtShutdown, (*Queue).shutdown)
	q.namesake = namesake.Join(st, c.logger, "delay", name, c.settings())
	counter := q.namesake.Counter()
	q.telemetry = telemetry.NewDelay(c.providers, c.logger, ScopeName, name, counter)
	q.leases = telemetry.NewLeases(c.providers, c.logger, ScopeName, name, "delay", counter)
	namesake.LeaveWith(q, q.namesake)
	return q, nil
}

// Name returns the name that the queue was built with.
func (q *Queue) Name() string { return q.name }

// closeTimeout is the longest time for which Close waits for the functions of running tasks.
const closeTimeout = 5 * time.Second

// Close ends the queue. It waits up to 5 s until the functions of its running tasks have returned;
// its error has the number of functions that still run. Their leases are renewed until the store is
// closed; then they end, and other workers take the tasks. Close does not close the store.
func (q *Queue) Close() error {
	q.namesake.Leave()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := q.shutdown(ctx)
	if err == nil {
		q.detach()
	}
	return err
}

func (q *Queue) shutdown(ctx context.Context) error {
	q.close()
	q.mu.Lock()
	for t := range q.tasks {
		t.term.Stop(ErrClosed)
	}
	q.mu.Unlock()
	if err := q.running.Wait(ctx); err != nil {
		return fmt.Errorf("delay: %s: %d tasks are not settled: %w", q.name, q.running.Running(), context.Cause(ctx))
	}
	return nil
}

// Outcome is the outcome of a [Queue.Put].
type Outcome string

// The outcomes.
const (
	Created Outcome = "created" // the key had no task
	Moved   Outcome = "moved"   // the task takes the place of one that was waiting
	Follows Outcome = "follows" // the key's task runs, and this one begins after it
	Kept    Outcome = "kept"    // the key's task stays as it is: see [KeepFirst]
)

var outcomes = [...]Outcome{
	store.TaskCreated: Created, store.TaskMoved: Moved, store.TaskFollows: Follows, store.TaskKept: Kept,
}

// Put is the result of a [Queue.Put].
type Put struct {
	Outcome Outcome
	// Due is the time until the key's task is due: the requested delay, or the rest of that of the
	// task that was kept; zero if that runs.
	Due time.Duration
}

// PutOption is an optional setting of [Queue.Put].
type PutOption func(*putConfig)

type putConfig struct{ keep bool }

// KeepFirst leaves a task of the key as it is, also one that runs: the first put counts, not the
// last.
func KeepFirst() PutOption { return func(c *putConfig) { c.keep = true } }

// Put makes a task due after a delay of zero to 366 days. A key has one task:
//   - one that waits, also for another attempt, is replaced by the new one;
//   - one that runs is followed: the new task is due after its delay, and when the running one has
//     ended. A task that followed it before is replaced.
//
// A put whose reply is lost is repeated, which changes nothing if the first one has arrived. The
// error is
//   - [ErrInvalidKey], [ErrInvalidPayload] or [ErrInvalidDelay]: nothing was sent;
//   - [ErrFull] if the queue has its maximum of tasks ([WithMaxTasks]) and the key has none;
//   - [ErrClosed], or the context's; or
//   - one that matches store.ErrUnavailable, such as store.ErrFull of a store without room. If it
//     matches store.ErrUnconfirmed too, the task may have been put.
func (q *Queue) Put(
	ctx context.Context, key string, payload []byte, after time.Duration, opts ...PutOption,
) (Put, error) {
	return q.PutBy(ctx, key, payload, after, putRepeatedly, opts...)
}

// Step sends a request to the queue's store in place of a queue: see [Queue.PutBy],
// [Queue.CancelBy] and [Task.SettleBy].
type Step[Request, Reply any] func(ctx context.Context, st store.Delays, req Request) (Reply, error)

// PutBy is Put by a step of the caller's, such as a statement in a transaction: pgstore.PutTask
// calls it. step gets the queue's store, and the request that Put would send to it.
func (q *Queue) PutBy(
	ctx context.Context, key string, payload []byte, after time.Duration,
	step Step[store.PutTaskRequest, store.PutTaskReply], opts ...PutOption,
) (Put, error) {
	var c putConfig
	option.Apply(&c, opts)
	req := store.PutTaskRequest{
		Queue: q.name, Key: key, ID: newID(), Payload: packed(ctx, payload), After: after, Keep: c.keep,
		MaxTasks: q.config.maxTasks,
	}
	put, err := q.put(ctx, len(payload), &req, step)
	if errors.Is(err, ErrFull) {
		q.telemetry.Put(ctx, "full", nil)
	} else {
		q.telemetry.Put(ctx, string(put.Outcome), err)
	}
	return put, err
}

func (q *Queue) put(
	ctx context.Context, size int, req *store.PutTaskRequest, step Step[store.PutTaskRequest, store.PutTaskReply],
) (Put, error) {
	switch {
	case size > q.config.maxPayload:
		return Put{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalidPayload, size, q.config.maxPayload)
	case req.After < 0 || req.After > store.MaxTaskDelay:
		return Put{}, fmt.Errorf("%w: %v is not between 0 and 366 days", ErrInvalidDelay, req.After)
	}
	if err := q.accepts(ctx, req.Key); err != nil {
		return Put{}, err
	}
	reply, err := step(ctx, q.store, *req)
	switch {
	case err != nil:
		return Put{}, err
	case reply.Outcome == store.QueueFull:
		return Put{}, fmt.Errorf("%w: it has %d tasks", ErrFull, req.MaxTasks)
	}
	put := Put{Outcome: outcomes[reply.Outcome], Due: req.After}
	if put.Outcome == Kept {
		put.Due = reply.Due
	}
	return put, nil
}

// accepts returns the reason not to send a put: an invalid key, a queue that is closed, or a
// context that has ended.
func (q *Queue) accepts(ctx context.Context, key string) error {
	if err := naming.CheckKey(key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	if q.closing.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// Cancelled is the outcome of a [Queue.Cancel].
type Cancelled string

// The outcomes.
const (
	// Prevented means that no worker has had the task, and that none will.
	Prevented Cancelled = "prevented"
	// Ended means that the task will not run again. It waited for another attempt, or the lease of
	// its worker had ended, or it was buried, or the reply to its put was lost and the put repeated:
	// it may have had effects.
	Ended Cancelled = "ended"
	// Running means that a worker has the task, which is not stopped. No further attempt begins,
	// and the task that follows it is removed.
	Running Cancelled = "running"
	// Absent means that the key has no task: it is done, or was never put.
	Absent Cancelled = "absent"
)

var cancellations = [...]Cancelled{
	store.TaskAbsent: Absent, store.TaskPrevented: Prevented, store.TaskEnded: Ended, store.TaskRunning: Running,
}

// Cancel removes the task of a key, and the buried one. Its outcome says whether the task may have
// run; if it is [Running], the data decides. A cancel whose reply is lost is repeated, and has the
// outcome of the first. A queue that was closed still cancels.
//
// With an error, the outcome is empty. The error is [ErrInvalidKey], the context's, or one that
// matches store.ErrUnavailable. If it matches store.ErrUnconfirmed too, the task may have been
// cancelled.
func (q *Queue) Cancel(ctx context.Context, key string) (Cancelled, error) {
	return q.CancelBy(ctx, key, repeated(store.Delays.CancelTask))
}

// CancelBy is Cancel by a step of the caller's, such as a statement in a transaction:
// pgstore.CancelTask calls it.
func (q *Queue) CancelBy(
	ctx context.Context, key string, step Step[store.CancelTaskRequest, store.CancelOutcome],
) (Cancelled, error) {
	if err := naming.CheckKey(key); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	outcome, err := step(ctx, q.store, store.CancelTaskRequest{Queue: q.name, Key: key, ID: newID()})
	if err != nil {
		q.telemetry.Cancel(ctx, "", err)
		return "", err
	}
	q.telemetry.Cancel(ctx, string(cancellations[outcome]), nil)
	return cancellations[outcome], nil
}

// tries is the maximum number of times that a step is sent: it is repeated while its outcome is
// unknown.
const tries = 3

// repeated returns a step that calls a method of the store, and repeats it as again does.
func repeated[Request, Reply any](
	method func(store.Delays, context.Context, Request) (Reply, error),
) Step[Request, Reply] {
	return func(ctx context.Context, st store.Delays, req Request) (Reply, error) {
		return again(ctx, func() (Reply, error) { return method(st, ctx, req) })
	}
}

// putRepeatedly is PutTask, which it repeats until it is confirmed. A repeat says so: the task may
// have run since the first put.
func putRepeatedly(ctx context.Context, st store.Delays, req store.PutTaskRequest) (store.PutTaskReply, error) {
	return again(ctx, func() (store.PutTaskReply, error) {
		reply, err := st.PutTask(ctx, req)
		req.Repeated = true
		return reply, err
	})
}

// again runs a step, and repeats it with pauses while its outcome is unknown. The store recognises
// a repeat.
func again[T any](ctx context.Context, step func() (T, error)) (value T, err error) {
	pause := backoff.Growing{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	for n := 1; ; n++ {
		value, err = step()
		if !errors.Is(err, store.ErrUnconfirmed) || n == tries || !backoff.Sleep(ctx, pause.Next()) {
			return value, err
		}
	}
}

// newID returns 22 random characters of base64url.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return base64.RawURLEncoding.EncodeToString(id[:])
}
