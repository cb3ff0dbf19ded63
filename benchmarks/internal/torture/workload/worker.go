package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Variable marks a process as a worker.
const Variable = "LOCKKEEPER_TORTURE_WORKER"

// Job is the first line of JSON on a worker's standard input. The worker works until the input is
// closed, and writes its history to its standard output. Later lines are Orders.
type Job struct {
	Name  string
	Seed  uint64
	Store Address
	Bug   Bug
	// Subjects is a regular expression of the names of those to work with; empty for all.
	Subjects string
}

// Main works, and exits, if this process is a worker. In others it returns at once. A program calls
// it before everything else.
func Main() {
	if os.Getenv(Variable) == "" {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "torture worker: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(in io.Reader, out io.Writer) error {
	orders := json.NewDecoder(in)
	var job Job
	if err := orders.Decode(&job); err != nil {
		return err
	}
	Quiet()
	st, stop, err := open(job)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &worker{job: job, leases: st, history: history.NewWriter(out), orders: make(chan Order), ended: ctx}
	w.store, _ = st.(store.Store)
	w.draining, w.drain = context.WithCancel(ctx)
	go func() { // the other end is closed to end this process, also if it has died
		defer cancel()
		for {
			var o Order
			if orders.Decode(&o) != nil {
				return
			}
			w.orders <- o
		}
	}()
	if err := w.work(ctx); err != nil {
		return err
	}
	last, done := context.WithTimeout(context.Background(), 3*time.Second)
	defer done()
	_ = st.Shutdown(last) // it fails where the fault has not been mended
	return nil
}

// Quiet ends the logging of the libraries of this process: outages are what this is about.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	redis.SetLogger(quiet{})
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// worker is this process.
type worker struct {
	job     Job
	leases  store.Leases
	store   store.Store // nil if it has leases only
	history *history.Writer
	orders  chan Order
	ended   context.Context // ends with the worker

	draining context.Context // ends when no further tasks are to be put
	drain    context.CancelFunc
}

// work runs the goroutines of all subjects until ctx ends.
func (w *worker) work(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	subjects, err := SubjectsOf(w.job.Store.Kind, w.job.Subjects)
	if err != nil {
		return err
	}
	for _, s := range subjects {
		m, err := w.mechanism(s)
		if err != nil {
			return err
		}
		for i := range s.crowd {
			a := &actor{
				worker: w, Subject: s, mechanism: m, ctx: ctx, number: i,
				rand: rand.New(rand.NewPCG(w.job.Seed, uint64(len(s.Name)*100+i))), //nolint:gosec // no secret
			}
			running.Go(func() {
				for ctx.Err() == nil {
					s.run(a)
					a.pause(15 * time.Millisecond)
				}
			})
		}
	}
	return w.obey(ctx)
}

// mechanism is what a subject calls: one of them.
type mechanism struct {
	locks      *lock.Locker
	semaphores []*semaphore.Semaphore // one for each tier
	limiter    *tokenbucket.Limiter
	guard      *guard.Guard
	queue      *delay.Queue
	pool       *pgxpool.Pool // of the application, for effects
}

func (w *worker) mechanism(s Subject) (m mechanism, err error) {
	switch s.Kind {
	case Lock:
		m.locks, err = lock.New(w.leases, s.Name, append(s.lock, lock.WithTTL(s.TTL))...)
	case Semaphore:
		var sem *semaphore.Semaphore
		sem, err = semaphore.New(w.leases, s.Name, w.job.Bug.capacity(int(s.Capacity)), semaphore.WithTTL(s.TTL))
		for _, tier := range tiers {
			if err != nil || tier.reserve > 0 && w.job.Store.Kind == ZooKeeper { // which has no reserves
				break
			}
			var of *semaphore.Semaphore
			of, err = sem.With(tier.options...)
			m.semaphores = append(m.semaphores, of)
		}
	case Bucket:
		var options []tokenbucket.Option
		if s.Block > 0 {
			options = append(options, tokenbucket.WithLease(s.Block))
		}
		m.limiter, err = tokenbucket.New(w.store, s.Name, s.plan(w.job.Bug), options...)
	case Guard:
		m.guard, err = s.newGuard(w.store)
	case Once:
		// A store of its own: that of the others is full when commits do not end.
		var own keeper
		var stop func()
		if own, stop, err = open(w.job); err != nil {
			return m, err
		}
		context.AfterFunc(w.ended, stop)
		if m.guard, err = guard.New(own.(store.Store), s.Name); err == nil {
			m.pool, err = w.connections()
		}
	case Task:
		m.queue, err = w.newQueue(s)
		if err == nil && s.Effect == Guarded {
			m.guard, err = s.newGuard(w.store)
		}
		if err == nil && s.Effect == Transacted {
			m.pool, err = w.connections()
		}
	}
	return m, err
}

// newGuard returns the guard of a subject.
func (s *Subject) newGuard(st store.Store) (*guard.Guard, error) {
	options := []guard.Option{guard.WithTTL(s.TTL)}
	if s.Rerun {
		options = append(options, guard.WithRerun())
	}
	return guard.New(st, s.Name, options...)
}

// connections returns connections of the application, for the life of the process.
func (w *worker) connections() (*pgxpool.Pool, error) {
	return pgxpool.New(context.Background(), pgserver.DSN(w.job.Store.Addrs[0], User))
}

// actor is one goroutine of a worker, which uses one subject.
type actor struct {
	*worker
	Subject
	mechanism
	ctx    context.Context // ends with the run
	call   context.Context // of the last call
	rand   *rand.Rand
	again  string // the key of an operation to be requested again
	number int    // among those of the subject in this worker
}

// chance reports true n times in a hundred.
func (a *actor) chance(n int) bool { return a.rand.IntN(100) < n }

// upTo returns a random time below d.
func (a *actor) upTo(d time.Duration) time.Duration { return time.Duration(a.rand.Int64N(int64(d))) }

// pause waits for a random time up to d, or for the end of the run.
func (a *actor) pause(d time.Duration) { sleep(a.ctx, a.upTo(d)) }

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// patience returns a context for one call: most wait for seconds, some give up.
func (a *actor) patience() (context.Context, context.CancelFunc) {
	d := 4 * time.Second
	if a.chance(20) {
		d = time.Millisecond + a.upTo(400*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(a.ctx, d)
	a.call = ctx
	return ctx, cancel
}

// alone returns the context of a call that waits for as long as it takes.
func (a *actor) alone() context.Context {
	a.call = a.ctx
	return a.ctx
}

// key returns one of the keys of the subject. A store in memory is its process's own, and so are
// its keys.
func (a *actor) key(i int) string {
	if a.job.Store.Kind == "memory" {
		return a.job.Name + "/" + strconv.Itoa(i)
	}
	return strconv.Itoa(i)
}

// called begins a call, and returns the function that adds its later events.
func (a *actor) called(key string, weight, reserve int64, waits bool) func(history.Event) {
	return a.begun(history.Event{Step: history.Called, Key: key, N: weight, Reserve: reserve, Waits: waits})
}

// begun begins a call with an event, and returns the function that adds its later events.
func (a *actor) begun(e history.Event) func(history.Event) {
	e.Call, e.Subject = a.history.Next(), a.Name
	a.history.Write(e)
	return func(later history.Event) {
		later.Call = e.Call
		a.history.Write(later)
	}
}

// failed adds the end of a call without a hold, and waits a little where it would only fail again.
func (a *actor) failed(add func(history.Event), err error) {
	add(history.Event{Step: history.Failed, Text: a.class(err)})
	if errors.Is(err, store.ErrUnavailable) {
		a.pause(100 * time.Millisecond)
	}
}

// class is what the error of a call means.
func (a *actor) class(err error) string {
	switch {
	case errors.Is(err, store.ErrClosed):
		return "closed"
	case errors.Is(err, store.ErrFull), errors.Is(err, delay.ErrFull):
		return "full"
	case errors.Is(err, store.ErrMisconfigured):
		return history.Misconfigured
	case errors.Is(err, store.ErrUnavailable) && !store.Down(err):
		return history.Overloaded
	case errors.Is(err, store.ErrUnavailable) && a.call.Err() != nil:
		return "left by its caller"
	case errors.Is(err, store.ErrUnconfirmed):
		return history.Unconfirmed
	case errors.Is(err, store.ErrUnavailable):
		return history.Unavailable
	case errors.Is(err, lock.ErrNotAcquired), errors.Is(err, semaphore.ErrNotAcquired), errors.Is(err, guard.ErrInFlight):
		return history.Taken
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return history.Taken
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return "outcome unknown"
	case errors.Is(err, guard.ErrNotRetained):
		return "not retained"
	case errors.Is(err, lock.ErrLost), errors.Is(err, semaphore.ErrLost), errors.Is(err, guard.ErrLost):
		return "lost"
	case errors.Is(err, lock.ErrExpired), errors.Is(err, semaphore.ErrExpired), errors.Is(err, guard.ErrExpired):
		return "expired"
	}
	return err.Error()
}

// wrong adds what this worker has found to be wrong.
func (a *actor) wrong(format string, args ...any) {
	a.history.Write(history.Event{Step: history.Wrong, Text: fmt.Sprintf(a.Name+": "+format, args...)})
}
