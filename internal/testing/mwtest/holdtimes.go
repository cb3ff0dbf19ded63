package mwtest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// waiters calls wait so often that n calls wait, until end is called.
func waiters(t *rig, n int, wait func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() { wait(ctx) })
	}
	synctest.Wait()
	return func() {
		cancel()
		all.Wait()
	}
}

// timeRows are about the times of locks and permits, and what only one of the two has.
var timeRows = []row{
	timedRow("Retry-After of a lock", func(t *rig) {
		l := newLocker(t, newStore(t))
		s := serveLocal(t, nil, Exclusive{Locker: l, By: byID})
		refused := func(take string, waiting int) answer {
			first := s.later(t.Context(), "X-Take", take)
			end := waiters(t, waiting, func(ctx context.Context) { _, _ = l.Lock(ctx, "1") })
			a := s.send(t.Context(), "1").denies(policy.Locked)
			end()
			(<-first).is(http.StatusOK, "done")
			return a
		}
		refused("4s", 0).has("Retry-After", "1") // no handler has returned yet
		refused("4s", 0).has("Retry-After", "4")
		refused("12s", 0).has("Retry-After", "4")
		refused("1ms", 0).has("Retry-After", "5")  // an eighth of the way to 12 s
		refused("1s", 2).has("Retry-After", "14")  // 4.375 s each
		refused("1s", 10).has("Retry-After", "30") // the lease of a dead holder
	}),
	timedRow("Retry-After of a permit", func(t *rig) {
		sem := newSemaphore(t, newStore(t), 2, semaphore.WithTTL(24*time.Hour)) // renewed seldom
		s := serveLocal(t, nil, Concurrency{Semaphore: sem, By: byID})
		refused := func(take string, waiting int) answer {
			first := s.later(t.Context(), "X-Take", take)
			permit := permitted(t, sem)
			end := waiters(t, waiting, func(ctx context.Context) { _, _ = sem.AcquireN(ctx, "1", 2) })
			a := s.send(t.Context(), "1").denies(policy.TooManyAtOnce)
			end()
			if err := permit.Release(t.Context()); err != nil {
				t.Error(err)
			}
			(<-first).is(http.StatusOK, "done")
			synctest.Wait()
			return a
		}
		refused("8s", 0).has("Retry-After", "1") // no handler has returned yet
		refused("8s", 0).has("Retry-After", "4") // 8 s, for two places
		refused("8s", 4).has("Retry-After", "20")
		refused("24s", 0).has("Retry-After", "4")
		refused("1ms", 0).has("Retry-After", "5") // an eighth of the way to 24 s
		for range 60 {
			refused("1ms", 0)
		}
		refused("1ms", 9).has("Retry-After", "1")
		refused("100h", 0)
		refused("1ms", 9).has("Retry-After", "3600") // the maximum
	}),
	timedRow("a denial has the state of the key", func(t *rig) {
		denials := make(chan policy.Denial, 1)
		hooks := Hooks{Deny: func(d policy.Denial) (int, string) {
			denials <- d
			return http.StatusTeapot, "denied"
		}}
		for _, h := range holdings {
			p := h.open(t, newStore(t))
			release := p.holds(t)
			s := serveLocal(t, nil, p.wire(false, hooks))
			s.send(t.Context(), "1").is(http.StatusTeapot, "denied").has("Retry-After", "1")
			d := <-denials
			var (
				held *lock.HeldError
				busy *semaphore.BusyError
			)
			matches := errors.As(d.Err, &held) && held.Remaining > 0 || errors.As(d.Err, &busy) && busy.InUse == 1 && busy.Capacity == 1
			if d.Reason != h.busy || d.RetryAfter != time.Second || !matches {
				t.Errorf("%+v", d)
			}
			if err := release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}),
	timedRow("a lock is held once by two middleware", func(t *rig) {
		st := newStore(t)
		l := newLocker(t, st)
		m := Exclusive{Locker: l, By: byID}
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
			if n := st.Calls(storetest.AcquireLease); n != 1 {
				t.Errorf("it was acquired %d times", n)
			}
			if err := l.Do(r.Context(), "1", func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
			if _, err := l.TryLock(t.Context(), "1"); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("it is released by its second user: %v", err)
			}
		}, m, m)
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		lease, err := l.TryLock(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		_ = lease.Unlock(t.Context())
	}),
	timedRow("two middleware with two keys take two permits", func(t *rig) {
		sem := newSemaphore(t, newStore(t), 2)
		s := serveLocal(t, func(http.ResponseWriter, *http.Request) { stands(t, sem, 1) },
			Concurrency{Semaphore: sem, By: byID}, Concurrency{Semaphore: sem, By: Key{Kind: Global}})
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		synctest.Wait()
		stands(t, sem, 0)
	}),
	timedRow("a semaphore over two processes", func(t *rig) {
		const capacity = 3
		st := newStore(t)
		var (
			mu           sync.Mutex
			inside, most int
		)
		var all sync.WaitGroup
		for range 2 {
			sem := newSemaphore(t, st, capacity)
			s := serveLocal(t, func(http.ResponseWriter, *http.Request) {
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				<-time.After(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
			}, Concurrency{Semaphore: sem, By: byID, Options: []policy.ConcurrencyOption{policy.Wait(time.Minute)}})
			for range 30 {
				all.Go(func() { s.send(t.Context(), "1").is(http.StatusOK, "done") })
			}
		}
		all.Wait()
		if most != capacity {
			t.Errorf("at most %d handlers at once, want %d", most, capacity)
		}
	}),
	timedRow("the queue of a semaphore is bounded in each process", func(t *rig) {
		st := newStore(t)
		servers := make([]local, 2)
		for i := range servers {
			servers[i] = serveLocal(t, nil, Concurrency{
				Semaphore: newSemaphore(t, st, 1, semaphore.WithMaxWaiting(2)), By: byID,
				Options: []policy.ConcurrencyOption{policy.Wait(time.Minute)},
			})
		}
		var answers []<-chan answer
		for n := range 5 { // one runs, and two wait in each
			answers = append(answers, servers[n%2].later(t.Context(), "X-Take", "10s"))
		}
		began := time.Now()
		for _, s := range servers {
			s.send(t.Context(), "1").denies(policy.TooManyAtOnce).has("Retry-After", "1")
			s.send(t.Context(), "2").is(http.StatusOK, "done") // each key has its own queue
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the refusals took %v", took)
		}
		for _, a := range answers {
			(<-a).is(http.StatusOK, "done")
		}
	}),
	timedRow("a capacity that changes at run time", func(t *rig) {
		sem := newSemaphore(t, newStore(t), 1)
		s := serveLocal(t, nil, Concurrency{Semaphore: sem, By: byID, Options: []policy.ConcurrencyOption{policy.Wait(time.Minute)}})
		first, second := s.later(t.Context(), "X-Take", "40s"), s.later(t.Context())
		began := time.Now()
		if err := sem.SetCapacity(2); err != nil {
			t.Fatal(err)
		}
		s.send(t.Context(), "2").is(http.StatusOK, "done")
		(<-second).is(http.StatusOK, "done")
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("the new capacity took %v", took)
		}
		(<-first).is(http.StatusOK, "done")
		s.runs.ran(t, 3)
	}),
	timedRow("an answer does not wait for the release of its permit", func(t *rig) {
		st := newStore(t)
		s := serveLocal(t, nil, Concurrency{Semaphore: newSemaphore(t, st, 1), By: byID})
		st.Break(storetest.ReleaseLeases, storetest.Hung)
		began := time.Now()
		s.send(t.Context(), "1", "X-Take", "1s").is(http.StatusOK, "done")
		if took := time.Since(began); took != time.Second {
			t.Errorf("the answer took %v", took)
		}
		s.send(t.Context(), "1").denies(policy.TooManyAtOnce)
		st.Mend(storetest.ReleaseLeases)
		<-time.After(time.Minute)
		s.send(t.Context(), "1").is(http.StatusOK, "done")
	}),
	timedRow("a permit that is held for too long", func(t *rig) {
		var reported reports
		s := serveLocal(t, nil, Concurrency{
			Semaphore: newSemaphore(t, newStore(t), 1, semaphore.WithMaxHold(time.Second)), By: byID, Hooks: reported.hooks(),
		})
		s.send(t.Context(), "1", "X-Take", "2s").is(http.StatusOK, "done")
		reported.are(t, semaphore.ErrExpired)
	}),
	timedRow("a stand-in limits while the store is unavailable", func(t *rig) {
		st := newStore(t)
		st.Break(storetest.AcquireLease, storetest.Down)
		var reported reports
		s := serveLocal(t, nil, Concurrency{
			Semaphore: newSemaphore(t, must(fallback.Leases(st, newStore(t), 0.5)), 4), By: byID,
			Options: []policy.ConcurrencyOption{policy.FailOpen()}, Hooks: reported.hooks(),
		})
		inside := []<-chan answer{s.later(t.Context(), "X-Take", "1s"), s.later(t.Context(), "X-Take", "1s")}
		s.send(t.Context(), "1").denies(policy.TooManyAtOnce)
		for _, a := range inside {
			(<-a).is(http.StatusOK, "done").has("Concurrency-Status", "")
		}
		reported.are(t, nil)
	}),
	timedRow("a capacity that is invalid", func(t *rig) {
		s := serveLocal(t, nil, Concurrency{
			Semaphore: newSemaphore(t, newStore(t), 1, semaphore.WithCapacityFunc(func(string) int { return -1 })), By: byID,
			Options: []policy.ConcurrencyOption{policy.FailOpen()},
		})
		s.send(t.Context(), "1").denies(policy.InternalError)
		s.runs.ran(t, 0)
	}),
	timedRow("the longest key", func(t *rig) {
		for _, m := range []Middleware{
			RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader},
			Exclusive{Locker: newLocker(t, newStore(t)), By: byHeader},
			Concurrency{Semaphore: newSemaphore(t, newStore(t), 1), By: byHeader},
		} {
			s := serveLocal(t, nil, m)
			s.send(t.Context(), "1", "X-Key", strings.Repeat("k", 1024)).is(http.StatusOK, "done")
			s.send(t.Context(), "1", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
		}
	}),
}
