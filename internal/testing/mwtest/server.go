package mwtest

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// must returns the value of a constructor, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// server is a framework's server, and its client: rows do not share connections.
type server struct {
	t *rig
	*httptest.Server
}

// serve starts a server whose handler is behind the middleware.
func serve(t *rig, handler http.HandlerFunc, middleware ...Middleware) server {
	t.Helper()
	return serveHandler(t, t.framework.Serve(handler, middleware...))
}

// serveHandler starts a server. What its handler panics with is in no log.
func serveHandler(t *rig, handler http.Handler) server {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return server{t, s}
}

// answer is the answer to a client.
type answer struct {
	t      *rig
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
	req, err := http.NewRequestWithContext(ctx, method, s.URL+Path+id, strings.NewReader(body))
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
	resp, err := s.Client().Do(req)
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
func awaitAnswer(t *rig, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(t.patience):
		t.Fatal("no answer")
		return answer{}
	}
}

// is checks the status and the body, in which ~ stands before seconds that pass: see matches.
func (a answer) is(status int, body string) answer {
	a.t.Helper()
	if a.status != status || !a.matches(a.body, body) {
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

// has checks a header field, in which ~ stands before seconds that pass: see matches.
func (a answer) has(name, want string) answer {
	a.t.Helper()
	if got := a.header.Get(name); !a.matches(got, want) {
		a.t.Errorf("%s is %q, want %q", name, got, want)
	}
	return a
}

var secondsLeft = regexp.MustCompile(`~(\d+)`)

// matches compares a text with a wanted one, in which ~60 stands for 60, or for less by up to the
// seconds that the row has lasted: a busy machine takes longer than one for a few requests.
func (a answer) matches(got, want string) bool {
	if !strings.Contains(want, "~") {
		return got == want
	}
	passed := int((time.Since(a.t.began) + 200*time.Millisecond) / time.Second) // or it was rounded up
	pattern := secondsLeft.ReplaceAllString(regexp.QuoteMeta(want), `(\d+)`)
	found := regexp.MustCompile("^" + pattern + "$").FindStringSubmatch(got)
	if found == nil {
		return false
	}
	for i, seconds := range secondsLeft.FindAllStringSubmatch(want, -1) {
		most := must(strconv.Atoi(seconds[1]))
		if n := must(strconv.Atoi(found[i+1])); n > most || n < most-passed {
			return false
		}
	}
	return true
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

func (c *counter) ran(t *rig, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs != want {
		t.Errorf("the handler ran %d times, want %d", c.runs, want)
	}
}

// gate is a handler that reports when it runs, and blocks until it is released.
type gate struct {
	entered  chan struct{}
	leave    chan struct{}
	patience time.Duration // longer than that of the row, which may send many requests in that time
}

func newGate(t *rig) gate {
	return gate{make(chan struct{}, 100), make(chan struct{}, 100), 6 * t.patience}
}

func (g gate) handle(w http.ResponseWriter, r *http.Request) {
	g.entered <- struct{}{}
	select {
	case <-g.leave:
	case <-time.After(g.patience):
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, "done")
}

// runs waits until a request is in the handler.
func (g gate) runs(t *rig) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(t.patience):
		t.Fatal("the handler does not run")
	}
}

func (g gate) idle(t *rig) {
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
func keyRows(wire func(t *rig, by Key, hooks Hooks) Middleware, header ...string) []row {
	send := func(s server, more ...string) answer {
		return s.send("1", "", append(append([]string(nil), header...), more...)...)
	}
	return []row{
		{"a request without the key is refused", func(t *rig) {
			var c counter
			s := serve(t, c.handle, wire(t, Key{Kind: ByHeader, Name: "X-Key"}, Hooks{}))
			send(s).denies(policy.KeyMissing)
			send(s, "X-Key", "").denies(policy.KeyMissing)
			send(s, "X-Key", "a", "X-Key", "b").denies(policy.KeyMissing)
			c.ran(t, 0)
			send(s, "X-Key", "a").is(http.StatusCreated, "run 1")
		}},
		{"a failing key function is refused as an internal error", func(t *rig) {
			var c counter
			send(serve(t, c.handle, wire(t, Key{Kind: Failing, Err: errKey}, Hooks{}))).denies(policy.InternalError)
			c.ran(t, 0)
		}},
		{"a skipped request passes", func(t *rig) {
			var c counter
			s := serve(t, c.handle, wire(t, Key{Kind: Failing, Err: errKey}, Hooks{Skip: skipping}))
			for n := range 3 {
				send(s, "X-Skip", "yes").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
			}
			send(s).denies(policy.InternalError)
		}},
		{"the application can answer denials", func(t *rig) {
			var c counter
			s := serve(t, c.handle, wire(t, Key{Kind: ByHeader, Name: "X-Key"}, Hooks{Deny: onDenial}))
			send(s).is(http.StatusTeapot, "denied: key-missing")
			send(s, "X-Key", "a").is(http.StatusCreated, "run 1")
			c.ran(t, 1)
		}},
		{"every builder of keys works", func(t *rig) {
			for _, by := range []Key{{Kind: ByID, Name: "id"}, {Kind: ByContext, Name: "user"}, {Kind: ByClientIP}, {Kind: Global}} {
				var c counter
				send(serve(t, c.handle, wire(t, by, Hooks{})), "X-User", "any").is(http.StatusCreated, "run 1")
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
