package concurrency_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

func ok(c *gin.Context) { c.String(http.StatusOK, "done") }

// At most so many at a time over two processes, and as many as may. Each has a permit of weight 1.
func TestAtMostSoManyAtATime(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		const capacity = 3
		var (
			inside atomic.Int64
			full   = make(chan struct{})
			once   sync.Once
		)
		handler := func(c *gin.Context) {
			n := inside.Add(1)
			defer inside.Add(-1)
			if n > capacity {
				t.Errorf("%d handlers at once", n)
			}
			if n == capacity {
				once.Do(func() { close(full) })
			}
			select {
			case <-full: // the first ones stay until all places are taken
			case <-c.Request.Context().Done():
				t.Errorf("the handler's context has ended: %v", context.Cause(c.Request.Context()))
			case <-time.After(10 * time.Second):
				t.Errorf("there are never %d handlers at once", capacity)
			}
			if permit, ok := semaphore.FromContext(c.Request.Context()); !ok || permit.Weight() != 1 || permit.Key() != "1" {
				t.Errorf("the handler has the permit %+v, %v", permit, ok)
			}
		}
		sems, servers := make([]*semaphore.Semaphore, 2), make([]*server, 2)
		for i := range servers {
			sems[i] = newSemaphore(t, open(), capacity)
			servers[i] = newServer(t, sems[i], handler, policy.Wait(30*time.Second)).listen()
		}
		var wg sync.WaitGroup
		const requests = 60
		for i := range requests {
			wg.Go(func() {
				if a := servers[i%len(servers)].get("/reports/1"); a.status != http.StatusOK {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			})
		}
		wg.Wait()
		for _, s := range servers {
			s.wantError(nil)
			s.wantRuns(requests / 2)
		}
		wantEmpty(t, sems[0], "1")
	})
}

func TestKeysDoNotDisturbEachOther(t *testing.T) {
	g := newGate(t)
	s := newServer(t, newSemaphore(t, memstore.New(), 1), g.handle).listen()
	one, two := s.later("/reports/1"), s.later("/reports/2")
	<-g.entered
	<-g.entered
	close(g.open)
	(<-one).want(t, http.StatusOK)
	(<-two).want(t, http.StatusOK)
}

func TestNoRoom(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		g := newGate(t)
		here, there := newSemaphore(t, open(), 2), newSemaphore(t, open(), 2)
		a, b := newServer(t, here, g.handle).listen(), newServer(t, there, g.handle).listen()
		inside := a.fill(g, "/reports/1", 2)
		for _, s := range []*server{a, b} {
			refused := s.get("/reports/1").wantFull(t).wantRetryAfter(t, 1)
			if strings.Contains(refused.body, "reports") {
				t.Errorf("the semaphore's name reached the client: %s", refused.body)
			}
			s.wantError(nil)
		}
		if _, err := there.TryAcquire(t.Context(), "1"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("the semaphore itself: %v", err)
		}
		close(g.open)
		for _, answer := range inside {
			(<-answer).want(t, http.StatusOK)
		}
		wantEmpty(t, there, "1")
		b.get("/reports/1").want(t, http.StatusOK)
		a.wantRuns(2)
		b.wantRuns(1)

		// And the other way round.
		permit, err := here.AcquireN(t.Context(), "1", 2)
		if err != nil {
			t.Fatal(err)
		}
		b.get("/reports/1").wantFull(t)
		if err := permit.Release(t.Context()); err != nil {
			t.Error(err)
		}
		b.get("/reports/1").want(t, http.StatusOK)
	})
}

func TestDisconnectWhileWaiting(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		g := newGate(t)
		here, there := newSemaphore(t, open(), 1), newSemaphore(t, open(), 1)
		a := newServer(t, here, g.handle, policy.Wait(time.Minute)).listen()
		b := newServer(t, there, g.handle, policy.Wait(time.Minute)).listen()
		first := a.fill(g, "/reports/1", 1)[0]

		for _, s := range []*server{a, b} {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() {
				_, err := s.try(ctx, "/reports/1")
				gone <- err
			}()
			waiting := func() int {
				_, n := inspect(t, here, "1")
				return n
			}
			eventually(t, "it waits", func() bool { return waiting() == 1 })
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			eventually(t, "nobody waits", func() bool { return waiting() == 0 })
		}
		close(g.open)
		(<-first).want(t, http.StatusOK)
		wantEmpty(t, here, "1")
		a.wantRuns(1)
		b.wantRuns(0)
	})
}

// A client that leaves makes room when its handler stops, and not before.
func TestDisconnectWhileRunning(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		g := newGate(t)
		sem := newSemaphore(t, open(), 1)
		s := newServer(t, sem, g.handle).listen()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := s.try(ctx, "/reports/1")
			gone <- err
		}()
		running := (<-g.entered).Request.Context()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		<-running.Done()
		if cause := context.Cause(running); !errors.Is(cause, context.Canceled) {
			t.Errorf("the handler's context ended with %v", cause)
		}
		s.get("/reports/1").wantFull(t)
		close(g.open)
		wantEmpty(t, sem, "1")
		s.get("/reports/1").want(t, http.StatusOK)
		s.wantError(nil)
	})
}

func TestPanicGivesThePermitBack(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		sem := newSemaphore(t, open(), 1)
		s := newServer(t, sem, func(*gin.Context) { panic("oh") }).listen()
		s.get("/reports/1").want(t, http.StatusInternalServerError)
		wantEmpty(t, sem, "1")
		s.wantError(nil)
	})
}

func TestPanicGoesOn(t *testing.T) {
	r := gin.New()
	r.GET("/", concurrency.New(newSemaphore(t, memstore.New(), 1), ginmw.Global()), func(*gin.Context) { panic(http.ErrAbortHandler) })
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("panicked with %v", got)
		}
	}()
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
}

func TestHandlerReleases(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1)
	s := newServer(t, sem, func(c *gin.Context) {
		permit, _ := semaphore.FromContext(c.Request.Context())
		if err := permit.Release(c.Request.Context()); err != nil {
			t.Error(err)
		}
		if inUse, _ := inspect(t, sem, "1"); inUse != 0 {
			t.Errorf("%d in use", inUse)
		}
	})
	s.get("/reports/1").want(t, http.StatusOK)
	s.wantError(nil)
}

// There is no re-entry: two middleware on the same key take two permits.
func TestNested(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 2)
	by := concurrency.New(sem, ginmw.ByParam("tenant"))
	s := newServerWith(t, func(*gin.Context) {
		if inUse, _ := inspect(t, sem, "1"); inUse != 2 {
			t.Errorf("%d in use", inUse)
		}
	}, by, by)
	s.get("/reports/1").want(t, http.StatusOK)
	wantEmpty(t, sem, "1")
}

// A replay needs no permit, and a refusal is not kept as the operation's answer, whatever its status.
func TestBehindIdempotency(t *testing.T) {
	teapot := func(c *gin.Context, _ policy.Denial) { c.String(http.StatusTeapot, "too-many-at-once") }
	for name, c := range map[string]struct {
		status int
		opts   []policy.ConcurrencyOption
	}{
		"problem":   {http.StatusTooManyRequests, nil},
		"deny hook": {http.StatusTeapot, []policy.ConcurrencyOption{ginmw.OnDeny(teapot)}},
	} {
		t.Run(name, func(t *testing.T) {
			st := memstore.New()
			orders, err := guard.New(st, "orders")
			if err != nil {
				t.Fatal(err)
			}
			sem := newSemaphore(t, st, 1)
			r := gin.New()
			r.POST("/reports", idempotency.New(orders, ginmw.Unscoped()), concurrency.New(sem, ginmw.Global(), c.opts...), ok)
			post := func(key string) *httptest.ResponseRecorder {
				req := httptest.NewRequest(http.MethodPost, "/reports", nil)
				req.Header.Set("Idempotency-Key", key)
				w := httptest.NewRecorder()
				r.ServeHTTP(w, req)
				return w
			}
			if w := post("first"); w.Code != http.StatusOK {
				t.Fatalf("status %d", w.Code)
			}
			permit, err := sem.Acquire(t.Context(), "global")
			if err != nil {
				t.Fatal(err)
			}
			if w := post("first"); w.Code != http.StatusOK || w.Header().Get("Idempotency-Replayed") != "true" {
				t.Errorf("a replay: %d %v", w.Code, w.Header())
			}
			if w := post("second"); w.Code != c.status || !strings.Contains(w.Body.String(), "too-many-at-once") {
				t.Errorf("without room: %d %s", w.Code, w.Body)
			}
			if err := permit.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if w := post("second"); w.Code != http.StatusOK || w.Header().Get("Idempotency-Replayed") != "" {
				t.Errorf("afterwards: %d %v", w.Code, w.Header())
			}
		})
	}
}

func TestKeys(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		key    ginmw.KeyFunc
		status int
		kind   string
		err    error // that gin is told of
	}{
		{"param", ginmw.ByParam("tenant"), 200, "", nil},
		{"missing param", ginmw.ByParam("nope"), 500, "internal-error", policy.ErrNotProvided},
		{"empty key", func(*gin.Context) (string, error) { return "", nil }, 400, "key-missing", nil},
		{"longest key", func(*gin.Context) (string, error) { return strings.Repeat("k", 1024), nil }, 200, "", nil},
		{"long key", func(*gin.Context) (string, error) { return strings.Repeat("k", 1025), nil }, 400, "key-malformed", nil},
		{"failing key", func(*gin.Context) (string, error) { return "", boom }, 500, "internal-error", boom},
	} {
		t.Run(c.name, func(t *testing.T) {
			sem := newSemaphore(t, memstore.New(), 1)
			for _, opts := range [][]policy.ConcurrencyOption{
				{policy.FailOpen(), policy.Wait(time.Second)},
			} {
				s := newServerWith(t, ok, concurrency.New(sem, c.key, opts...))
				a := s.get("/reports/1").want(t, c.status)
				if c.kind != "" {
					a.wantProblem(t, c.status, c.kind)
					s.wantRuns(0)
				}
				if strings.Contains(a.body, "boom") {
					t.Errorf("an internal error reached the client: %s", a.body)
				}
				if c.status == 400 && !strings.Contains(a.header.Get("Link"), `rel="describedby"`) {
					t.Errorf("Link %q", a.header.Get("Link"))
				}
				s.wantError(c.err)
			}
		})
	}
}

func TestUnlessAndDeny(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1)
	var busy *semaphore.BusyError
	s := newServer(t, sem, ok,
		ginmw.Unless(func(c *gin.Context) bool { return c.Query("small") != "" }),
		ginmw.OnDeny(func(c *gin.Context, d policy.Denial) {
			errors.As(d.Err, &busy)
			c.String(d.Status(), "%s, try again in %v", d.Reason, d.RetryAfter)
		}))
	permit, err := sem.Acquire(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = permit.Release(t.Context()) }()
	a := s.get("/reports/1").want(t, http.StatusTooManyRequests).wantRetryAfter(t, 1)
	if a.body != "too-many-at-once, try again in 1s" {
		t.Errorf("body %q", a.body)
	}
	if busy == nil || busy.InUse != 1 || busy.Capacity != 1 {
		t.Errorf("the hook is told nothing of the semaphore: %+v", busy)
	}
	s.wantRuns(0)
	s.get("/reports/1?small=1").want(t, http.StatusOK)
	s.wantRuns(1)
}

func TestWiringMistakesPanic(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1)
	for want, wire := range map[string]func(){
		"concurrency: New: nil semaphore":                              func() { concurrency.New(nil, ginmw.Global()) },
		"concurrency: New: nil key":                                    func() { concurrency.New(sem, nil) },
		"policy: MaxWaiting: 0 is less than 1":                         func() { policy.MaxWaiting(0) },
		"policy: Wait: 2h0m0s is neither 0 nor between 1ms and 1h0m0s": func() { policy.Wait(2 * time.Hour) },
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v", got)
				}
			}()
			wire()
		})
	}
	// What is not set is as if it were not there.
	s := newServer(t, sem, ok, nil, policy.Wait(0), policy.MaxWaiting(1))
	s.get("/reports/1").want(t, http.StatusOK)
}
