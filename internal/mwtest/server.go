package mwtest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// patience is how long a test waits for an event. A test of the table shortens it.
var patience = 10 * time.Second

// newStore returns a new store that fails on command: one in memory, or that of [RunOn].
func newStore(t *testing.T) *storetest.Faulty { return storetest.NewFaulty(openStore(t)()) }

// openStore returns what connects to a new store; onServer is set if that is not in memory.
var (
	openStore = inMemory
	onServer  bool
)

// timed runs a test with faked time.
func timed(t *testing.T, test func(*testing.T)) {
	if onServer {
		t.Skip("a server does not have the time of the test")
	}
	synctest.Test(t, test)
}

// timedRow is a row with faked time.
func timedRow(name string, test func(*testing.T, Framework)) row {
	return row{name, func(t *testing.T, f Framework) {
		timed(t, func(t *testing.T) { test(t, f) })
	}}
}

// must returns the value of a constructor, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// server is a framework's server, and its client.
type server struct {
	t   *testing.T
	url string
}

// serve starts a server whose handler is behind the middleware.
func serve(t *testing.T, f Framework, handler http.HandlerFunc, middleware ...Middleware) server {
	t.Helper()
	s := httptest.NewServer(f.Serve(handler, middleware...))
	t.Cleanup(s.Close)
	return server{t, s.URL}
}

// answer is the answer to a client.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// send sends a request with these header fields: name, value, name, value. The id may have a query.
func (s server) send(id, body string, header ...string) answer {
	s.t.Helper()
	return s.request(http.MethodPost, id, body, header...)
}

// request is send with another method.
func (s server) request(method, id, body string, header ...string) answer {
	s.t.Helper()
	ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			s.hides(http.Header(header))
			return nil
		},
	})
	req, err := http.NewRequestWithContext(ctx, method, s.url+Path+id, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.broken(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.broken(err)
	}
	s.hides(resp.Header)
	s.hides(resp.Trailer)
	return answer{s.t, resp.StatusCode, resp.Header, string(text)}
}

// broken fails the test for a request without an answer, unless the test has ended, which cancels the
// requests that it no longer waits for: then it ends the goroutine.
func (s server) broken(err error) {
	s.t.Helper()
	if s.t.Context().Err() != nil {
		runtime.Goexit()
	}
	s.t.Fatal(err)
}

// hides checks that the answer has no field that only middleware may see.
func (s server) hides(h http.Header) {
	s.t.Helper()
	for name, values := range h {
		if strings.HasPrefix(name, markPrefix) {
			s.t.Errorf("the client gets %s: %q", name, values)
		}
	}
}

// sending sends a request in the background.
func (s server) sending(id string, header ...string) <-chan answer {
	answers := make(chan answer, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		answers <- s.send(id, "", header...)
	}()
	s.t.Cleanup(func() { <-done }) // no reports to a test that has ended
	return answers
}

// awaitAnswer waits for an answer.
func awaitAnswer(t *testing.T, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		return answer{}
	}
}

func (a answer) is(status int, body string) answer {
	a.t.Helper()
	if a.status != status || a.body != body {
		a.t.Fatalf("%d %q, want %d %q", a.status, a.body, status, body)
	}
	return a
}

// denies checks that an answer is a denial with a problem body (RFC 9457).
func (a answer) denies(reason policy.Reason) answer {
	a.t.Helper()
	want := policy.Denial{Reason: reason}
	var problem struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		a.t.Fatalf("%d %q is no problem: %v", a.status, a.body, err)
	}
	if a.status != want.Status() || problem.Status != want.Status() || problem.Type != want.Type() || problem.Title == "" {
		a.t.Fatalf("%d %q, want %s with status %d", a.status, a.body, reason, want.Status())
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Errorf("a problem of type %q", got)
	}
	retry := a.header.Get("Retry-After")
	switch want.Status() {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if n, err := strconv.Atoi(retry); err != nil || n < 1 {
			a.t.Errorf("%s with Retry-After %q", reason, retry)
		}
	}
	if strings.Contains(a.body, secret) {
		a.t.Errorf("the body is %q", a.body)
	}
	return a
}

// has checks a header field.
func (a answer) has(name, want string) answer {
	a.t.Helper()
	if got := a.header.Get(name); got != want {
		a.t.Errorf("%s is %q, want %q", name, got, want)
	}
	return a
}

// secret is in the errors of key functions, and must not be in answers.
const secret = "do-not-reveal"

var errKey = errors.New(secret)

// counter is a handler that counts its runs, and answers with the number.
type counter struct {
	mu   sync.Mutex
	runs int
}

func (c *counter) handle(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	c.runs++
	n := c.runs
	c.mu.Unlock()
	w.Header().Set("X-Run", strconv.Itoa(n))
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "run "+strconv.Itoa(n))
}

func (c *counter) ran(t *testing.T, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs != want {
		t.Errorf("the handler ran %d times, want %d", c.runs, want)
	}
}

// gate is a handler that reports when it runs, and blocks until it is released.
type gate struct {
	entered chan struct{}
	leave   chan struct{}
}

func newGate() gate { return gate{make(chan struct{}, 100), make(chan struct{}, 100)} }

func (g gate) handle(w http.ResponseWriter, r *http.Request) {
	g.entered <- struct{}{}
	select {
	case <-g.leave:
	case <-time.After(patience):
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, "done")
}

// runs waits until a request is in the handler.
func (g gate) runs(t *testing.T) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(patience):
		t.Fatal("the handler does not run")
	}
}

func (g gate) idle(t *testing.T) {
	t.Helper()
	select {
	case <-g.entered:
		t.Fatal("the handler runs")
	default:
	}
}

func (g gate) let() { g.leave <- struct{}{} }

// onDenial answers denials with another text.
func onDenial(d policy.Denial) (int, string) { return http.StatusTeapot, "denied: " + string(d.Reason) }

// skipping skips requests with a header field for it.
func skipping(r *http.Request) bool { return r.Header.Get("X-Skip") != "" }

// keyRows are the rows about keys of all policies: wire returns the middleware with a key.
func keyRows(wire func(t *testing.T, by Key, hooks Hooks) Middleware, header ...string) []row {
	send := func(s server, more ...string) answer {
		return s.send("1", "", append(append([]string(nil), header...), more...)...)
	}
	return []row{
		{"a request without the key is refused", func(t *testing.T, f Framework) {
			var c counter
			s := serve(t, f, c.handle, wire(t, Key{Kind: ByHeader, Name: "X-Key"}, Hooks{}))
			send(s).denies(policy.KeyMissing)
			send(s, "X-Key", "").denies(policy.KeyMissing)
			send(s, "X-Key", "a", "X-Key", "b").denies(policy.KeyMissing)
			c.ran(t, 0)
			send(s, "X-Key", "a").is(http.StatusCreated, "run 1")
		}},
		{"a failing key function is refused as an internal error", func(t *testing.T, f Framework) {
			var c counter
			send(serve(t, f, c.handle, wire(t, Key{Kind: Failing, Err: errKey}, Hooks{}))).denies(policy.InternalError)
			c.ran(t, 0)
		}},
		{"a skipped request passes", func(t *testing.T, f Framework) {
			var c counter
			s := serve(t, f, c.handle, wire(t, Key{Kind: Failing, Err: errKey}, Hooks{Skip: skipping}))
			for n := range 3 {
				send(s, "X-Skip", "yes").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
			}
			send(s).denies(policy.InternalError)
		}},
		{"the application can answer denials", func(t *testing.T, f Framework) {
			var c counter
			s := serve(t, f, c.handle, wire(t, Key{Kind: ByHeader, Name: "X-Key"}, Hooks{Deny: onDenial}))
			send(s).is(http.StatusTeapot, "denied: key-missing")
			send(s, "X-Key", "a").is(http.StatusCreated, "run 1")
			c.ran(t, 1)
		}},
		{"every builder of keys works", func(t *testing.T, f Framework) {
			for _, by := range []Key{{Kind: ByID, Name: "id"}, {Kind: ByContext, Name: "user"}, {Kind: ByClientIP}, {Kind: Global}} {
				var c counter
				send(serve(t, f, c.handle, wire(t, by, Hooks{})), "X-User", "any").is(http.StatusCreated, "run 1")
			}
		}},
	}
}

// WithUser is for the outermost handler of a Framework: it puts the header X-User into the
// request's context, where a ByContext key for "user" finds it.
func WithUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user := r.Header.Get("X-User"); user != "" {
			r = r.WithContext(contextWith(r, user))
		}
		next.ServeHTTP(w, r)
	})
}
