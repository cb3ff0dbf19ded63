package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Effect is what makes the effect of a task happen once.
type Effect string

const (
	// Guarded effects happen in an operation whose key is the task's ID.
	Guarded Effect = "guarded"
	// Transacted effects are rows of [Effects], in the transaction that ends the task. Tasks are put
	// in transactions too: a put that is repeated after its task has run would have it run again.
	Transacted Effect = "transacted"
)

// newQueue returns the queue of a subject. Its tasks are not buried for attempts that faults have
// ended.
func (w *worker) newQueue(s Subject) (*delay.Queue, error) {
	return delay.New(w.store, s.Name, delay.WithLease(s.TTL), delay.WithAttempts(10_000),
		delay.WithBackoff(func(int) time.Duration { return 100 * time.Millisecond }))
}

// tasks is what the goroutines of a subject do: the first one runs tasks, and the others put them
// until the last fault has ended.
func (a *actor) tasks() {
	const atOnce = 8
	switch {
	case a.number == 0:
		_ = a.queue.Run(a.ctx, atOnce, a.runTask) // until the end, or an outage's
	case a.draining.Err() != nil:
		sleep(a.ctx, time.Hour)
	default:
		a.put(a)
	}
}

// newTask returns the name of a new task, and of its key where that has no other one.
func (a *actor) newTask() string { return a.job.Name + "." + strconv.FormatInt(a.history.Next(), 10) }

// delay is in how long a task is due that is to be due after d.
func (b Bug) delay(d time.Duration) time.Duration {
	if b == Hasty {
		return d / 2
	}
	return d
}

// puts puts a task, and reports whether that is confirmed.
func (a *actor) puts(ctx context.Context, key, name string, after time.Duration) bool {
	add := a.begun(history.Event{Step: history.Putting, Key: key, N: int64(after), Task: name})
	put, err := a.queue.Put(ctx, key, []byte(name), a.job.Bug.delay(after))
	if err != nil {
		a.failed(add, err)
		return false
	}
	add(history.Event{Step: history.Answered, Text: string(put.Outcome)})
	return true
}

// cancels cancels the task of a key, again if it was not confirmed, as the documentation has it.
func (a *actor) cancels(ctx context.Context, key string) {
	for ctx.Err() == nil && a.draining.Err() == nil {
		add := a.begun(history.Event{Step: history.Cancelling, Key: key})
		outcome, err := a.queue.Cancel(ctx, key)
		if err == nil {
			add(history.Event{Step: history.Answered, Text: string(outcome)})
			return
		}
		a.failed(add, err)
	}
}

// putOne puts a task under a key of its own.
func (a *actor) putOne() {
	ctx, cancel := a.patience()
	defer cancel()
	name := a.newTask()
	a.puts(ctx, name, name, a.upTo(2*time.Second))
}

// race puts a task, and cancels it when it is due, or shortly before or after that.
func (a *actor) race() {
	name, after := a.newTask(), 20*time.Millisecond+a.upTo(30*time.Millisecond)
	if a.puts(a.alone(), name, name, after) {
		sleep(a.ctx, after+a.upTo(6*time.Millisecond)-4*time.Millisecond)
	}
	a.cancels(a.ctx, name)
}

// putMore puts a task to a key to which others put as well, for two seconds, and whose tasks run.
func (a *actor) putMore() {
	ctx, cancel := a.patience()
	defer cancel()
	const each = 2 * time.Second
	key := a.key(int(history.Now()/int64(each))*a.Keys + a.rand.IntN(a.Keys))
	if a.chance(5) {
		a.cancels(ctx, key)
		return
	}
	a.puts(ctx, key, a.newTask(), a.upTo(50*time.Millisecond))
}

// putIn puts a task in a transaction, which is rolled back now and then.
func (a *actor) putIn() {
	ctx, cancel := a.patience()
	defer cancel()
	name, after := a.newTask(), a.upTo(time.Second)
	add := a.begun(history.Event{Step: history.Putting, Key: name, N: int64(after), Task: name})
	err := pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		_, err := pgstore.PutTask(ctx, tx, a.queue, name, []byte(name), a.job.Bug.delay(after))
		if err == nil && a.chance(5) {
			err = errChanged
		}
		return err
	})
	switch {
	case errors.Is(err, errChanged):
		add(history.Event{Step: history.Answered, Text: history.RolledBack})
	case err != nil:
		add(history.Event{Step: history.Failed, Text: "statement failed"})
		a.pause(100 * time.Millisecond)
	default:
		add(history.Event{Step: history.Answered, Text: string(delay.Created)})
	}
}

var errFailed = errors.New("failed")

// runTask runs a task. Like most code it does not look whether its lease is still valid.
func (a *actor) runTask(ctx context.Context, t *delay.Task) error {
	own := *a                                                       // several run at a time
	own.rand = rand.New(rand.NewPCG(uint64(t.Fence()), a.job.Seed)) //nolint:gosec // no secret; not negative
	own.call = ctx
	if t.Late() < 0 {
		a.wrong("a task that was due in %v", -t.Late())
	}
	// It was taken within the lease, and at any time of it.
	h := held{own.begun(history.Event{
		At: history.Now() - int64(a.TTL), Step: history.Called, Key: t.Key(), N: Exclusive, Task: string(t.Payload()),
	}), t.Fence()}
	granted(t, h)
	own.work(t, h)
	err := own.effect(ctx, t, h)
	releasing(t, false, h)
	return err
}

// effect is what the function of a task does after a part of its work.
func (a *actor) effect(ctx context.Context, t *delay.Task, h held) error {
	switch n := a.rand.IntN(100); {
	case n < 3:
		return errFailed
	case n < 5:
		return delay.Again(a.upTo(200 * time.Millisecond))
	case n == 5 && a.Effect != "":
		return delay.Bury(errFailed)
	}
	switch a.Effect {
	case Guarded:
		return a.guarded(ctx, t, h)
	case Transacted:
		return a.transacted(ctx, t)
	}
	h.add(history.Event{Step: history.Effect, Text: string(t.Payload())})
	return nil
}

// guarded has the effect of a task in an operation.
func (a *actor) guarded(ctx context.Context, t *delay.Task, h held) error {
	attempt, result, err := a.guard.Begin(ctx, guard.Operation{Key: t.ID(), Retention: time.Hour})
	switch action, after := guard.Disposition(err); {
	case result != nil:
		return nil
	case action == guard.DeadLetter:
		return delay.Bury(err)
	case action == guard.RetryLater && after > 0:
		return delay.Again(after)
	case err != nil:
		return err
	}
	a.work(attempt)
	h.add(history.Event{Step: history.Effect, Text: string(t.Payload())})
	if err := attempt.Complete(ctx, guard.Result{}); err == nil {
		h.add(history.Event{Step: history.Recorded, Text: string(t.Payload())})
	}
	return nil
}

// transacted has the effect of a task in the transaction that ends it.
func (a *actor) transacted(ctx context.Context, t *delay.Task) error {
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+Effects+" (subject, operation, text) VALUES ($1, $2, $3)", a.Name, t.Key(), string(t.Payload()))
		if err == nil {
			err = pgstore.Finish(ctx, tx, t)
		}
		if err == nil && a.chance(3) { // the row goes with the end of the task
			err = errChanged
		}
		return err
	})
}

// Drain waits until no task of some subjects waits or runs, and returns those that are buried. The
// job is that of a worker.
func Drain(ctx context.Context, job Job, subjects []Subject) (buried []history.Event, err error) {
	st, stop, err := open(job)
	if err != nil {
		return nil, err
	}
	defer stop()
	w := &worker{job: job, store: st.(store.Store)}
	for _, s := range subjects {
		if s.Kind != Task {
			continue
		}
		q, err := w.newQueue(s)
		if err != nil {
			return nil, err
		}
		if err := drained(ctx, q); err != nil {
			return nil, err
		}
		keys, err := buriedKeys(ctx, q)
		for err != nil && ctx.Err() == nil { // on a busy machine
			sleep(ctx, 200*time.Millisecond)
			keys, err = buriedKeys(ctx, q)
		}
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			buried = append(buried, history.Event{Step: history.Buried, Subject: s.Name, Key: key})
		}
	}
	return buried, nil
}

func buriedKeys(ctx context.Context, q *delay.Queue) (keys []string, err error) {
	for state, err := range q.Buried(ctx) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, state.Key)
	}
	return keys, nil
}

func drained(ctx context.Context, q *delay.Queue) error {
	for {
		counts, err := q.Count(ctx)
		switch {
		case err == nil && counts.Waiting+counts.Running == 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %d tasks wait, and %d run: %w", q.Name(), counts.Waiting, counts.Running, context.Cause(ctx))
		}
		sleep(ctx, 200*time.Millisecond)
	}
}
