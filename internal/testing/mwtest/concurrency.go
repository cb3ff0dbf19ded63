package mwtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

// heldWaiting returns the number of waiters of a held lock or a full semaphore, by the error of a
// call that does not wait.
func heldWaiting(err error) int {
	var held *lock.HeldError
	var busy *semaphore.BusyError
	switch {
	case errors.As(err, &held):
		return held.Waiting
	case errors.As(err, &busy):
		return busy.Waiting
	}
	return -1
}

// stands waits until the semaphore of the key "1" has this use, and no waiters.
func stands(t *rig, s *semaphore.Semaphore, inUse int) {
	t.Helper()
	for deadline := time.Now().Add(t.patience); ; <-time.After(time.Millisecond) {
		state, err := s.Inspect(t.Context(), "1")
		if err == nil && state.InUse == inUse && state.Waiting == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v; want %d in use", state, err, inUse)
		}
	}
}

// tierOf returns the tier that a request asks for, as no service should.
func tierOf(r *http.Request) policy.Tier {
	n, _ := strconv.Atoi(r.Header.Get("X-Tier"))
	return policy.Tier(n)
}

// How a handler ends, for a capacity that adapts.
const (
	worked = iota
	failed
	streamed
)

type cancelKey struct{}

// adaptiveEndings are handlers.
var adaptiveEndings = []struct {
	name   string
	ending int
	end    http.HandlerFunc
}{
	{"no answer", worked, func(http.ResponseWriter, *http.Request) {}},
	{"an answer", worked, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }},
	{"an error of the client's", worked, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }},
	{"an error of the server's", failed, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
	{"a timeout", failed, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "late", http.StatusGatewayTimeout) }},
	{"a panic", failed, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	{"a client that left", failed, func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(cancelKey{}).(context.CancelFunc)()
		w.WriteHeader(http.StatusNoContent)
	}},
	{"events", streamed, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
	}},
	{"events that break off", streamed, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		panic(http.ErrAbortHandler)
	}},
	{"another protocol", streamed, func(w http.ResponseWriter, _ *http.Request) {
		_ = must(hijack(w)).Close()
	}},
}

func hijack(w http.ResponseWriter) (net.Conn, error) {
	conn, _, err := http.NewResponseController(w).Hijack()
	return conn, err
}

// connected is the writer of a request over a connection.
type connected struct{ *httptest.ResponseRecorder }

// Hijack implements http.Hijacker.
func (connected) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, client := net.Pipe()
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), client.Close()
}

// adapts returns the change of an adaptive capacity whose permits a handler has.
func adapts(t *rig, end http.HandlerFunc, target time.Duration) int {
	t.Helper()
	return tiertest.Adapts(t.T, target, func(sem *semaphore.Semaphore) func() {
		served := t.framework.Serve(end, Concurrency{Semaphore: sem, By: byID})
		return func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ctx = context.WithValue(ctx, cancelKey{}, cancel)
			served.ServeHTTP(connected{httptest.NewRecorder()}, must(http.NewRequestWithContext(ctx, http.MethodPost, Path+"1", http.NoBody)))
		}
	})
}

var concurrencyRows = append([]row{
	{"requests of a key are limited to the capacity", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 2)
		s := serve(t, g.handle, Concurrency{Semaphore: sem, By: byID})
		running := []<-chan answer{s.sending("1"), s.sending("1")}
		g.runs(t)
		g.runs(t)
		retries(t, s.send("1", "").denies(policy.TooManyAtOnce))
		running = append(running, s.sending("2"))
		g.runs(t)
		for range running {
			g.let()
		}
		for _, r := range running {
			awaitAnswer(t, r).is(http.StatusOK, "done")
		}
		stands(t, sem, 0)
	}},
	{"a waiting request is served in order, up to the maximum of waiters", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 1, semaphore.WithMaxWaiting(1))
		s := serve(t, g.handle, Concurrency{Semaphore: sem, By: byID, Options: []policy.ConcurrencyOption{policy.Wait(t.patience)}})
		first := s.sending("1")
		g.runs(t)
		second := s.sending("1")
		reaches(t, func() int {
			_, err := sem.TryAcquire(t.Context(), "1")
			return heldWaiting(err)
		}, 1)
		retries(t, s.send("1", "").denies(policy.TooManyAtOnce))
		g.idle(t)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		g.runs(t)
		g.let()
		awaitAnswer(t, second).is(http.StatusOK, "done")
		stands(t, sem, 0)
	}},
	{"a request that has waited for the maximum time is refused", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 1)
		s := serve(t, g.handle, Concurrency{Semaphore: sem, By: byID, Options: []policy.ConcurrencyOption{policy.Wait(50 * time.Millisecond)}})
		first := s.sending("1")
		g.runs(t)
		retries(t, s.send("1", "").denies(policy.TooManyAtOnce))
		g.let()
		awaitAnswer(t, first)
		stands(t, sem, 0)
	}},
	{"with Overload a request without a permit is refused with 503", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 1)
		var reported reports
		s := serve(t, g.handle, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser}, Concurrency{
			Semaphore: sem, By: byID, Options: []policy.ConcurrencyOption{policy.Overload()}, Hooks: reported.hooks(),
		})
		first := s.sending("1", "X-User", "u", keyHeader, "a")
		g.runs(t)
		after := map[string]bool{}
		for range 50 { // the guard keeps no refusal
			a := s.send("1", "", "X-User", "u", keyHeader, "b").denies(policy.ReducedCapacity).has("Idempotency-Replayed", "")
			retries(t, a)
			after[a.header.Get("Retry-After")] = true
		}
		if len(after) < 2 {
			t.Errorf("Retry-After is always the same: %v", after)
		}
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		stands(t, sem, 0)
		g.let()
		s.send("1", "", "X-User", "u", keyHeader, "b").is(http.StatusOK, "done")
		g.runs(t)
		reported.are(t, nil)
	}},
	{"a tier is refused beyond its part, and higher ones pass", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 4, semaphore.WithReserve(3)) // which tiers replace
		if err := sem.SetTierShares(semaphore.TierShares{Normal: 0.75, Low: 0.5, Background: 0.25}); err != nil {
			t.Fatal(err)
		}
		s := serve(t, g.handle, Concurrency{Semaphore: sem, By: byID, Tiers: tierOf})
		var running []<-chan answer
		for _, tier := range []string{"3", "2", "1", "0"} { // each fills its part
			running = append(running, s.sending("1", "X-Tier", tier))
			g.runs(t)
			for lower := '9'; lower >= rune(tier[0]); lower-- {
				retries(t, s.send("1", "", "X-Tier", string(lower)).denies(policy.TooManyAtOnce))
			}
		}
		for range running {
			g.let()
		}
		for _, r := range running {
			awaitAnswer(t, r).is(http.StatusOK, "done")
		}
		stands(t, sem, 0)
	}},
	{"a waiting request of a higher tier is served first", func(t *rig) {
		g := newGate(t)
		sem := newSemaphore(t, newStore(t), 2)
		s := serve(t, g.handle, Concurrency{
			Semaphore: sem, By: byID, Tiers: tierOf, Options: []policy.ConcurrencyOption{policy.Wait(t.patience)},
		})
		first, second := s.sending("1"), s.sending("1")
		g.runs(t)
		g.runs(t)
		waits := func(n int) {
			reaches(t, func() int {
				return must(sem.Inspect(t.Context(), "1")).Waiting
			}, n)
		}
		low := s.sending("1", "X-Tier", "3")
		waits(1)
		high := s.sending("1")
		waits(2)
		g.let()
		g.runs(t) // the higher one, since the lower one leaves a permit
		g.let()
		g.let()
		for _, r := range []<-chan answer{first, second, high} {
			awaitAnswer(t, r).is(http.StatusOK, "done")
		}
		g.runs(t)
		g.let()
		awaitAnswer(t, low).is(http.StatusOK, "done")
		stands(t, sem, 0)
	}},
	{"failures and streams do not raise an adaptive capacity, and streams do not lower it", func(t *rig) {
		for _, e := range adaptiveEndings {
			t.Run(e.name, func(t *rig) {
				t.Parallel()
				if got := adapts(t, e.end, time.Hour); got > 0 != (e.ending == worked) {
					t.Errorf("a fast one changes the capacity by %d", got)
				}
				if got := adapts(t, e.end, time.Nanosecond); got < 0 != (e.ending != streamed) {
					t.Errorf("a slow one changes the capacity by %d", got)
				}
			})
		}
	}},
	{"the handler finds its permit", func(t *rig) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			permit, ok := semaphore.FromContext(r.Context())
			_, _ = io.WriteString(w, strconv.FormatBool(ok && permit.Key() == "1" && permit.Weight() == 1))
		}, Concurrency{Semaphore: newSemaphore(t, newStore(t), 1), By: byID})
		s.send("1", "").is(http.StatusOK, "true")
	}},
	{"a panic releases the permit", func(t *rig) {
		sem := newSemaphore(t, newStore(t), 1)
		s := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Concurrency{Semaphore: sem, By: byID})
		for range 2 {
			if a := s.send("1", ""); a.status != http.StatusInternalServerError {
				t.Errorf("%d %q", a.status, a.body)
			}
			stands(t, sem, 0)
		}
	}},
	{"a key that is too long is refused", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Concurrency{Semaphore: newSemaphore(t, newStore(t), 1), By: byHeader})
		s.send("1", "", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
		c.ran(t, 0)
	}},
	{"an unavailable store refuses requests", func(t *rig) {
		store := newStore(t)
		var c counter
		s := serve(t, c.handle, Concurrency{Semaphore: newSemaphore(t, store, 1), By: byID})
		store.BreakNext(storetest.AcquireLease, storetest.Down, 1)
		s.send("1", "").denies(policy.ReducedCapacity)
		s.send("1", "").is(http.StatusCreated, "run 1")
	}},
	{"an unavailable store lets requests pass if configured", func(t *rig) {
		store := newStore(t)
		var c counter
		s := serve(t, c.handle, Concurrency{
			Semaphore: newSemaphore(t, store, 1), By: byID, Options: []policy.ConcurrencyOption{policy.FailOpen()},
		})
		store.Break(storetest.AcquireLease, storetest.Down)
		s.send("1", "").is(http.StatusCreated, "run 1").has("Concurrency-Status", "bypassed")
	}},
}, keyRows(func(t *rig, by Key, hooks Hooks) Middleware {
	return Concurrency{Semaphore: newSemaphore(t, newStore(t), 100), By: by, Hooks: hooks}
})...)
