package namesake_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// reading returns what the counter of a kind has, whose mechanism is the only one.
func reading(t *testing.T, st any, kind string) live.Reading {
	t.Helper()
	for _, g := range namesake.Members(st) {
		if g.Kind == kind {
			r, ok := g.Counter.Read()
			if !ok {
				t.Fatalf("the counter of %s is not started", kind)
			}
			return r
		}
	}
	t.Fatalf("no %s", kind)
	panic("unreachable")
}

type totals = [7]uint64 // passed, denied, failed, other, lost, unrenewed, denied by the candidate

// Every result of every mechanism is counted once, with the waiters and holds of the moment.
func TestCountersOfMechanisms(t *testing.T) {
	ctx := context.Background()
	for kind, use := range map[string]func(t *testing.T, st *memstore.Store, look func() live.Reading) totals{
		"rate_limit": func(t *testing.T, st *memstore.Store, look func() live.Reading) totals {
			l, err := tokenbucket.New(st, "x", tokenbucket.PerSecond(1).Burst(3),
				tokenbucket.WithCandidate(tokenbucket.PerSecond(1).Burst(1)))
			fatal(t, err)
			for range 5 {
				_, err := l.Allow(ctx, "key")
				fatal(t, err)
			}
			go func() { _ = l.Wait(ctx, "key") }()
			synctest.Wait()
			if r := look(); r.Waiting != 1 {
				t.Errorf("%d wait for tokens", r.Waiting)
			}
			time.Sleep(2 * time.Second)
			// The waiter was denied twice, alone and as the first of its queue.
			return totals{live.Passed: 4, live.Denied: 4, live.Candidate: 5}
		},
		"lock": func(t *testing.T, st *memstore.Store, look func() live.Reading) totals {
			l, err := lock.New(st, "x", lock.WithTTL(time.Minute))
			fatal(t, err)
			t.Cleanup(func() { _ = l.Close() })
			lease, err := l.Lock(ctx, "key")
			fatal(t, err)
			_, _ = l.TryLock(ctx, "key")
			leaves, leave := context.WithCancel(ctx)
			go func() { _, _ = l.Lock(leaves, "key") }()
			synctest.Wait()
			if r := look(); r.Waiting != 1 || r.Held != 1 {
				t.Errorf("%d wait, %d held", r.Waiting, r.Held)
			}
			leave()
			synctest.Wait()
			fatal(t, lease.Unlock(ctx))
			lease, err = l.Lock(ctx, "key")
			fatal(t, err)
			_, err = st.RevokeLease(ctx, store.LockKind+"x", "key", lease.Fence().Number)
			fatal(t, err)
			<-lease.Context().Done()
			return totals{live.Passed: 2, live.Denied: 1, live.Other: 1, live.Lost: 1}
		},
		"semaphore": func(t *testing.T, st *memstore.Store, look func() live.Reading) totals {
			s, err := semaphore.New(st, "x", 5)
			fatal(t, err)
			t.Cleanup(func() { _ = s.Close() })
			p, err := s.AcquireN(ctx, "key", 3)
			fatal(t, err)
			if r := look(); r.Held != 3 {
				t.Errorf("%d held", r.Held)
			}
			_, err = s.TryAcquireN(ctx, "key", 3)
			if err == nil {
				t.Error("6 of 5 permits")
			}
			fatal(t, p.Release(ctx))
			return totals{1, 1, 0, 0}
		},
		"idempotency": func(t *testing.T, st *memstore.Store, look func() live.Reading) totals {
			g, err := guard.New(st, "x")
			fatal(t, err)
			t.Cleanup(func() { _ = g.Close() })
			op := guard.Operation{Scope: "scope", Key: "key"}
			a, _, err := g.Begin(ctx, op)
			fatal(t, err)
			if r := look(); r.Held != 1 {
				t.Errorf("%d attempts run", r.Held)
			}
			_, _, _ = g.Begin(ctx, op)
			fatal(t, a.Complete(ctx, guard.Result{}))
			_, _, err = g.Begin(ctx, op)
			fatal(t, err)
			return totals{1, 1, 0, 1}
		},
		"delay": func(t *testing.T, st *memstore.Store, look func() live.Reading) totals {
			q, err := delay.New(st, "x", delay.WithAttempts(2))
			fatal(t, err)
			t.Cleanup(func() { _ = q.Close() })
			for _, key := range []string{"done", "buried"} {
				_, err := q.Put(ctx, key, nil, 0)
				fatal(t, err)
			}
			running, end := context.WithTimeout(ctx, time.Minute)
			defer end()
			_ = q.Run(running, 2, func(_ context.Context, task *delay.Task) error {
				time.Sleep(time.Second)
				if r := look(); r.Held == 0 {
					t.Error("no task runs")
				}
				if task.Key() == "buried" {
					return errors.New("no")
				}
				return nil
			})
			return totals{1, 0, 1, 1}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				defer func() { _ = st.Close() }()
				stop := namesake.Watch(st)
				defer stop()
				look := func() live.Reading { return reading(t, st, kind) }
				want := use(t, st, look)
				r := look()
				if r.Totals != want || r.Waiting != 0 || r.Held != 0 {
					t.Errorf("counted %v, with %d waiting and %d held; want %v and none", r.Totals, r.Waiting, r.Held, want)
				}
				sum := totals{}
				for _, slot := range r.Slots {
					for i, n := range slot.Counts {
						sum[i] += uint64(n)
					}
				}
				if sum != want {
					t.Errorf("the slots have %v", sum)
				}
				if _, ok := live.Percentile(0.5, r.Slots...); !ok {
					t.Error("no durations")
				}
			})
		})
	}
}

// unrenewed is a store that renews no lease.
type unrenewed struct{ *memstore.Store }

func (unrenewed) RenewLeases(context.Context, []store.LeaseRef) ([]bool, error) {
	return nil, store.ErrUnavailable
}

func (unrenewed) RenewOperations(context.Context, []store.RenewRequest) ([]bool, error) {
	return nil, store.ErrUnavailable
}

func (unrenewed) RenewTasks(context.Context, []store.TaskRef) ([]bool, error) {
	return nil, store.ErrUnavailable
}

// Every mechanism with leases counts the renewals that fail, and the leases that end for it.
func TestCountersOfRenewals(t *testing.T) {
	ctx := context.Background()
	for kind, hold := range map[string]func(t *testing.T, st unrenewed) (end func() error){
		"lock": func(t *testing.T, st unrenewed) func() error {
			l, err := lock.New(st, "x")
			fatal(t, err)
			_, err = l.Lock(ctx, "key")
			fatal(t, err)
			return l.Close
		},
		"semaphore": func(t *testing.T, st unrenewed) func() error {
			s, err := semaphore.New(st, "x", 5)
			fatal(t, err)
			_, err = s.Acquire(ctx, "key")
			fatal(t, err)
			return s.Close
		},
		"idempotency": func(t *testing.T, st unrenewed) func() error {
			g, err := guard.New(st, "x")
			fatal(t, err)
			a, _, err := g.Begin(ctx, guard.Operation{Scope: "scope", Key: "key"})
			fatal(t, err)
			return func() error { return errors.Join(a.Abandon(ctx), g.Close()) }
		},
		"delay": func(t *testing.T, st unrenewed) func() error {
			q, err := delay.New(st, "x")
			fatal(t, err)
			_, err = q.Put(ctx, "key", nil, 0)
			fatal(t, err)
			task, err := q.Take(ctx)
			fatal(t, err)
			return func() error { return errors.Join(task.Done(ctx), q.Close()) }
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := unrenewed{memstore.New()}
				defer func() { _ = st.Close() }()
				defer namesake.Watch(st)()
				end := hold(t, st)
				time.Sleep(time.Minute)
				if r := reading(t, st, kind); r.Totals[live.Unrenewed] == 0 || r.Totals[live.Lost] != 1 {
					t.Errorf("of one lease, %d renewals failed, and %d were lost", r.Totals[live.Unrenewed], r.Totals[live.Lost])
				}
				_ = end() // of a lost lease
			})
		})
	}
}

func TestWatch(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	before, err := lock.New(st, "before")
	fatal(t, err)
	defer func() { _ = before.Close() }()
	first, second := namesake.Watch(st), namesake.Watch(st)
	after, err := lock.New(st, "after")
	fatal(t, err)
	defer func() { _ = after.Close() }()
	counting := func() (n int) {
		for _, g := range namesake.Members(st) {
			if g.Counter.Started() {
				n++
			}
		}
		return n
	}
	for i, step := range []struct {
		do   func()
		want int
	}{{func() {}, 2}, {first, 2}, {second, 0}} {
		if step.do(); counting() != step.want {
			t.Errorf("step %d: %d count, want %d", i, counting(), step.want)
		}
	}
	namesake.Watch(struct{}{})() // a store from elsewhere
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
