package mwtest

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// flushes writes the parts of an answer, and flushes after each but the last.
func flushes(w http.ResponseWriter, parts ...string) {
	for i, part := range parts {
		if i > 0 {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, part)
	}
}

// flushedRows are about answers that reach the client before they have ended.
var flushedRows = []row{
	{"a flushed answer is replayed when it has ended", func(t *rig) {
		for name, handler := range map[string]http.HandlerFunc{
			"in the middle":   func(w http.ResponseWriter, _ *http.Request) { flushes(w, "one,", "two") },
			"before the body": func(w http.ResponseWriter, _ *http.Request) { flushes(w, "", "one,two") },
			"after it":        func(w http.ResponseWriter, _ *http.Request) { flushes(w, "one,two", "") },
			"by an assertion": func(w http.ResponseWriter, _ *http.Request) {
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, "one,two")
			},
			"after many parts": func(w http.ResponseWriter, _ *http.Request) { flushes(w, strings.Split("o n e , t w o", " ")...) },
		} {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Location", "/orders/1")
				w.WriteHeader(http.StatusCreated)
				handler(w, r)
			}, Idempotency{Guard: newGuard(t, newStore(t), guard.WithMaxResult(1000)), By: byUser})
			for _, replayed := range []string{"", "true"} {
				a := s.send("1", "", asUser...)
				if a.status != http.StatusCreated || a.body != "one,two" {
					t.Fatalf("%s: %d %q", name, a.status, a.body)
				}
				a.has("Idempotency-Replayed", replayed).has("Location", "/orders/1").has("Content-Type", "application/json")
			}
		}
	}},
	{"a stream of events is not retained", func(t *rig) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			flushes(w, "data: 1\n\n", "data: 2\n\n")
		}, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser})
		s.send("1", "", asUser...).is(http.StatusOK, "data: 1\n\ndata: 2\n\n")
		settles(s, "1", asUser...).denies(policy.ResponseNotRetained)
	}},
	{"an answer through a reverse proxy is replayed", func(t *rig) {
		var c counter
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			flushes(w, "chunked ", "") // so that it has no Content-Length
			c.handle(w, r)
		}))
		t.Cleanup(upstream.Close)
		s := serve(t, proxy(t, upstream.URL).ServeHTTP, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser})
		s.send("1", "", asUser...).is(http.StatusOK, "chunked run 1")
		s.send("1", "", asUser...).is(http.StatusOK, "chunked run 1").has("Idempotency-Replayed", "true")
	}},
	{"an answer that breaks off behind a reverse proxy is not replayed", func(t *rig) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			flushes(w, "half", "")
			panic(http.ErrAbortHandler)
		}))
		upstream.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(upstream.Close)
		s := serve(t, proxy(t, upstream.URL).ServeHTTP, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser})
		_ = s.try() // a part of the answer, or one that a recovery has ended
		settles(s, "1", "X-User", "u", keyHeader, "k").denies(policy.OutcomeUnknown)
	}},
	{"a flushed answer of a handler that gives up is not replayed", func(t *rig) {
		st := newStore(t)
		locker := newLocker(t, st)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			flushes(w, "half", "")
			if lease, ok := lock.FromContext(ctx); ok && strings.HasSuffix(r.URL.Path, "lost") {
				_, _ = locker.ForceUnlock(context.WithoutCancel(ctx), "lost", lease.Fence().Number)
				_ = lease.Verify(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(t.patience):
			}
		}, Idempotency{Guard: newGuard(t, st), By: byUser, Options: []policy.IdempotencyOption{policy.MaxRun(testpace.Scale(time.Second))}},
			Exclusive{Locker: locker, By: byID})
		for _, id := range []string{"lost", "late"} {
			header := []string{"X-User", "u", keyHeader, id}
			s.send(id, "", header...).is(http.StatusOK, "half")
			settles(s, id, header...).denies(policy.ResponseNotRetained)
		}
	}},
	{"a flushed answer is kept although its client has left", func(t *rig) {
		const size = 200 << 10
		g := newGate(t)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			flushes(w, "begins ", "")
			g.handle(httptest.NewRecorder(), r)
			_, _ = io.Copy(struct{ io.Writer }{w}, bytes.NewReader(bytes.Repeat([]byte("x"), size)))
			flushes(w, "", "")
		}, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser})
		ctx, leave := context.WithCancel(t.Context())
		resp, err := posting(ctx, s.Client(), s.URL, "", "X-User", "u", keyHeader, "k")
		if err != nil {
			t.Fatal(err)
		}
		g.runs(t)
		leave()
		_ = resp.Body.Close()
		g.let()
		again := settles(s, "1", "X-User", "u", keyHeader, "k", "Content-Type", "application/json")
		again.is(http.StatusOK, "begins "+strings.Repeat("x", size)).has("Idempotency-Replayed", "true")
	}},
	{"a twin that waits gets a flushed answer when it has ended", func(t *rig) {
		g := newGate(t)
		p := newProcess(t, t.kind.open(t.T), func(w http.ResponseWriter, r *http.Request) {
			flushes(w, "one,", "")
			g.handle(httptest.NewRecorder(), r)
			_, _ = io.WriteString(w, "two")
		}, policy.Wait(t.patience))
		first := p.sending("1", asUser...)
		g.runs(t)
		twin := p.sending("1", asUser...)
		p.met(t, 2)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "one,two")
		awaitAnswer(t, twin).is(http.StatusOK, "one,two").has("Idempotency-Replayed", "true")
	}},
}

// proxy returns a reverse proxy to an upstream server.
func proxy(t *rig, upstream string) *httputil.ReverseProxy {
	t.Helper()
	p := httputil.NewSingleHostReverseProxy(must(url.Parse(upstream)))
	p.ErrorLog = log.New(io.Discard, "", 0)
	return p
}
