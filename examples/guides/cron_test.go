package guides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// standby is how long other processes wait for the one that runs a job. They learn what became of it.
const standby = 10 * time.Minute

// runTick runs a job once for each tick, in one of all processes.
func runTick(ctx context.Context, ticks *guard.Guard, name string, tick time.Time, job func(context.Context) error) error {
	op := guard.Operation{Key: name + " " + tick.UTC().Format(time.RFC3339), Wait: standby}
	err := guard.Once(ctx, ticks, op, job)
	if errors.Is(err, guard.ErrInFlight) { // it takes longer than the standby
		return nil
	}
	return err
}

// tickOf returns the minute for which a schedule has fired. A timer fires late and, if the clock is
// corrected, early.
func tickOf(now time.Time) time.Time { return now.Round(time.Minute) }

// scheduled returns what a scheduler calls at each tick.
func scheduled(ctx context.Context, ticks *guard.Guard, name string, job func(context.Context) error) func() {
	return func() {
		if err := runTick(ctx, ticks, name, tickOf(time.Now()), job); err != nil {
			slog.ErrorContext(ctx, "a job failed", "job", name, "error", err)
		}
	}
}

// runAlone runs a job unless it runs already, in this process or another one.
func runAlone(ctx context.Context, jobs *lock.Locker, name string, job func(context.Context) error) error {
	lease, err := jobs.TryLock(ctx, name)
	if errors.Is(err, lock.ErrNotAcquired) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(job(lease.Context()), lease.Unlock(ctx))
}

// tickLocker is a gocron.Locker: of all schedulers, one runs the job of a tick.
type tickLocker struct{ ticks *guard.Guard }

var errRan = errors.New("the job of this tick has run")

func (l tickLocker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	op := guard.Operation{Key: name + " " + tickOf(time.Now()).UTC().Format(time.RFC3339)}
	attempt, _, err := l.ticks.Begin(ctx, op)
	if err == nil && attempt == nil {
		err = errRan
	}
	return tickLock{attempt}, err
}

type tickLock struct{ attempt *guard.Attempt }

func (l tickLock) Unlock(ctx context.Context) error { return l.attempt.Complete(ctx, guard.Result{}) }

// The invoices of a day are sent once, by one of three processes.
func Example_oncePerTick() {
	store := memstore.New() // or redisstore.New(client), for several processes
	defer store.Close()
	tick := time.Date(2026, time.June, 1, 3, 0, 0, 0, time.UTC)
	var processes sync.WaitGroup
	for range 3 {
		processes.Go(func() {
			ticks, err := guard.New(store, "ticks")
			if err != nil {
				panic(err)
			}
			err = runTick(context.Background(), ticks, "invoices", tick, func(context.Context) error {
				fmt.Println("the invoices are sent")
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	processes.Wait()
	// Output: the invoices are sent
}

func TestTickOf(t *testing.T) {
	tick := time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC) // noon
	for _, off := range []time.Duration{-time.Second, -time.Millisecond, 0, time.Millisecond, 20 * time.Second} {
		if got := tickOf(tick.Add(off)); !got.Equal(tick) {
			t.Errorf("what fires at %v belongs to %v", tick.Add(off), got)
		}
	}
}

// Two processes whose clocks differ by more than the job takes: a lock is free again for the second.
func TestJobsBesideEachOther(t *testing.T) {
	const slow, takes = 200 * time.Millisecond, 50 * time.Millisecond
	type runner func(tick time.Time, job func(context.Context) error) error
	for name, c := range map[string]struct {
		process func(t *testing.T, store *memstore.Store) runner
		want    int32
	}{
		"once per tick": {func(t *testing.T, store *memstore.Store) runner {
			ticks := must(guard.New(store, "ticks"))
			return func(tick time.Time, job func(context.Context) error) error {
				return runTick(t.Context(), ticks, "job", tick, job)
			}
		}, 3},
		"alone": {func(t *testing.T, store *memstore.Store) runner {
			jobs := must(lock.New(store, "jobs"))
			return func(_ time.Time, job func(context.Context) error) error {
				return runAlone(t.Context(), jobs, "job", job)
			}
		}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				defer store.Close()
				time.Sleep(time.Second) // past the minute, by either clock
				var runs atomic.Int32
				var processes sync.WaitGroup
				for _, behind := range []time.Duration{0, slow} {
					clock := func() time.Time { return time.Now().Add(-behind) }
					run := c.process(t, store)
					processes.Go(func() {
						for range 3 {
							now := clock()
							time.Sleep(now.Truncate(time.Minute).Add(time.Minute).Sub(now))
							err := run(tickOf(clock()), func(context.Context) error {
								runs.Add(1)
								time.Sleep(takes)
								return nil
							})
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				processes.Wait()
				if n := runs.Load(); n != c.want {
					t.Errorf("%d runs of 3 ticks, want %d", n, c.want)
				}
			})
		})
	}
}

// What the processes that wait learn, when the one that runs a job dies, or the job fails.
func TestTickOfADeadProcess(t *testing.T) {
	died := errors.New("died")
	for name, c := range map[string]struct {
		opts   []guard.Option
		end    error // of the first run; nil if its process dies
		runs   int32
		want   error // of the second process
		within time.Duration
	}{
		"died":              {nil, nil, 1, guard.ErrOutcomeUnknown, 31 * time.Second},
		"failed":            {nil, died, 1, guard.ErrOutcomeUnknown, 2 * time.Second},
		"died, may rerun":   {[]guard.Option{guard.WithRerun()}, nil, 2, nil, 31 * time.Second},
		"failed, may rerun": {[]guard.Option{guard.WithRerun()}, died, 2, nil, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := memstore.New()
				defer shared.Close()
				first, second := storetest.NewFaulty(shared), storetest.NewFaulty(shared)
				var runs atomic.Int32
				tick := time.Now()
				began, over := make(chan struct{}), make(chan struct{})
				var one sync.WaitGroup
				one.Go(func() {
					ticks := must(guard.New(first, "ticks", c.opts...))
					_ = runTick(t.Context(), ticks, "job", tick, func(context.Context) error {
						runs.Add(1)
						close(began)
						time.Sleep(time.Second)
						if c.end != nil {
							return c.end
						}
						first.Break(storetest.Any, storetest.Down) // nothing of the process reaches the store any more
						<-over
						return died
					})
				})
				<-began
				ticks := must(guard.New(second, "ticks", c.opts...))
				start := time.Now()
				err := runTick(t.Context(), ticks, "job", tick, func(context.Context) error {
					runs.Add(1)
					return nil
				})
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || runs.Load() != c.runs {
					t.Errorf("%v after %d runs; want %v after %d", err, runs.Load(), c.want, c.runs)
				}
				if took := time.Since(start); took > c.within {
					t.Errorf("it took %v, want %v", took, c.within)
				}
				close(over)
				one.Wait()
				first.Mend(storetest.Any)
			})
		})
	}
}

// Two processes with a scheduler each.
func TestSchedulers(t *testing.T) {
	type scheduler func(ctx context.Context, t *testing.T, ticks *guard.Guard, sendReports func(context.Context) error) (stop func())
	for name, schedule := range map[string]scheduler{
		"robfig/cron": func(ctx context.Context, t *testing.T, ticks *guard.Guard, sendReports func(context.Context) error) func() {
			c := cron.New()
			_, err := c.AddFunc("*/5 * * * *", scheduled(ctx, ticks, "reports", sendReports))
			if err != nil {
				t.Fatal(err)
			}
			c.Start()
			return func() { <-c.Stop().Done() }
		},
		"gocron": func(ctx context.Context, t *testing.T, ticks *guard.Guard, sendReports func(context.Context) error) func() {
			s, err := gocron.NewScheduler()
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(scheduled(ctx, ticks, "reports", sendReports)))
			if err != nil {
				t.Fatal(err)
			}
			s.Start()
			return func() { _ = s.Shutdown() }
		},
		"gocron's Locker": func(ctx context.Context, t *testing.T, ticks *guard.Guard, sendReports func(context.Context) error) func() {
			s, err := gocron.NewScheduler(gocron.WithDistributedLocker(tickLocker{ticks}))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(sendReports),
				gocron.WithName("reports"), gocron.WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			s.Start()
			return func() { _ = s.Shutdown() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				defer store.Close()
				var mu sync.Mutex
				var runs []time.Time
				var stops []func()
				for range 2 {
					stops = append(stops, schedule(t.Context(), t, must(guard.New(store, "ticks")), func(context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						runs = append(runs, time.Now())
						return nil
					}))
				}
				start := time.Now()
				time.Sleep(16 * time.Minute)
				for _, stop := range stops {
					stop()
				}
				synctest.Wait()
				want := []time.Time{start.Add(5 * time.Minute), start.Add(10 * time.Minute), start.Add(15 * time.Minute)}
				if !slices.EqualFunc(runs, want, func(a, b time.Time) bool { return tickOf(a).Equal(b) }) {
					t.Errorf("runs at %v, want %v", runs, want)
				}
			})
		})
	}
}
