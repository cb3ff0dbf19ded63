package mwtest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Traced is a framework with tracing middleware.
type Traced interface {
	// ServeTraced is Serve of a Framework with the tracing middleware outermost. It returns also a
	// function that returns the last span of the server; false if no span has ended.
	ServeTraced(handler http.HandlerFunc, middleware ...Middleware) (http.Handler, func() (Span, bool))
}

// Span is what is checked of a span.
type Span struct {
	Kind   trace.SpanKind
	Code   codes.Code
	Status int64 // the attribute with the answer's status
}

// RunTraced runs the rows about the server's span, which tracing middleware makes.
func RunTraced(t *testing.T, f Traced) {
	for _, r := range tracedRows {
		newRig(t, nil, inMemory).Run(r.name, func(t *rig) { r.test(t, f) })
	}
}

// tracedRows are about the server's span. A denial is not an error; a failure to decide is one.
var tracedRows = []struct {
	name string
	test func(*rig, Traced)
}{
	{"an allowed request has no error", func(t *rig, f Traced) {
		s := serveTraced(t, f, passing(t)...)
		s.send(keyHeader, "k").is(http.StatusOK, "hello")
		s.spanSays(http.StatusOK, codes.Unset)
	}},
	{"a request over the limit is denied", func(t *rig, f Traced) {
		s := serveTraced(t, f, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerMinute(1)), By: byID})
		s.send().is(http.StatusOK, "hello")
		s.send().denies(policy.QuotaExceeded)
		s.spanSays(http.StatusTooManyRequests, codes.Unset)
	}},
	{"a shadow's denial and its failure are no errors", func(t *rig, f Traced) {
		st := newStore(t)
		s := serveTraced(t, f, RateLimit{
			Limiter: newLimiter(t, st, tokenbucket.PerMinute(1)), By: byID, Options: []policy.RateLimitOption{policy.Shadow()},
		})
		s.send().is(http.StatusOK, "hello")
		s.send().is(http.StatusOK, "hello")
		s.spanSays(http.StatusOK, codes.Unset)
		st.Break(storetest.TakeTokens, storetest.Down)
		s.send().is(http.StatusOK, "hello")
		s.spanSays(http.StatusOK, codes.Unset)
	}},
	{"locked", func(t *rig, f Traced) {
		l := newLocker(t, newStore(t))
		locked(t, l)
		s := serveTraced(t, f, Exclusive{Locker: l, By: byID})
		s.send().denies(policy.Locked)
		s.spanSays(http.StatusConflict, codes.Unset)
	}},
	{"a request over the capacity has no error", func(t *rig, f Traced) {
		sem := newSemaphore(t, newStore(t), 1)
		permitted(t, sem)
		s := serveTraced(t, f, Concurrency{Semaphore: sem, By: byID})
		s.send().denies(policy.TooManyAtOnce)
		s.spanSays(http.StatusTooManyRequests, codes.Unset)
	}},
	{"a malformed or reused idempotency key has no error", func(t *rig, f Traced) {
		s := serveTraced(t, f, Idempotency{Guard: newGuard(t, newStore(t))})
		s.send(keyHeader, "").denies(policy.KeyMalformed)
		s.spanSays(http.StatusBadRequest, codes.Unset)
		s.send(keyHeader, "k").is(http.StatusOK, "hello")
		s.send(keyHeader, "k", "Content-Type", "text/plain").denies(policy.KeyReused)
		s.spanSays(http.StatusUnprocessableEntity, codes.Unset)
	}},
	{"a missing key is allowed unless required", func(t *rig, f Traced) {
		store := newStore(t)
		for _, m := range []Middleware{
			RateLimit{Limiter: newLimiter(t, store, apiPlan), By: byHeader},
			Idempotency{Guard: newGuard(t, store), Options: []policy.IdempotencyOption{policy.Required()}},
			Exclusive{Locker: newLocker(t, store), By: byHeader},
			Concurrency{Semaphore: newSemaphore(t, store, 1), By: byHeader},
		} {
			s := serveTraced(t, f, m)
			s.send().denies(policy.KeyMissing)
			s.spanSays(http.StatusBadRequest, codes.Unset)
		}
	}},
	{"an unavailable store refuses requests", func(t *rig, f Traced) {
		store := newStore(t)
		store.Break(storetest.Any, storetest.Down)
		for _, m := range []Middleware{
			RateLimit{Limiter: newLimiter(t, store, apiPlan), By: byID},
			Idempotency{Guard: newGuard(t, store)},
			Exclusive{Locker: newLocker(t, store), By: byID},
			Concurrency{Semaphore: newSemaphore(t, store, 1), By: byID},
		} {
			s := serveTraced(t, f, m)
			s.send(keyHeader, "k").denies(policy.ReducedCapacity)
			s.spanSays(http.StatusServiceUnavailable, codes.Error)
		}
	}},
	{"a late request is no error of the server", func(t *rig, f Traced) {
		c := newChecker(t)
		s := serveTraced(t, f, Fenced{Checker: c, By: byID})
		s.send(fence.Header, "2").is(http.StatusOK, "hello")
		s.spanSays(http.StatusOK, codes.Unset)
		s.send(fence.Header, "1").denies(policy.StaleFence)
		s.spanSays(http.StatusPreconditionFailed, codes.Unset)
		s.send().denies(policy.FenceMissing)
		s.spanSays(http.StatusPreconditionRequired, codes.Unset)
		c.fail(store.ErrUnavailable)
		s.send(fence.Header, "2").denies(policy.ReducedCapacity)
		s.spanSays(http.StatusServiceUnavailable, codes.Error)
	}},
}

// traced is a server and its last span.
type traced struct {
	t       *rig
	handler http.Handler
	last    func() (Span, bool)
}

func serveTraced(t *rig, f Traced, middleware ...Middleware) traced {
	t.Helper()
	handler, last := f.ServeTraced(hello, middleware...)
	return traced{t, handler, last}
}

// send sends a request with these header fields: name, value, name, value. Its span has ended with
// it.
func (s traced) send(header ...string) answer {
	s.t.Helper()
	req := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, Path+"1", strings.NewReader("body"))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, req)
	return answer{s.t, w.Code, w.Header(), w.Body.String()}
}

// spanSays checks the span that the server ended last.
func (s traced) spanSays(status int, code codes.Code) {
	s.t.Helper()
	got, ok := s.last()
	if !ok {
		s.t.Fatal("no span has ended")
	}
	if want := (Span{trace.SpanKindServer, code, int64(status)}); got != want {
		s.t.Errorf("the span is %+v, want %+v", got, want)
	}
}
