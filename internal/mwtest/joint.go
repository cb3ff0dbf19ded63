package mwtest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

func contextWith(r *http.Request, user string) context.Context {
	return context.WithValue(r.Context(), Key{Name: "user"}.ContextKey(), user)
}

// all is one middleware of each policy, in the order of the documentation.
func all(t *testing.T) []Middleware {
	store := newStore(t)
	return []Middleware{
		RateLimit{Limiter: newLimiter(t, store, apiPlan), By: byHeader},
		Idempotency{Guard: newGuard(t, store), By: byUser},
		Exclusive{Locker: newLocker(t, store), By: byID},
		Concurrency{Semaphore: newSemaphore(t, store, 1), By: byID},
	}
}

// jointRows are about all policies.
var jointRows = []row{
	{"one after the other", func(t *testing.T, f Framework) {
		var c counter
		s := serve(t, f, c.handle, all(t)...)
		for range 2 {
			s.send("1", "", "X-Key", "a", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		}
		c.ran(t, 1)
	}},
	{"a guard keeps no refusal of what is behind it", func(t *testing.T, f Framework) {
		g := newGate()
		store := newStore(t)
		s := serve(t, f, g.handle,
			Idempotency{Guard: newGuard(t, store), By: byUser}, Exclusive{Locker: newLocker(t, store), By: byID})
		first := s.sending("1", "X-User", "u", keyHeader, "first")
		g.runs(t)
		s.send("1", "", "X-User", "u", keyHeader, "second").denies(policy.Locked)
		g.let()
		comes(t, first).is(http.StatusOK, "done")
		second := s.sending("1", "X-User", "u", keyHeader, "second")
		g.runs(t)
		g.let()
		comes(t, second).is(http.StatusOK, "done")
	}},
	{"what is flushed arrives at once", func(t *testing.T, f Framework) {
		leave := make(chan struct{})
		s := serve(t, f, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: one\n\n")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			<-leave
			_, _ = io.WriteString(w, "data: two\n\n")
		}, all(t)...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+Path+"1", nil)
		must(t, req, err)
		req.Header.Set("X-Key", "a")
		req.Header.Set("X-User", "u")
		req.Header.Set(keyHeader, "k")
		resp, err := http.DefaultClient.Do(req)
		must(t, resp, err)
		defer resp.Body.Close() //nolint:errcheck // it has been read
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		close(leave)
		if err != nil || line != "data: one\n" {
			t.Errorf("%q, %v", line, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}},
	{"a connection can be taken over", func(t *testing.T, f Framework) {
		s := serve(t, f, func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Errorf("Hijack: %v", err)
				return
			}
			defer conn.Close() //nolint:errcheck // the test's client has what it wants
			_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nhello")
			_ = buffered.Flush()
		}, all(t)...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+Path+"1", nil)
		must(t, req, err)
		for name, value := range map[string]string{"X-Key": "a", "X-User": "u", "Connection": "Upgrade", "Upgrade": "test"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, resp, err)
		defer resp.Body.Close() //nolint:errcheck // it has been read
		text := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, text); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || string(text) != "hello" {
			t.Errorf("%d %q, %v", resp.StatusCode, text, err)
		}
	}},
	{"over HTTP/2", func(t *testing.T, f Framework) {
		var c counter
		secure := httptest.NewUnstartedServer(f.Serve(c.handle, all(t)...))
		secure.EnableHTTP2 = true
		secure.StartTLS()
		t.Cleanup(secure.Close)
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, secure.URL+Path+"1", strings.NewReader("body"))
			must(t, req, err)
			for name, value := range map[string]string{"X-Key": "a", "X-User": "u", keyHeader: "k"} {
				req.Header.Set(name, value)
			}
			resp, err := secure.Client().Do(req)
			must(t, resp, err)
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusCreated || string(body) != "run 1" {
				t.Errorf("%s %d %q, %v", resp.Proto, resp.StatusCode, body, err)
			}
		}
		c.ran(t, 1)
	}},
}
