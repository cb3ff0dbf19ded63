package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// faulty is a store that refuses some calls, and counts them.
type faulty struct {
	store.Permits
	acquire, await, release func(context.Context) error // nil for those that it carries out
	mended                  atomic.Bool

	mu       sync.Mutex
	acquires []store.PermitRequest
	releases int
}

func (f *faulty) fails(ctx context.Context, how func(context.Context) error) error {
	if how == nil || f.mended.Load() {
		return nil
	}
	return how(ctx)
}

func (f *faulty) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	f.mu.Lock()
	f.acquires = append(f.acquires, req)
	f.mu.Unlock()
	if err := f.fails(ctx, f.acquire); err != nil {
		return store.PermitReply{}, err
	}
	return f.Permits.AcquirePermits(ctx, req)
}

func (f *faulty) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	if err := f.fails(ctx, f.await); err != nil {
		return store.Grant{}, err
	}
	return f.Permits.AwaitPermits(ctx, req)
}

func (f *faulty) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	f.mu.Lock()
	f.releases++
	f.mu.Unlock()
	if err := f.fails(ctx, f.release); err != nil {
		return nil, err
	}
	return f.Permits.ReleasePermits(ctx, reqs)
}

// calls is how often the store was asked for a permit, and to take some back.
func (f *faulty) calls() (acquires, releases int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.acquires), f.releases
}

func (f *faulty) lastAcquire() store.PermitRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.acquires[len(f.acquires)-1]
}

var errDown = fmt.Errorf("%w: told to fail", store.ErrUnavailable)

func down(context.Context) error { return errDown }

// silent is a store that does not answer, until its own deadline.
func silent(ctx context.Context) error {
	select {
	case <-time.After(250 * time.Millisecond):
		return errDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestStoreDown(t *testing.T) {
	for name, acquire := range map[string]func(context.Context) error{"down": down, "silent": silent} {
		for _, wait := range []time.Duration{0, time.Millisecond, time.Minute} {
			t.Run(fmt.Sprintf("%s, wait %v", name, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testStoreDown(t, acquire, wait) })
			})
		}
	}
}

func testStoreDown(t *testing.T, acquire func(context.Context) error, wait time.Duration) {
	st := &faulty{Permits: memstore.New(), acquire: acquire}
	sem := newSemaphore(t, st, 1)
	closed := newServer(t, sem, ok, policy.Wait(wait))
	a := closed.get("/reports/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity").wantRetryAfter(t, 1)
	if strings.Contains(a.body, "told to fail") {
		t.Errorf("an internal error reached the client: %s", a.body)
	}
	closed.wantRuns(0)
	closed.wantError(store.ErrUnavailable)
	if acquires, _ := st.calls(); acquires != 1 {
		t.Errorf("a store that is not there was asked %d times", acquires)
	}

	open := newServer(t, sem, func(c *gin.Context) {
		if _, ok := semaphore.FromContext(c.Request.Context()); ok {
			t.Error("there is a permit")
		}
	}, policy.Wait(wait), policy.FailOpen())
	open.get("/reports/1").want(t, http.StatusOK).wantBypassed(t, "bypassed")
	open.wantRuns(1)
	open.wantError(store.ErrUnavailable)

	st.mended.Store(true)
	newServer(t, sem, ok, policy.FailOpen()).get("/reports/1").want(t, http.StatusOK).wantBypassed(t, "")
}

// Who fails open lets nobody pass who came when all places were taken.
func TestFailOpenIsForOutages(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1)
	permit, err := sem.Acquire(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, sem, ok, policy.FailOpen())
	s.get("/reports/1").wantFull(t).wantBypassed(t, "")
	s.wantRuns(0)
	if err := permit.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStoreGoesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		permit, err := newSemaphore(t, st, 1).Acquire(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = permit.Release(t.Context()) }()
		sem := newSemaphore(t, &faulty{Permits: st, await: func(context.Context) error {
			<-time.After(3 * time.Second)
			return errDown
		}}, 1)

		closed := newServer(t, sem, ok, policy.Wait(10*time.Second))
		closed.get("/reports/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity")
		closed.wantRuns(0)
		closed.wantError(store.ErrUnavailable)

		open := newServer(t, sem, ok, policy.Wait(10*time.Second), policy.FailOpen())
		open.get("/reports/1").want(t, http.StatusOK).wantBypassed(t, "bypassed")
		open.wantError(store.ErrUnavailable)
	})
}

func TestReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &faulty{Permits: memstore.New(), release: down}
		sem := newSemaphore(t, st, 1)
		s := newServer(t, sem, ok)
		s.get("/reports/1").want(t, http.StatusOK)
		s.wantError(nil) // it is tried again in the background, and nobody waits for that
		<-time.After(time.Second)
		st.mended.Store(true)
		<-time.After(5 * time.Second)
		wantEmpty(t, sem, "1")
	})
}

// The handler learns that its permit is lost, its answer stands, and gin is told.
func TestLostWhileRunning(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Permits) {
		st := &faulty{Permits: open()}
		sem := newSemaphore(t, st, 1, semaphore.WithTTL(2*time.Second))
		s := newServer(t, sem, func(c *gin.Context) {
			ctx := c.Request.Context()
			req := st.lastAcquire()
			held, err := st.Permits.ReleasePermits(t.Context(), []store.PermitRef{{Name: req.Name, Key: req.Key, ID: req.ID, TTL: req.TTL}})
			if err != nil || len(held) != 1 || !held[0] {
				t.Errorf("the permit is taken away: %v, %v", held, err)
			}
			<-ctx.Done()
			c.String(http.StatusOK, "%v", context.Cause(ctx))
		}).listen()
		if a := s.get("/reports/1").want(t, http.StatusOK); a.body != semaphore.ErrLost.Error() {
			t.Errorf("the context ended with %s", a.body)
		}
		eventually(t, "gin is told", func() bool { return len(s.errors) > 0 })
		s.wantError(semaphore.ErrLost)
		wantEmpty(t, sem, "1")
	})
}

// A handler that takes longer than it may hold its permit goes on without one, and gin is told.
func TestHeldForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 1, semaphore.WithMaxHold(time.Second))
		s := newServer(t, sem, took)
		s.get("/reports/1?take=2s").want(t, http.StatusOK)
		s.wantError(semaphore.ErrExpired)
	})
}

// A semaphore with a stand-in goes on limiting while its store is down, and nothing is bypassed.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &faulty{Permits: memstore.New(), acquire: down}
		standIn := memstore.New()
		permits, err := fallback.Permits(st, standIn, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, newSemaphore(t, permits, 4), took, policy.FailOpen())
		inside := []<-chan answer{s.later("/reports/1?take=1s"), s.later("/reports/1?take=1s")}
		synctest.Wait()
		s.get("/reports/1").wantFull(t)
		for _, answer := range inside {
			a := <-answer
			a.want(t, http.StatusOK).wantBypassed(t, "")
		}
		s.wantError(nil)
	})
}

func TestClosedSemaphore(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1)
	s := newServer(t, sem, ok, policy.FailOpen())
	if err := sem.Close(); err != nil {
		t.Fatal(err)
	}
	s.get("/reports/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity").wantRetryAfter(t, 1)
	s.wantRuns(0)
}

// A request whose context has ended is not run, whatever is done in an outage.
func TestEndedRequest(t *testing.T) {
	s := newServer(t, newSemaphore(t, memstore.New(), 1), ok, policy.FailOpen(), policy.Wait(time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/reports/1", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
	s.wantRuns(0)
	s.wantError(context.Canceled)
}

// A capacity function that says nonsense is the server's mistake.
func TestInvalidCapacity(t *testing.T) {
	sem := newSemaphore(t, memstore.New(), 1, semaphore.WithCapacityFunc(func(string) int { return -1 }))
	s := newServer(t, sem, ok, policy.FailOpen())
	s.get("/reports/1").wantProblem(t, http.StatusInternalServerError, "internal-error")
	s.wantRuns(0)
	select {
	case err := <-s.errors:
		if !errors.Is(err, semaphore.ErrInvalidCapacity) {
			t.Errorf("gin was told of %v", err)
		}
	default:
		t.Error("gin was told of nothing")
	}
}
