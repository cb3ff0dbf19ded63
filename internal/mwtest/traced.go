package mwtest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Traced is a Framework that can be traced.
type Traced interface {
	Framework
	// ServeTraced is Serve with the framework's tracing middleware outermost.
	ServeTraced(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...Middleware) http.Handler
}

// tracedRows are about the server's span. A denial is not an error; a failure to decide is one.
var tracedRows = []row{
	{"an allowed request has no error", func(t *testing.T, f Framework) {
		s := serveTraced(t, f, passing(t)...)
		s.send(keyHeader, "k").is(http.StatusOK, "hello")
		s.spanSays(http.StatusOK, codes.Unset)
	}},
	{"a request over the limit is denied", func(t *testing.T, f Framework) {
		s := serveTraced(t, f, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerMinute(1)), By: byID})
		s.send().is(http.StatusOK, "hello")
		s.send().denies(policy.QuotaExceeded)
		s.spanSays(http.StatusTooManyRequests, codes.Unset)
	}},
	{"locked", func(t *testing.T, f Framework) {
		l := newLocker(t, newStore(t))
		must(l.TryLock(t.Context(), "1"))
		s := serveTraced(t, f, Exclusive{Locker: l, By: byID})
		s.send().denies(policy.Locked)
		s.spanSays(http.StatusConflict, codes.Unset)
	}},
	{"a request over the capacity has no error", func(t *testing.T, f Framework) {
		sem := newSemaphore(t, newStore(t), 1)
		must(sem.TryAcquire(t.Context(), "1"))
		s := serveTraced(t, f, Concurrency{Semaphore: sem, By: byID})
		s.send().denies(policy.TooManyAtOnce)
		s.spanSays(http.StatusTooManyRequests, codes.Unset)
	}},
	{"a malformed or reused idempotency key has no error", func(t *testing.T, f Framework) {
		s := serveTraced(t, f, Idempotency{Guard: newGuard(t, newStore(t))})
		s.send(keyHeader, "").denies(policy.KeyMalformed)
		s.spanSays(http.StatusBadRequest, codes.Unset)
		s.send(keyHeader, "k").is(http.StatusOK, "hello")
		s.send(keyHeader, "k", "Content-Type", "text/plain").denies(policy.KeyReused)
		s.spanSays(http.StatusUnprocessableEntity, codes.Unset)
	}},
	{"a missing key is allowed unless required", func(t *testing.T, f Framework) {
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
	{"an unavailable store refuses requests", func(t *testing.T, f Framework) {
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
}

// traced is a server and its spans.
type traced struct {
	t       *testing.T
	handler http.Handler
	spans   *tracetest.SpanRecorder
}

func serveTraced(t *testing.T, f Framework, middleware ...Middleware) traced {
	t.Helper()
	s, ok := f.(Traced)
	if !ok {
		t.Skip("it cannot be traced")
	}
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	return traced{t, s.ServeTraced(provider, hello, middleware...), spans}
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
	ended := s.spans.Ended()
	if len(ended) == 0 {
		s.t.Fatal("no span has ended")
	}
	span := ended[len(ended)-1]
	if span.SpanKind() != trace.SpanKindServer || statusOf(span) != int64(status) || span.Status().Code != code {
		s.t.Errorf("%s span with status %d: %v; want %d and %s", span.SpanKind(), statusOf(span), span.Status(), status, code)
	}
}

// statusOf returns the status attribute of the answer, which has had two names.
func statusOf(span sdk.ReadOnlySpan) int64 {
	for _, a := range span.Attributes() {
		if a.Key == "http.response.status_code" || a.Key == "http.status_code" {
			return a.Value.AsInt64()
		}
	}
	return 0
}
