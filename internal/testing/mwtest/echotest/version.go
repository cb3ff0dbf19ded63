// Package echotest tests the middleware for each version of echo beyond the table of behaviour:
// where its keys come from, and what the application's HTTPErrorHandler gets.
package echotest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Context is the common part of the contexts of all versions.
type Context interface {
	Request() *http.Request
	SetRequest(r *http.Request)
	Set(key string, value any)
	String(status int, body string) error
	JSON(status int, body any) error
	comparable
}

// Version is a version of echo, and the middleware for it. C is its context, K its KeyFunc and M
// its middleware.
type Version[C Context, K ~func(C) (string, error), M any] struct {
	// Serve returns the handler of an application.
	Serve func(App[C, M]) http.Handler
	// Before is middleware that calls a function before the handler.
	Before func(func(C)) M
	// Around is middleware that calls a function, which may call the handler.
	Around func(func(c C, next func(C) error) error) M
	// BodyLimit and Gzip, of answers of at least so many bytes, are echo's own middleware.
	BodyLimit func(bytes int64) M
	Gzip      func(least int) M
	// Committed reports whether an answer has begun.
	Committed func(C) bool
	// HTTPError is an error of echo's own.
	HTTPError func(status int, message string) error

	ByParam   func(name string) K
	ByRoute   func() K
	ByContext func(key any) K
	Global    func() K
	Join      func(...K) K
	FirstOf   func(...K) K
	DenialOf  func(error) (policy.Denial, bool)

	RateLimit   func(*tokenbucket.Limiter, K, ...policy.RateLimitOption) M
	Idempotency func(*guard.Guard, ...policy.IdempotencyOption) M // unscoped
	Exclusive   func(*lock.Locker, K, ...policy.ExclusiveOption) M
	Concurrency func(*semaphore.Semaphore, K, ...policy.ConcurrencyOption) M
	OnDeny      func(func(C, policy.Denial) error) policy.RateLimitOption
	OnError     func(func(C, error)) policy.RateLimitOption
}

// App is an application of one route, for all methods.
type App[C Context, M any] struct {
	Route   string
	Handler func(C) error
	Use     []M
	// OnError is its HTTPErrorHandler; nil for echo's own, which is then set to show errors to
	// clients.
	OnError func(C, error)
	// Log receives the output of its logger.
	Log io.Writer
}

// Run runs all tests.
func Run[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	t.Run("keys", func(t *testing.T) { keys(t, v) })
	t.Run("params", func(t *testing.T) { params(t, v) })
	t.Run("denials", func(t *testing.T) { denials(t, v) })
	t.Run("errors of handlers", func(t *testing.T) { errorsOfHandlers(t, v) })
	t.Run("default handler", func(t *testing.T) { defaultHandler(t, v) })
	t.Run("statuses of compressed answers", func(t *testing.T) { compressed(t, v) })
	t.Run("own handler", func(t *testing.T) { ownHandler(t, v) })
	t.Run("recycled contexts", func(t *testing.T) { recycledContexts(t, v) })
	t.Run("body limit", func(t *testing.T) { bodyLimit(t, v) })
	t.Run("refused behind a guard", func(t *testing.T) { refusedBehindGuard(t, v) })
	t.Run("charged statuses", func(t *testing.T) { chargedStatuses(t, v) })
	t.Run("samples", func(t *testing.T) { samples(t, v) })
	t.Run("what is not returned", func(t *testing.T) { notReturned(t, v) })
}

// send sends a request to a handler, with these header fields: name, value, name, value.
func send(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader("body"))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newStore(t *testing.T) *storetest.Faulty {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	return storetest.NewFaulty(store)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
