package mwtest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// runTwins runs the rows about requests that wait for their twin, which several processes send.
// open starts a server of a store, and returns what connects a process to it.
func runTwins(t *testing.T, f Framework, open func(*testing.T) (connect func() store.Store)) {
	for _, r := range twinRows {
		t.Run(r.name, func(t *testing.T) { r.test(t, f, open(t)) })
	}
}

// twinRow is a row whose processes share a store.
type twinRow struct {
	name string
	test func(t *testing.T, f Framework, connect func() store.Store)
}

var twinRows = []twinRow{
	{"requests wait, and get the answer of their twin", func(t *testing.T, f Framework, connect func() store.Store) {
		for _, header := range [][]string{asUser, {"X-User", "v", "Host", host}} { // without a key they are deduplicated
			g := newGate()
			here := newProcess(t, f, connect, g.handle, policy.Wait(patience), policy.Dedupe(time.Minute))
			there := newProcess(t, f, connect, g.handle, policy.Wait(patience), policy.Dedupe(time.Minute))
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
	}},
	{"one of those that wait runs if the attempt is released", func(t *testing.T, f Framework, connect func() store.Store) {
		var (
			runs atomic.Int64
			c    counter
			g    = newGate()
		)
		handler := func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) > 1 {
				c.handle(w, r)
				return
			}
			g.handle(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		opts := []policy.IdempotencyOption{policy.Wait(patience), policy.ReleaseStatus(http.StatusServiceUnavailable)}
		here, there := newProcess(t, f, connect, handler, opts...), newProcess(t, f, connect, handler, opts...)
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
	}},
	{"what became of an attempt is what a twin gets that waits", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, func(w http.ResponseWriter, r *http.Request) {
			g.handle(httptest.NewRecorder(), r)
			switch strings.TrimPrefix(r.URL.Path, Path) {
			case "fails":
				w.WriteHeader(http.StatusBadGateway)
			case "answers-too-much":
				_, _ = io.WriteString(w, strings.Repeat("x", 101))
			case "panics":
				panic(http.ErrAbortHandler)
			}
		}, policy.Wait(patience))
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
	}},
	{"a request that has waited for long enough is refused", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, g.handle, policy.Wait(50*time.Millisecond))
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
	}},
	{"more requests than may wait are refused", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, g.handle, policy.Wait(patience), policy.MaxWaiting(2))
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
	}},
	{"a request whose client leaves waits no longer, and its body is forgotten", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		body := strings.Repeat("x", 100_000)
		p := newProcess(t, f, connect, g.handle, policy.Wait(time.Minute), policy.MaxBody(100_000), policy.MaxBodies(250_000))
		p.leaving(t, body) // it stays
		g.runs(t)
		leave := p.leaving(t, body)
		p.met(t, 2)
		p.send("1", body, "X-User", "u", keyHeader, "other").denies(policy.ReducedCapacity)
		leave()
		p.isInside(t, 1)
		g.let()
		p.isInside(t, 0)
		g.let()
		p.send("1", body, "X-User", "u", keyHeader, "other").is(http.StatusOK, "done")
		g.runs(t)
		g.idle(t)
	}},
	{"a request that waits ends with its server", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, g.handle, policy.Wait(time.Minute))
		p.leaving(t, "")
		g.runs(t)
		p.leaving(t, "")
		p.met(t, 2)
		if err := p.http.Config.Close(); err != nil {
			t.Error(err)
		}
		p.isInside(t, 1) // the one that runs
		g.let()
		p.isInside(t, 0)
		g.idle(t)
	}},
	{"a request that waits is refused when its guard is closed", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, g.handle, policy.Wait(time.Minute))
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
	}},
	{"only a twin waits", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		p := newProcess(t, f, connect, g.handle, policy.Wait(time.Minute))
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
	}},
	{"the store goes away while requests wait", func(t *testing.T, f Framework, connect func() store.Store) {
		g := newGate()
		var c counter
		here := newProcess(t, f, connect, g.handle)
		closed := newProcess(t, f, connect, c.handle, policy.Wait(time.Minute))
		open := newProcess(t, f, connect, c.handle, policy.Wait(time.Minute), policy.RunUnprotected())
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
	}},
	{"a request without a key is a new one after the window", func(t *testing.T, f Framework, connect func() store.Store) {
		var c counter
		p := newProcess(t, f, connect, c.handle, policy.Dedupe(time.Second))
		began := time.Now()
		a := p.send("1", "body", "X-User", "u").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "")
		p.send("1", "body", "X-User", "u").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		for a.body == "run 1" && time.Since(began) < patience {
			<-time.After(20 * time.Millisecond)
			a = p.send("1", "body", "X-User", "u")
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("a new one after %v", took)
		}
		a.is(http.StatusCreated, "run 2").has("Idempotency-Replayed", "")
		c.ran(t, 2)
	}},
}

// turnRows are about the moment when it is the turn of a request that waits.
var turnRows = []row{
	timedRow("a client that leaves when its turn comes", func(t *testing.T, f Framework) {
		st := newStore(t)
		s := serveLocal(t, f, nil, Idempotency{Guard: newGuard(t, st), Options: []policy.IdempotencyOption{policy.Wait(time.Minute)}})
		ctx, leave := context.WithCancel(t.Context())
		st.Hook(nil, storetest.On(storetest.BeginOperation, func() error {
			leave()
			return nil
		}))
		s.send(ctx, "1", keyHeader, "k").denies(policy.InFlight)
		s.runs.ran(t, 0)
		st.Hook(nil, nil)
		s.send(t.Context(), "1", keyHeader, "k").is(http.StatusOK, "done").has("Idempotency-Replayed", "")
	}),
}
