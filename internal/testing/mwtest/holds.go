package mwtest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// holdRow is a row about locks and permits alike, with faked time.
func holdRow(name string, test func(*rig, holding)) row {
	return row{name, func(t *rig) {
		for _, h := range holdings {
			t.Run(h.name, func(t *rig) {
				timed(t, func(t *rig) { test(t, h) })
			})
		}
	}}
}

var holdRows = []row{
	holdRow("a request waits for the key, up to the maximum", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		var reported reports
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
			if _, ok := r.Context().Deadline(); ok || r.Context().Err() != nil {
				t.Error("the time that a request may wait bounds its handler")
			}
		}, p.wire(false, reported.hooks(), policy.Wait(4*time.Second)))
		began := time.Now()
		first, second, third := s.later(t.Context(), "X-Take", "3s"), s.later(t.Context(), "X-Take", "3s"), s.later(t.Context())
		(<-third).denies(h.busy)
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("a request that may wait for 4s waited for %v", took)
		}
		(<-first).is(http.StatusOK, "done")
		(<-second).is(http.StatusOK, "done")
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("two requests took %v", took)
		}
		s.runs.ran(t, 2)
		reported.are(t, nil)
		p.isFree(t)
	}),
	holdRow("waiting requests are served in order", func(t *rig, h holding) {
		var order []string
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) { order = append(order, r.Header.Get("X-N")) },
			h.open(t, newStore(t)).wire(false, Hooks{}, policy.Wait(time.Minute)))
		var answers []<-chan answer
		for _, n := range []string{"5", "4", "3", "2", "1"} {
			answers = append(answers, s.later(t.Context(), "X-N", n, "X-Take", n+"s"))
		}
		for _, a := range answers {
			(<-a).is(http.StatusOK, "done")
		}
		if got := strings.Join(order, " "); got != "5 4 3 2 1" {
			t.Errorf("served in the order %s", got)
		}
	}),
	holdRow("a grant at the end of the maximum wait", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		s := serveLocal(t, nil, p.wire(false, Hooks{}, policy.Wait(time.Second)))
		s.later(t.Context(), "X-Take", "2s")
		s.send(t.Context(), "1").denies(h.busy)
		<-time.After(time.Minute)
		for range 200 {
			first := s.later(t.Context(), "X-Take", "1s")
			if a := s.send(t.Context(), "1"); a.status != http.StatusOK {
				a.denies(h.busy)
			}
			(<-first).is(http.StatusOK, "done")
			p.isFree(t)
		}
	}),
	holdRow("a disconnected client holds the key until its handler returns", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		var reported reports
		var cause error
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) { cause = context.Cause(r.Context()) },
			p.wire(false, reported.hooks()))
		ctx, leave := context.WithCancel(t.Context())
		left := s.later(ctx, "X-Take", "1s")
		leave()
		synctest.Wait()
		s.send(t.Context(), "1").denies(h.busy)
		<-left
		if !errors.Is(cause, context.Canceled) {
			t.Errorf("the handler's context ended with %v", cause)
		}
		p.isFree(t)
		reported.are(t, nil)
	}),
	holdRow("a hold that is lost", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		var reported reports
		s := serveLocal(t, func(w http.ResponseWriter, r *http.Request) {
			if err := p.lose(r.Context()); err != nil {
				t.Error(err)
				return
			}
			<-r.Context().Done()
			_, _ = io.WriteString(w, context.Cause(r.Context()).Error()+", ")
		}, p.wire(false, reported.hooks()))
		s.send(t.Context(), "1").is(http.StatusOK, h.lost.Error()+", done") // the answer is the handler's
		reported.are(t, h.lost)
		p.isFree(t)
	}),
	holdRow("a handler that gives the key back itself", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		var reported reports
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
			release := p.found(r.Context())
			if release == nil {
				t.Error("the handler holds nothing")
				return
			}
			if err := release(r.Context()); err != nil {
				t.Error(err)
			}
			p.isFree(t)
		}, p.wire(false, reported.hooks()))
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		reported.are(t, nil)
	}),
	holdRow("the store is unavailable, however long a request may wait", func(t *rig, h holding) {
		for _, wait := range []time.Duration{0, time.Millisecond, time.Minute} {
			st := newStore(t)
			p := h.open(t, st)
			st.Break(h.acquire, storetest.Down)
			closed := serveLocal(t, nil, p.wire(false, Hooks{}, policy.Wait(wait)))
			closed.send(t.Context(), "1").denies(policy.ReducedCapacity).has("Retry-After", "1")
			closed.runs.ran(t, 0)
			if n := st.Calls(h.acquire); n != 1 {
				t.Errorf("the store was called %d times", n)
			}
			var reported reports
			open := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
				if (p.found(r.Context()) != nil) != (r.Header.Get("X-Up") != "") {
					t.Error("the handler holds something without the store, or nothing with it")
				}
			}, p.wire(true, reported.hooks(), policy.Wait(wait)))
			open.send(t.Context(), "1").is(http.StatusOK, "done").has(h.status, "bypassed")
			reported.are(t, store.ErrUnavailable)
			st.Mend(storetest.Any)
			open.send(t.Context(), "1", "X-Up", "yes").is(http.StatusOK, "done").has(h.status, "")
		}
	}),
	holdRow("the store goes away while a request waits", func(t *rig, h holding) {
		shared := newStore(t)
		release := h.open(t, shared).holds(t)
		st := storetest.NewFaulty(shared)
		st.Break(h.await, storetest.Down)
		p := h.open(t, st)
		closed := serveLocal(t, nil, p.wire(false, Hooks{}, policy.Wait(10*time.Second)))
		closed.send(t.Context(), "1").denies(policy.ReducedCapacity)
		closed.runs.ran(t, 0)
		var reported reports
		open := serveLocal(t, nil, p.wire(true, reported.hooks(), policy.Wait(10*time.Second)))
		open.send(t.Context(), "1").is(http.StatusOK, "done").has(h.status, "bypassed")
		reported.are(t, store.ErrUnavailable)
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
	}),
	holdRow("an outage policy is for outages", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		release := p.holds(t)
		s := serveLocal(t, nil, p.wire(true, Hooks{}))
		s.send(t.Context(), "1").denies(h.busy).has(h.status, "")
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		s.send(over, "1")
		if err := p.close(); err != nil {
			t.Error(err)
		}
		s.send(t.Context(), "1").denies(policy.ReducedCapacity).has("Retry-After", "1")
		s.runs.ran(t, 0)
	}),
	holdRow("a release that the store does not confirm", func(t *rig, h holding) {
		st := newStore(t)
		p := h.open(t, st)
		var reported reports
		s := serveLocal(t, nil, p.wire(false, reported.hooks()))
		st.Break(h.release, storetest.Down)
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		reported.are(t, h.unreleased)
		<-time.After(time.Second)
		s.send(t.Context(), "1").denies(h.busy)
		st.Mend(h.release)
		<-time.After(10 * time.Second) // it is retried in the background
		p.isFree(t)
	}),
	holdRow("a request calls the store twice", func(t *rig, h holding) {
		st := newStore(t)
		s := serveLocal(t, nil, h.open(t, st).wire(false, Hooks{}, policy.Wait(time.Minute)))
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		<-time.After(time.Second)
		if acquires, releases, all := st.Calls(h.acquire), st.Calls(h.release), st.Calls(storetest.Any); acquires != 1 || releases != 1 || all != 2 {
			t.Errorf("%d acquires, %d releases, %d calls", acquires, releases, all)
		}
	}),
	holdRow("a replay needs neither a lock nor a permit", func(t *rig, h holding) {
		p := h.open(t, newStore(t))
		s := serveLocal(t, nil, Idempotency{Guard: newGuard(t, newStore(t))}, p.wire(false, Hooks{}))
		s.send(t.Context(), "1", keyHeader, "k").is(http.StatusOK, "done")
		synctest.Wait()
		release := p.holds(t)
		s.send(t.Context(), "1", keyHeader, "k").is(http.StatusOK, "done").has("Idempotency-Replayed", "true")
		s.send(t.Context(), "1", keyHeader, "other").denies(h.busy)
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
	}),
	holdRow("what another process holds", func(t *rig, h holding) {
		st := newStore(t)
		here, there := h.open(t, st), h.open(t, st)
		servers := []local{serveLocal(t, nil, here.wire(false, Hooks{})), serveLocal(t, nil, there.wire(false, Hooks{}))}
		first := servers[0].later(t.Context(), "X-Take", "1s")
		for _, s := range servers {
			a := s.send(t.Context(), "1").denies(h.busy).has("Retry-After", "1")
			if strings.Contains(a.body, "carts") || strings.Contains(a.body, "reports") {
				t.Errorf("the answer has a name: %s", a.body)
			}
		}
		if _, err := there.try(t.Context()); err == nil {
			t.Error("what a handler holds is free")
		}
		(<-first).is(http.StatusOK, "done")
		synctest.Wait()
		release := here.holds(t)
		servers[1].send(t.Context(), "1").denies(h.busy)
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
		servers[1].send(t.Context(), "1").is(http.StatusOK, "done")
	}),
	holdRow("a disconnected client of another process leaves the queue", func(t *rig, h holding) {
		st := newStore(t)
		here, there := h.open(t, st), h.open(t, st)
		release := here.holds(t)
		for _, p := range []holder{here, there} {
			s := serveLocal(t, nil, p.wire(false, Hooks{}, policy.Wait(time.Minute)))
			ctx, leave := context.WithCancel(t.Context())
			left := s.later(ctx)
			leave()
			synctest.Wait()
			select {
			case <-left:
			default:
				t.Error("it still waits")
			}
			s.runs.ran(t, 0)
		}
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
		there.isFree(t)
	}),
	holdRow("many requests of two processes", func(t *rig, h holding) {
		st := newStore(t)
		var inside, runs int // guarded by the lock or the permit
		var mu sync.Mutex
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			if inside += n; inside > 1 {
				t.Errorf("%d handlers at once", inside)
			}
		}
		var fences []int64
		handle := func(_ http.ResponseWriter, r *http.Request) {
			count(1)
			defer count(-1)
			n := runs
			<-time.After(time.Millisecond) // or a lost update would be a rare one
			runs = n + 1
			if lease, ok := lock.FromContext(r.Context()); ok {
				fences = append(fences, lease.Fence().Number)
			}
		}
		var all sync.WaitGroup
		for range 2 {
			s := serveLocal(t, handle, h.open(t, st).wire(false, Hooks{}, policy.Wait(time.Minute)))
			for range 25 {
				all.Go(func() { s.send(t.Context(), "1").is(http.StatusOK, "done") })
			}
		}
		all.Wait()
		if runs != 50 {
			t.Errorf("50 requests counted to %d", runs)
		}
		for i := 1; i < len(fences); i++ {
			if fences[i] <= fences[i-1] {
				t.Errorf("fence %d after %d", fences[i], fences[i-1])
			}
		}
	}),
}
