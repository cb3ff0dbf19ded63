package mwtest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

func contextWith(r *http.Request, user string) context.Context {
	return context.WithValue(r.Context(), Key{Name: "user"}.ContextKey(), user)
}

// all is one middleware of each policy, in the order of the documentation.
func all(t *rig) []Middleware {
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
	{"all policies work in one chain", func(t *rig) {
		var c counter
		s := serve(t, c.handle, all(t)...)
		for range 2 {
			s.send("1", "", "X-Key", "a", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		}
		c.ran(t, 1)
	}},
	{"a guard does not keep refusals behind it", func(t *rig) {
		g := newGate(t)
		store := newStore(t)
		s := serve(t, g.handle,
			Idempotency{Guard: newGuard(t, store), By: byUser}, Exclusive{Locker: newLocker(t, store), By: byID})
		first := s.sending("1", "X-User", "u", keyHeader, "first")
		g.runs(t)
		s.send("1", "", "X-User", "u", keyHeader, "second").denies(policy.Locked)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		second := s.sending("1", "X-User", "u", keyHeader, "second")
		g.runs(t)
		g.let()
		awaitAnswer(t, second).is(http.StatusOK, "done")
	}},
	{"all policies work over HTTP/2", func(t *rig) {
		var c counter
		secure := httptest.NewUnstartedServer(t.framework.Serve(c.handle, all(t)...))
		secure.EnableHTTP2 = true
		secure.StartTLS()
		t.Cleanup(secure.Close)
		for range 2 {
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, secure.URL+Path+"1", strings.NewReader("body")))
			for name, value := range map[string]string{"X-Key": "a", "X-User": "u", keyHeader: "k"} {
				req.Header.Set(name, value)
			}
			resp, err := secure.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusCreated || string(body) != "run 1" {
				t.Errorf("%s %d %q, %v", resp.Proto, resp.StatusCode, body, err)
			}
		}
		c.ran(t, 1)
	}},
}
