package mwtest

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// twinRow is a row about requests that wait for their twin, which several processes send. connect
// connects a process to their store.
func twinRow(name string, test func(t *rig, connect func() store.Store)) row {
	return row{name, func(t *rig) { test(t, t.kind.open(t.T)) }}
}

var twinRows = []row{
	twinRow("requests wait, and get the answer of their twin", func(t *rig, connect func() store.Store) {
		for _, header := range [][]string{asUser, {"X-User", "v", "Host", host}} { // without a key they are deduplicated
			g := newGate(t)
			here := newProcess(t, connect, g.handle, policy.Wait(t.patience), policy.Dedupe(time.Minute))
			there := newProcess(t, connect, g.handle, policy.Wait(t.patience), policy.Dedupe(time.Minute))
			first := here.sending("1", header...)
			g.runs(t)
			var twins []<-chan answer
			for range 3 {
				twins = append(twins, here.sending("1", header...), there.sending("1", header...))
			}
			here.met(t, 4)
			there.met(t, 3)
			g.let()
			awaitAnswer(t, first).is(http.StatusOK, "done").has("Idempotency-Replayed", "")
			for _, twin := range twins {
				awaitAnswer(t, twin).replays()
			}
			there.send("1", "", header...).replays()
			g.idle(t)
		}
	}),
	twinRow("one waiting twin runs if the attempt is released", func(t *rig, connect func() store.Store) {
		var (
			runs atomic.Int64
			c    counter
			g    = newGate(t)
		)
		handler := func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) > 1 {
				c.handle(w, r)
				return
			}
			g.handle(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		opts := []policy.IdempotencyOption{policy.Wait(t.patience), policy.ReleaseStatus(http.StatusServiceUnavailable)}
		here, there := newProcess(t, connect, handler, opts...), newProcess(t, connect, handler, opts...)
		first := here.sending("1", asUser...)
		g.runs(t)
		twins := []<-chan answer{here.sending("1", asUser...), there.sending("1", asUser...)}
		here.met(t, 2)
		there.met(t, 1)
		g.let()
		awaitAnswer(t, first).is(http.StatusServiceUnavailable, "")
		replayed := ""
		for _, twin := range twins {
			replayed += awaitAnswer(t, twin).is(http.StatusCreated, "run 1").header.Get("Idempotency-Replayed")
		}
		if replayed != "true" {
			t.Errorf("replayed: %q", replayed)
		}
		c.ran(t, 1)
	}),
	twinRow("a waiting twin gets the outcome of the attempt", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, func(w http.ResponseWriter, r *http.Request) {
			g.handle(httptest.NewRecorder(), r)
			switch strings.TrimPrefix(r.URL.Path, Path) {
			case "fails":
				w.WriteHeader(http.StatusBadGateway)
			case "answers-too-much":
				_, _ = io.WriteString(w, strings.Repeat("x", 101))
			case "panics":
				panic(http.ErrAbortHandler)
			}
		}, policy.Wait(t.patience))
		met := 0
		for id, want := range map[string]func(answer){
			"fails":            func(a answer) { a.is(http.StatusBadGateway, "").has("Idempotency-Replayed", "true") },
			"answers-too-much": func(a answer) { a.denies(policy.ResponseNotRetained) },
			"panics":           func(a answer) { a.denies(policy.OutcomeUnknown).names(p) },
		} {
			first := p.sending(id, "X-User", "u", keyHeader, id)
			g.runs(t)
			twin := p.sending(id, "X-User", "u", keyHeader, id)
			met += 2
			reaches(t, func() int { return min(p.store.Calls(storetest.BeginOperation), met) }, met)
			g.let()
			awaitAnswer(t, first)
			want(awaitAnswer(t, twin))
			met = p.store.Calls(storetest.BeginOperation)
		}
		g.idle(t)
	}),
	twinRow("a request that has waited for long enough is refused", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, g.handle, policy.Wait(50*time.Millisecond))
		first := p.sending("1", asUser...)
		g.runs(t)
		began := time.Now()
		a := p.send("1", "", asUser...).denies(policy.InFlight)
		if waited := time.Since(began); waited < 50*time.Millisecond {
			t.Errorf("refused after %v", waited)
		}
		retries(t, a)
		a.names(p)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		p.send("1", "", asUser...).replays()
		g.idle(t)
	}),
	twinRow("more requests than may wait are refused", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, g.handle, policy.Wait(t.patience), policy.MaxWaiting(2))
		first := p.sending("1", asUser...)
		g.runs(t)
		answers := make(chan answer, 7)
		for range cap(answers) {
			go func() { answers <- p.send("1", "", asUser...) }()
		}
		for range cap(answers) - 2 {
			retries(t, awaitAnswer(t, answers).denies(policy.InFlight))
		}
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		for range 2 {
			awaitAnswer(t, answers).replays()
		}
		g.idle(t)
	}),
	twinRow("a request whose client leaves waits no longer, and its body is forgotten", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		body := strings.Repeat("x", 100_000)
		p := newProcess(t, connect, g.handle, policy.Wait(time.Minute), policy.MaxBody(100_000), policy.MaxBodies(1_000_000))
		p.leaving(t, body) // it stays
		g.runs(t)
		leave := p.leaving(t, body)
		p.met(t, 2)
		p.send("1", body, "X-User", "u", keyHeader, "other").denies(policy.TooManyAtOnce)
		leave()
		p.isInside(t, 1)
		g.let()
		p.isInside(t, 0)
		g.let()
		p.send("1", body, "X-User", "u", keyHeader, "other").is(http.StatusOK, "done")
		g.runs(t)
		g.idle(t)
	}),
	twinRow("the bodies of requests that wait leave room for other scopes", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		// A scope has room for two of these bodies, and all of them together for eleven.
		body, mine := strings.Repeat("x", 20_000), append([]string{"Content-Type", "text/plain"}, asUser...)
		p := newProcess(t, connect, g.handle, policy.Wait(t.patience), policy.MaxBody(20_000), policy.MaxBodies(180_000))
		var sent sync.WaitGroup
		t.Cleanup(sent.Wait)
		send := func(answers chan<- answer, header ...string) {
			sent.Go(func() { answers <- p.send("1", body, header...) })
		}
		kept, refused, other := make(chan answer, 2), make(chan answer, 14), make(chan answer, 1)
		send(kept, mine...)
		g.runs(t)
		send(kept, mine...)
		p.met(t, 2)
		for range cap(refused) {
			send(refused, mine...)
		}
		for range cap(refused) {
			retries(t, awaitAnswer(t, refused).denies(policy.TooManyAtOnce))
		}
		send(other, "X-User", "v", keyHeader, "k", "Host", host)
		g.runs(t)
		g.let()
		g.let()
		awaitAnswer(t, other).is(http.StatusOK, "done").has("Idempotency-Replayed", "")
		for range cap(kept) {
			awaitAnswer(t, kept).is(http.StatusOK, "done")
		}
		p.send("1", body, mine...).replays()
		g.idle(t)
	}),
	twinRow("a request that waits ends with its server", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, g.handle, policy.Wait(time.Minute))
		p.leaving(t, "")
		g.runs(t)
		p.leaving(t, "")
		p.met(t, 2)
		if err := p.Config.Close(); err != nil {
			t.Error(err)
		}
		p.isInside(t, 1) // the one that runs
		g.let()
		p.isInside(t, 0)
		g.idle(t)
	}),
	twinRow("a request that waits is refused when its guard is closed", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, g.handle, policy.Wait(time.Minute))
		first := p.sending("1", asUser...)
		g.runs(t)
		twin := p.sending("1", asUser...)
		p.met(t, 2)
		closed := make(chan error, 1)
		go func() { closed <- p.guard.Close() }()
		retries(t, awaitAnswer(t, twin).denies(policy.ReducedCapacity))
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}),
	twinRow("only a twin waits", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		p := newProcess(t, connect, g.handle, policy.Wait(time.Minute))
		answers := []<-chan answer{p.sending("1", asUser...)}
		g.runs(t)
		p.send("1", "other", asUser...).denies(policy.KeyReused)
		p.send("2", "", asUser...).denies(policy.KeyReused)
		answers = append(answers, p.sending("1", "X-User", "v", keyHeader, "k", "Host", host), p.sending("1", "X-User", "u", keyHeader, "other"))
		g.runs(t)
		g.runs(t)
		for range answers {
			g.let()
		}
		for _, a := range answers {
			awaitAnswer(t, a).is(http.StatusOK, "done").has("Idempotency-Replayed", "")
		}
	}),
	twinRow("the store goes away while requests wait", func(t *rig, connect func() store.Store) {
		g := newGate(t)
		var c counter
		here := newProcess(t, connect, g.handle)
		closed := newProcess(t, connect, c.handle, policy.Wait(time.Minute))
		open := newProcess(t, connect, c.handle, policy.Wait(time.Minute), policy.RunUnprotected())
		first := here.sending("1", asUser...)
		g.runs(t)
		refused, bypassed := closed.sending("1", asUser...), open.sending("1", asUser...)
		for _, p := range []process{closed, open} {
			reaches(t, func() int { return min(p.store.Calls(storetest.AwaitOperation), 1) }, 1)
			p.store.Break(storetest.BeginOperation, storetest.Down)
		}
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		awaitAnswer(t, refused).denies(policy.ReducedCapacity)
		awaitAnswer(t, bypassed).is(http.StatusCreated, "run 1").has("Idempotency-Status", "bypassed")
	}),
	twinRow("a request without a key is a new one after the window", func(t *rig, connect func() store.Store) {
		for window := time.Second; ; window *= 2 {
			var c counter
			p := newProcess(t, connect, c.handle, policy.Dedupe(window))
			user := rand.Text()
			began := time.Now()
			a := p.send("1", "body", "X-User", user).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "")
			again := p.send("1", "body", "X-User", user)
			if time.Since(began) >= window && window < t.patience/2 {
				continue // a busy machine was late
			}
			again.is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
			for a.body == "run 1" && time.Since(began) < 2*t.patience {
				<-time.After(20 * time.Millisecond)
				a = p.send("1", "body", "X-User", user)
			}
			if took := time.Since(began); took < window {
				t.Errorf("a new one after %v", took)
			}
			a.is(http.StatusCreated, "run 2").has("Idempotency-Replayed", "")
			c.ran(t, 2)
			return
		}
	}),
}

// turnRows are about the moment when it is the turn of a request that waits.
var turnRows = []row{
	timedRow("a client that leaves when its turn comes", func(t *rig) {
		st := newStore(t)
		s := serveLocal(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Take") != "" {
				w.WriteHeader(http.StatusTooManyRequests) // which is released
			}
		}, Idempotency{Guard: newGuard(t, st), Options: []policy.IdempotencyOption{policy.Wait(time.Minute)}})
		go s.send(t.Context(), "1", keyHeader, "k", "X-Take", "1s")
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		asked := 0
		st.Hook(nil, storetest.On(storetest.BeginOperation, func() error {
			if asked++; asked == 2 {
				leave()
			}
			return nil
		}))
		s.send(ctx, "1", keyHeader, "k").denies(policy.InFlight)
		s.runs.ran(t, 1)
		st.Hook(nil, nil)
		s.send(t.Context(), "1", keyHeader, "k").is(http.StatusOK, "done").has("Idempotency-Replayed", "")
	}),
	timedRow("a client that leaves while a fresh key begins", func(t *rig) {
		st := newStore(t)
		s := serveLocal(t, nil, Idempotency{Guard: newGuard(t, st), Options: []policy.IdempotencyOption{policy.Wait(time.Minute)}})
		ctx, leave := context.WithCancel(t.Context())
		st.Hook(nil, storetest.On(storetest.BeginOperation, func() error {
			leave()
			return nil
		}))
		s.send(ctx, "1", keyHeader, "k").is(http.StatusOK, "done")
		s.send(t.Context(), "1", keyHeader, "k").is(http.StatusOK, "done").has("Idempotency-Replayed", "true")
		s.runs.ran(t, 1)
	}),
}
