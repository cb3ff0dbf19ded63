package idempotency_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m)
}

// server is a gin server with one guarded route for POST, PATCH, PUT and GET.
type server struct {
	t     *testing.T
	url   string
	store *storetest.Faulty
	guard *guard.Guard
	runs  atomic.Int64
	// errors are what gin was told of.
	errors chan error
}

func newServer(t *testing.T, handler gin.HandlerFunc, guardOpts []guard.Option, opts ...policy.IdempotencyOption) *server {
	t.Helper()
	return newServerBehind(t, func(*gin.Context) {}, handler, guardOpts, opts...)
}

func newServerBehind(t *testing.T, outer, handler gin.HandlerFunc, guardOpts []guard.Option, opts ...policy.IdempotencyOption) *server {
	t.Helper()
	s := &server{t: t, store: storetest.NewFaulty(memstore.New()), errors: make(chan error, 100)}
	var err error
	if s.guard, err = guard.New(s.store, "test", guardOpts...); err != nil {
		t.Fatal(err)
	}
	r := gin.New()
	r.Use(gin.RecoveryWithWriter(io.Discard), outer, func(c *gin.Context) {
		if user := c.GetHeader("X-User"); user != "" {
			c.Set("user", user)
		}
		c.Next()
		for _, e := range c.Errors {
			s.errors <- e.Err
		}
	})
	r.Use(idempotency.New(s.guard, ginmw.ScopeBy(ginmw.ByContext("user")), opts...))
	counted := func(c *gin.Context) {
		s.runs.Add(1)
		handler(c)
	}
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodGet} {
		r.Handle(method, "/pay/:id", counted)
	}
	web := httptest.NewServer(r)
	t.Cleanup(func() {
		web.Close()
		_ = s.store.Close()
	})
	s.url = web.URL
	return s
}

// answer is a response that has been read.
type answer struct {
	*http.Response
	body string
}

// request is what a test changes about its usual request: POST /pay/1 by alice with key k1.
type request struct {
	method, path, body, user string
	keys                     []string
	header                   http.Header
}

func (s *server) do(change ...func(*request)) answer {
	s.t.Helper()
	r := request{method: http.MethodPost, path: "/pay/1", body: `{"n":1}`, user: "alice", keys: []string{"k1"}, header: http.Header{}}
	for _, f := range change {
		f(&r)
	}
	req, err := http.NewRequest(r.method, s.url+r.path, strings.NewReader(r.body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header = r.header
	req.Header.Set("Content-Type", "application/json")
	if r.user != "" {
		req.Header.Set("X-User", r.user)
	}
	req.Header["Idempotency-Key"] = r.keys
	return s.send(req)
}

func (s *server) send(req *http.Request) answer {
	s.t.Helper()
	req.GetBody = nil // or the transport would send a keyed request again by itself
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp, string(body)}
}

func key(keys ...string) func(*request) { return func(r *request) { r.keys = keys } }
func body(b string) func(*request)      { return func(r *request) { r.body = b } }
func user(u string) func(*request)      { return func(r *request) { r.user = u } }
func path(p string) func(*request)      { return func(r *request) { r.path = p } }
func method(m string) func(*request)    { return func(r *request) { r.method = m } }

func (s *server) wantRuns(n int64) {
	s.t.Helper()
	if got := s.runs.Load(); got != n {
		s.t.Fatalf("the handler ran %d times, want %d", got, n)
	}
}

func (s *server) wantNoErrors() {
	s.t.Helper()
	select {
	case err := <-s.errors:
		s.t.Errorf("gin was told of %v", err)
	default:
	}
}

func (a answer) want(t *testing.T, status int, replayed bool) answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", a.StatusCode, status, a.body)
	}
	if got := a.Header.Get("Idempotency-Replayed") == "true"; got != replayed {
		t.Fatalf("replayed is %v, want %v", got, replayed)
	}
	return a
}

func (a answer) wantProblem(t *testing.T, status int, kind string) answer {
	t.Helper()
	a.want(t, status, false)
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	var problem struct {
		Type   string
		Status int
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if !strings.HasSuffix(problem.Type, "#"+kind) || problem.Status != status {
		t.Errorf("got problem %+v, want %s", problem, kind)
	}
	return a
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 10s: %s", what)
		}
	}
}
