package exclusive_test

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

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m, redistest.Redialing())
}

// onEachStore runs a test on memory and on a real Redis. open returns a store as a process of its
// own has it.
func onEachStore(t *testing.T, test func(t *testing.T, open func() store.Locks)) {
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		test(t, func() store.Locks { return st })
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		test(t, func() store.Locks {
			st, err := redisstore.New(server.Client(), redisstore.WithTimeout(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			return st
		})
	})
}

// newLocker returns a locker of carts that is closed when the test ends, before its store.
func newLocker(t *testing.T, st store.Locks, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l, err := lock.New(st, "carts", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// server is a gin server with one route, PUT /carts/:id, that is locked by id.
type server struct {
	*gin.Engine
	t    *testing.T
	url  string // set by listen
	runs atomic.Int64
	// errors are what gin was told of.
	errors chan error
}

func newServer(t *testing.T, locker *lock.Locker, handler gin.HandlerFunc, opts ...policy.ExclusiveOption) *server {
	t.Helper()
	return newServerWith(t, handler, exclusive.New(locker, ginmw.ByParam("id"), opts...))
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
		if _, ok := lock.FromContext(c.Request.Context()); ok && ctx.Err() == nil {
			t.Error("the request has the lease's context outside of the middleware")
		}
	}, gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	s.Use(middleware...)
	s.PUT("/carts/:id", func(c *gin.Context) {
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

// try sends PUT to a path over the network.
func (s *server) try(ctx context.Context, path string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.url+path, nil)
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

// put sends PUT to a path, over the network if the server listens.
func (s *server) put(path string) answer {
	if s.url == "" {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, nil))
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
	go func() { answers <- s.put(path) }()
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

func (a answer) wantRetryAfter(t *testing.T, seconds int) answer {
	t.Helper()
	if got := a.header.Get("Retry-After"); got != strconv.Itoa(seconds) {
		t.Errorf("Retry-After %q, want %d", got, seconds)
	}
	return a
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

// waitingHere is how many requests wait for a key that the locker's process holds.
func waitingHere(t *testing.T, l *lock.Locker, key string) int {
	t.Helper()
	var held *lock.HeldError
	if _, err := l.TryLock(t.Context(), key); !errors.As(err, &held) {
		t.Fatalf("the lock is not held: %v", err)
	}
	return held.Waiting
}

// waitingInStore is how many processes wait for a key.
func waitingInStore(t *testing.T, l *lock.Locker, key string) int {
	t.Helper()
	state, err := l.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return state.Waiting
}

func wantFree(t *testing.T, l *lock.Locker, key string) {
	t.Helper()
	lease, err := l.TryLock(t.Context(), key)
	if err != nil {
		t.Fatalf("the lock is not free: %v", err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
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
