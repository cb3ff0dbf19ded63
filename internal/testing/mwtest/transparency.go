package mwtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// passage is an interaction of a handler with its client that a middleware could prevent.
type passage struct {
	name string
	// want is the result of a client with net/http. With another framework the result may differ, but
	// then also without middleware.
	want string
	// http1 is set for features that HTTP/2 does not have.
	http1 bool
	// begin returns a handler, and a client function that returns its result.
	begin func(*rig) (http.HandlerFunc, func(client) string)
}

// RunThrough tests that a handler which takes over its connection works behind each middleware. See
// is the client; it returns what it sees, which is want with net/http.
func RunThrough(t *testing.T, f Framework, want string, handler http.HandlerFunc, see func(ctx context.Context, c *http.Client, url string) string) {
	passage{want: want, http1: true, begin: func(*rig) (http.HandlerFunc, func(client) string) {
		return handler, func(c client) string { return see(c.ctx, c.server.Client(), c.url()) }
	}}.row().test(newRig(t, f, inMemory))
}

func throughRows() []row {
	rows := make([]row, len(passages))
	for i, p := range passages {
		rows[i] = p.row()
	}
	return rows
}

// row tests the passage through each middleware, and through all of them.
func (p passage) row() row {
	return row{p.name, func(t *rig) {
		for _, version := range p.versions() {
			bare := p.seen(t, version)
			if bare != p.want {
				t.Logf("%s, without middleware: %q", version, bare)
			}
			for _, c := range chains(t) {
				t.Run(c.name+" "+version, func(t *rig) {
					if got := p.seen(t, version, c.middleware...); got != p.want && got != bare {
						t.Errorf("%q; without middleware it is %q, and of net/http %q", got, bare, p.want)
					}
				})
			}
		}
	}}
}

func (p passage) versions() []string {
	if p.http1 {
		return []string{"HTTP/1.1"}
	}
	return []string{"HTTP/1.1", "HTTP/2.0"}
}

// seen returns the result of a client of the handler behind the middleware.
func (p passage) seen(t *rig, version string, middleware ...Middleware) string {
	t.Helper()
	handler, see := p.begin(t)
	served := t.framework.Serve(handler, middleware...)
	var running sync.WaitGroup
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		served.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = version == "HTTP/2.0"
	server.StartTLS()
	defer running.Wait() // the server does not, for a connection that the handler has taken over
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), t.patience)
	defer cancel()
	return see(client{ctx, server})
}

// chain is a chain of middleware that allows every request.
type chain struct {
	name       string
	middleware []Middleware
}

func chains(t *rig) []chain {
	t.Helper()
	alone := passing(t)
	return []chain{
		{"ratelimit", alone[0:1]},
		{"ratelimit that settles", []Middleware{settlingLimit(t)}},
		{"idempotency", alone[1:2]},
		{"exclusive", alone[2:3]},
		{"concurrency", alone[3:4]},
		{"fenced", alone[4:5]},
		{"all", append(passing(t), settlingLimit(t))},
	}
}

func passing(t *rig) []Middleware {
	t.Helper()
	store := newStore(t)
	methods := policy.Methods(http.MethodGet, http.MethodPost)
	return []Middleware{
		RateLimit{Limiter: newLimiter(t, store, tokenbucket.PerMinute(1000)), By: Key{Kind: Global}},
		Idempotency{Guard: newGuard(t, store), Options: []policy.IdempotencyOption{methods}},
		Exclusive{Locker: newLocker(t, store), By: Key{Kind: Global}},
		Concurrency{Semaphore: newSemaphore(t, store, 1), By: Key{Kind: Global}},
		Fenced{Checker: newChecker(t), By: Key{Kind: Global}, Options: []policy.FencedOption{policy.AllowUnfenced()}},
	}
}

// settlingLimit is a limit that observes answers.
func settlingLimit(t *rig) Middleware {
	t.Helper()
	return RateLimit{
		Limiter: newLimiter(t, newStore(t), tokenbucket.PerMinute(1000)), By: Key{Kind: Global},
		Costs:   func(*http.Request) tokenbucket.Cost { return tokenbucket.Cost{"api": 1} },
		Options: []policy.RateLimitOption{policy.ChargeStatus(http.StatusUnauthorized)},
	}
}

// client is the client of a passage. Its requests end with the patience of the test.
type client struct {
	ctx    context.Context
	server *httptest.Server
}

// url returns the URL of the handler.
func (c client) url() string { return c.server.URL + Path + "1" }

// post sends a request with header fields: name, value, name, value. The caller closes the answer's
// body.
func (c client) post(t *rig, body io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	req := must(http.NewRequestWithContext(c.ctx, http.MethodPost, c.url(), body))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.server.Client().Do(req)
	if err == nil && (resp.ProtoMajor == 2) != c.server.EnableHTTP2 {
		t.Fatalf("the protocol is %s", resp.Proto)
	}
	return resp, err
}

// read returns the body of an answer to such a request, or the error.
func (c client) read(t *rig, body io.Reader, header ...string) string {
	t.Helper()
	resp, err := c.post(t, body, header...)
	if err != nil {
		return "no answer"
	}
	return readAll(resp)
}

func readAll(resp *http.Response) string {
	defer resp.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprintf("%q, and no more", body)
	}
	return string(body)
}
