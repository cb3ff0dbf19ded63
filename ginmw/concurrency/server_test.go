package concurrency_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m, redistest.Redialing())
}

// onEachStore runs a test on memory and on a real Redis. open returns a store as a process of its
// own has it.
func onEachStore(t *testing.T, test func(t *testing.T, open func() store.Permits)) {
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		test(t, func() store.Permits { return st })
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		test(t, func() store.Permits {
			st, err := redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second)) // a busy machine is no outage
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			return st
		})
	})
}

// newSemaphore returns a semaphore of reports that is closed when the test ends, before its store.
func newSemaphore(t *testing.T, st store.Permits, capacity int, opts ...semaphore.Option) *semaphore.Semaphore {
	t.Helper()
	s, err := semaphore.New(st, "reports", capacity, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// server is a gin server with one route, GET /reports/:tenant, that has a semaphore for each tenant.
type server struct {
	*gin.Engine
	t    *testing.T
	url  string // set by listen
	runs atomic.Int64
	// errors are what gin was told of.
	errors chan error
}

func newServer(t *testing.T, sem *semaphore.Semaphore, handler gin.HandlerFunc, opts ...policy.ConcurrencyOption) *server {
	t.Helper()
	return newServerWith(t, handler, concurrency.New(sem, ginmw.ByParam("tenant"), opts...))
}

func newServerWith(t *testing.T, handler gin.HandlerFunc, middleware ...gin.HandlerFunc) *server {
	t.Helper()
	s := &server{Engine: gin.New(), t: t, errors: make(chan error, 100)}
	s.Use(func(c *gin.Context) {
		defer func() {
			for _, e := range c.Errors {
				s.errors <- e.Err
			}
		}()
		ctx := c.Request.Context()
		c.Next()
		// Gin's context may be another request's when the request's own is over, so nothing is put back then.
		if _, ok := semaphore.FromContext(c.Request.Context()); ok && ctx.Err() == nil {
			t.Error("the request has the permit's context outside of the middleware")
		}
	}, gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	s.Use(middleware...)
	s.GET("/reports/:tenant", func(c *gin.Context) {
		s.runs.Add(1)
		handler(c)
	})
	return s
}

// listen has the server answer over the network.
func (s *server) listen() *server {
	web := httptest.NewServer(s)
	s.t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

// try sends GET to a path over the network.
func (s *server) try(ctx context.Context, path string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// get sends GET to a path, over the network if the server listens.
func (s *server) get(path string) answer {
	if s.url == "" {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return answer{w.Code, w.Header(), w.Body.String()}
	}
	a, err := s.try(context.Background(), path)
	if err != nil {
		s.t.Error(err)
	}
	return a
}

// later sends a request in the background.
func (s *server) later(path string) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- s.get(path) }()
	return answers
}

// fill has n requests run in a gate's handler, and returns where their answers will be.
func (s *server) fill(g *gate, path string, n int) []<-chan answer {
	s.t.Helper()
	answers := make([]<-chan answer, n)
	for i := range answers {
		answers[i] = s.later(path)
		<-g.entered
	}
	return answers
}

func (s *server) wantRuns(n int64) {
	s.t.Helper()
	if got := s.runs.Load(); got != n {
		s.t.Fatalf("the handler ran %d times, want %d", got, n)
	}
}

// wantError checks that gin was told of one error. None is wanted if target is nil.
func (s *server) wantError(target error) {
	s.t.Helper()
	select {
	case err := <-s.errors:
		if target == nil || !errors.Is(err, target) {
			s.t.Errorf("gin was told of %v, want %v", err, target)
		}
	default:
		if target != nil {
			s.t.Errorf("gin was told of nothing, want %v", target)
		}
	}
	if len(s.errors) > 0 {
		s.t.Errorf("gin was also told of %v", <-s.errors)
	}
}

func (a answer) want(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func (a answer) wantProblem(t *testing.T, status int, kind string) answer {
	t.Helper()
	a.want(t, status)
	var problem struct {
		Type   string
		Status int
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	if !strings.HasSuffix(problem.Type, "#"+kind) || problem.Status != status {
		t.Errorf("got problem %+v, want %s", problem, kind)
	}
	return a
}

// wantFull checks for the refusal of a request for which there is no room.
func (a answer) wantFull(t *testing.T) answer {
	t.Helper()
	return a.wantProblem(t, http.StatusTooManyRequests, "too-many-at-once")
}

func (a answer) wantRetryAfter(t *testing.T, seconds int) answer {
	t.Helper()
	if got := a.header.Get("Retry-After"); got != strconv.Itoa(seconds) {
		t.Errorf("Retry-After %q, want %d", got, seconds)
	}
	return a
}

func (a answer) wantBypassed(t *testing.T, want string) {
	t.Helper()
	if got := a.header.Get("Concurrency-Status"); got != want {
		t.Errorf("Concurrency-Status %q, want %q", got, want)
	}
}

// gate is a handler that stops until it is opened, or the test is over.
type gate struct {
	test    context.Context
	entered chan *gin.Context
	open    chan struct{}
}

func newGate(t *testing.T) *gate {
	return &gate{t.Context(), make(chan *gin.Context, 100), make(chan struct{})}
}

func (g *gate) handle(c *gin.Context) {
	g.entered <- c
	select {
	case <-g.open:
	case <-g.test.Done():
	}
	c.String(http.StatusOK, "done")
}

// inspect is what is in use of a key, and how many wait.
func inspect(t *testing.T, sem *semaphore.Semaphore, key string) (inUse, waiting int) {
	t.Helper()
	state, err := sem.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return state.InUse, state.Waiting
}

// wantEmpty waits until nothing of a key is in use: releases are told to the store in the background.
func wantEmpty(t *testing.T, sem *semaphore.Semaphore, key string) {
	t.Helper()
	eventually(t, "nothing is in use", func() bool {
		inUse, waiting := inspect(t, sem, key)
		return inUse == 0 && waiting == 0
	})
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
