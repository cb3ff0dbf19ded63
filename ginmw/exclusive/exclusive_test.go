package exclusive_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

func ok(c *gin.Context) { c.String(http.StatusOK, "done") }

// One at a time, over two processes, and each with a larger fence than the one before.
func TestOneAtATime(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		var (
			inside  atomic.Int64
			mu      sync.Mutex
			counter int
			fences  []int64
		)
		read := func() int {
			mu.Lock()
			defer mu.Unlock()
			return counter
		}
		handler := func(c *gin.Context) {
			if n := inside.Add(1); n > 1 {
				t.Errorf("%d handlers at once", n)
			}
			defer inside.Add(-1)
			n := read()
			<-time.After(time.Millisecond) // or a lost update would be a rare one
			lease, _ := lock.FromContext(c.Request.Context())
			mu.Lock()
			defer mu.Unlock()
			counter = n + 1
			fences = append(fences, lease.Fence().Number)
		}
		servers := make([]*server, 2)
		for i := range servers {
			servers[i] = newServer(t, newLocker(t, open()), handler, policy.Wait(30*time.Second)).listen()
		}
		var wg sync.WaitGroup
		const requests = 50
		for i := range requests {
			wg.Go(func() {
				if a := servers[i%len(servers)].put("/carts/1"); a.status != http.StatusOK {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			})
		}
		wg.Wait()
		if counter != requests {
			t.Errorf("%d requests counted to %d", requests, counter)
		}
		for i := 1; i < len(fences); i++ {
			if fences[i] <= fences[i-1] {
				t.Errorf("fence %d after %d", fences[i], fences[i-1])
			}
		}
		for _, s := range servers {
			s.wantError(nil)
		}
	})
}

func TestKeysDoNotDisturbEachOther(t *testing.T) {
	g := newGate(t)
	s := newServer(t, newLocker(t, memstore.New()), g.handle).listen()
	one, two := s.later("/carts/1"), s.later("/carts/2")
	<-g.entered
	<-g.entered
	close(g.open)
	(<-one).want(t, http.StatusOK)
	(<-two).want(t, http.StatusOK)
}

func TestHeldByAnother(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		g := newGate(t)
		here, there := newLocker(t, open()), newLocker(t, open())
		a, b := newServer(t, here, g.handle).listen(), newServer(t, there, g.handle).listen()
		first := a.later("/carts/1")
		<-g.entered
		for _, s := range []*server{a, b} {
			refused := s.put("/carts/1").wantProblem(t, http.StatusConflict, "locked").wantRetryAfter(t, 1)
			if strings.Contains(refused.body, "carts") {
				t.Errorf("the lock's name reached the client: %s", refused.body)
			}
			s.wantError(nil)
		}
		if _, err := there.TryLock(t.Context(), "1"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("the locker itself: %v", err)
		}
		close(g.open)
		(<-first).want(t, http.StatusOK)
		b.put("/carts/1").want(t, http.StatusOK) // who has the answer finds the lock free
		a.wantRuns(1)
		b.wantRuns(1)

		// And the other way round.
		lease, err := here.Lock(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		b.put("/carts/1").wantProblem(t, http.StatusConflict, "locked")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		b.put("/carts/1").want(t, http.StatusOK)
	})
}

// Retry-After is what handlers take, for each that comes before, and not the lease's 30 s.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, memstore.New())
		s := newServer(t, locker, func(c *gin.Context) {
			took, _ := time.ParseDuration(c.Query("take"))
			<-time.After(took)
		})
		held := func(take string) answer {
			first := s.later("/carts/1?take=" + take)
			synctest.Wait()
			refused := s.put("/carts/1").wantProblem(t, http.StatusConflict, "locked")
			(<-first).want(t, http.StatusOK)
			return refused
		}
		held("4s").wantRetryAfter(t, 1) // nothing is known yet
		held("4s").wantRetryAfter(t, 4)
		held("12s").wantRetryAfter(t, 4)
		held("1ms").wantRetryAfter(t, 5) // an eighth of the way to 12 s

		first := s.later("/carts/1?take=1s")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _, _ = locker.Lock(ctx, "1") })
		}
		synctest.Wait()
		s.put("/carts/1").wantProblem(t, http.StatusConflict, "locked").wantRetryAfter(t, 14) // 4.375 s each
		for range 8 {
			wg.Go(func() { _, _ = locker.Lock(ctx, "1") })
		}
		synctest.Wait()
		s.put("/carts/1").wantProblem(t, http.StatusConflict, "locked").wantRetryAfter(t, 30) // a dead holder's lease is over
		cancel()
		wg.Wait()
		(<-first).want(t, http.StatusOK)
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, memstore.New())
		s := newServer(t, locker, func(c *gin.Context) {
			ctx := c.Request.Context()
			if _, ok := ctx.Deadline(); ok {
				t.Error("the time that a request may wait is a deadline of its handler")
			}
			<-time.After(3 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("the handler's context has ended: %v", context.Cause(ctx))
			}
		}, policy.Wait(4*time.Second))

		began := time.Now()
		first := s.later("/carts/1")
		synctest.Wait()
		second := s.later("/carts/1")
		synctest.Wait()
		third := s.later("/carts/1")
		(<-third).wantProblem(t, http.StatusConflict, "locked")
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("a request that may wait for 4s waited for %v", took)
		}
		(<-first).want(t, http.StatusOK)
		(<-second).want(t, http.StatusOK)
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("two requests took %v", took)
		}
		s.wantRuns(2)
		s.wantError(nil)
		wantFree(t, locker, "1")
	})
}

func TestDisconnectWhileWaiting(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		g := newGate(t)
		here, there := newLocker(t, open()), newLocker(t, open())
		a := newServer(t, here, g.handle, policy.Wait(time.Minute)).listen()
		b := newServer(t, there, g.handle, policy.Wait(time.Minute)).listen()
		first := a.later("/carts/1")
		<-g.entered

		leave := func(s *server, waiting func() int) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() {
				_, err := s.try(ctx, "/carts/1")
				gone <- err
			}()
			eventually(t, "it waits", func() bool { return waiting() == 1 })
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			eventually(t, "nobody waits", func() bool { return waiting() == 0 })
		}
		leave(a, func() int { return waitingHere(t, here, "1") })
		leave(b, func() int { return waitingInStore(t, here, "1") })
		close(g.open)
		(<-first).want(t, http.StatusOK)
		wantFree(t, here, "1")
		a.wantRuns(1)
		b.wantRuns(0)
	})
}

func TestDisconnectWhileRunning(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		g := newGate(t)
		locker := newLocker(t, open())
		s := newServer(t, locker, g.handle).listen()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := s.try(ctx, "/carts/1")
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
		s.put("/carts/1").wantProblem(t, http.StatusConflict, "locked")
		close(g.open)
		eventually(t, "the lock is free", func() bool {
			lease, err := locker.TryLock(t.Context(), "1")
			return err == nil && lease.Unlock(t.Context()) == nil
		})
		s.wantError(nil)
	})
}

func TestPanicReleases(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		locker := newLocker(t, open())
		s := newServer(t, locker, func(*gin.Context) { panic("oh") }).listen()
		s.put("/carts/1").want(t, http.StatusInternalServerError)
		wantFree(t, locker, "1")
		s.wantError(nil)
	})
}

func TestPanicGoesOn(t *testing.T) {
	r := gin.New()
	r.PUT("/", exclusive.New(newLocker(t, memstore.New()), ginmw.Global()), func(*gin.Context) { panic(http.ErrAbortHandler) })
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("panicked with %v", got)
		}
	}()
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/", nil))
}

// The handler learns that its lock is lost, its answer stands, and gin is told.
func TestLostWhileRunning(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		locker := newLocker(t, open(), lock.WithTTL(2*time.Second))
		s := newServer(t, locker, func(c *gin.Context) {
			ctx := c.Request.Context()
			lease, _ := lock.FromContext(ctx)
			if found, err := locker.ForceUnlock(t.Context(), "1", lease.Fence().Number); !found || err != nil {
				t.Errorf("ForceUnlock: %v, %v", found, err)
			}
			<-ctx.Done()
			c.String(http.StatusOK, "%v", context.Cause(ctx))
		}).listen()
		if a := s.put("/carts/1").want(t, http.StatusOK); a.body != lock.ErrLost.Error() {
			t.Errorf("the context ended with %s", a.body)
		}
		s.wantError(lock.ErrLost)
		wantFree(t, locker, "1")
	})
}

func TestHandlerReleases(t *testing.T) {
	locker := newLocker(t, memstore.New())
	s := newServer(t, locker, func(c *gin.Context) {
		lease, _ := lock.FromContext(c.Request.Context())
		if err := lease.Unlock(c.Request.Context()); err != nil {
			t.Error(err)
		}
		wantFree(t, locker, "1")
	})
	s.put("/carts/1").want(t, http.StatusOK)
	s.wantError(nil)
}

// Two middleware on the same key, and the locker in the handler, share the lease.
func TestNested(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Locks) {
		locker := newLocker(t, open())
		by := exclusive.New(locker, ginmw.ByParam("id"))
		var outer int64
		between := func(c *gin.Context) {
			lease, _ := lock.FromContext(c.Request.Context())
			outer = lease.Fence().Number
		}
		s := newServerWith(t, func(c *gin.Context) {
			lease, _ := lock.FromContext(c.Request.Context())
			if lease.Fence().Number != outer {
				t.Errorf("fence %v inside of %d", lease.Fence(), outer)
			}
			if err := locker.Do(c.Request.Context(), "1", func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
			if _, err := locker.TryLock(t.Context(), "1"); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("the lock was released by its second user: %v", err)
			}
		}, by, between, by)
		s.put("/carts/1").want(t, http.StatusOK)
		wantFree(t, locker, "1")
		s.wantRuns(1)
		s.wantError(nil)
	})
}

// A replay takes no lock, and a refusal is not kept as the operation's answer.
func TestBehindIdempotency(t *testing.T) {
	st := memstore.New()
	orders, err := guard.New(st, "orders")
	if err != nil {
		t.Fatal(err)
	}
	locker := newLocker(t, st)
	r := gin.New()
	r.POST("/carts/:id", idempotency.New(orders, ginmw.Unscoped()), exclusive.New(locker, ginmw.ByParam("id")), ok)
	post := func(key string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodPost, "/carts/1", nil)
		req.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		return w
	}
	if w := post("first"); w.Code != http.StatusOK {
		t.Fatalf("status %d", w.Code)
	}
	lease, err := locker.Lock(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	if w := post("first"); w.Code != http.StatusOK || w.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("a replay: %d %v", w.Code, w.Header())
	}
	if w := post("second"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "#locked") {
		t.Errorf("while another has the lock: %d %s", w.Code, w.Body)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := post("second"); w.Code != http.StatusOK || w.Header().Get("Idempotency-Replayed") != "" {
		t.Errorf("afterwards: %d %v", w.Code, w.Header())
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
		{"param", ginmw.ByParam("id"), 200, "", nil},
		{"missing param", ginmw.ByParam("nope"), 500, "internal-error", policy.ErrNotProvided},
		{"empty key", func(*gin.Context) (string, error) { return "", nil }, 400, "key-missing", nil},
		{"longest key", func(*gin.Context) (string, error) { return strings.Repeat("k", 1024), nil }, 200, "", nil},
		{"long key", func(*gin.Context) (string, error) { return strings.Repeat("k", 1025), nil }, 400, "key-malformed", nil},
		{"failing key", func(*gin.Context) (string, error) { return "", boom }, 500, "internal-error", boom},
	} {
		t.Run(c.name, func(t *testing.T) {
			locker := newLocker(t, memstore.New())
			s := newServerWith(t, ok, exclusive.New(locker, c.key, policy.RunUnprotected(), policy.Wait(time.Second)))
			a := s.put("/carts/1").want(t, c.status)
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
		})
	}
}

func TestUnlessAndDeny(t *testing.T) {
	locker := newLocker(t, memstore.New())
	var held *lock.HeldError
	s := newServer(t, locker, ok,
		ginmw.Unless(func(c *gin.Context) bool { return c.Query("read") != "" }),
		ginmw.OnDeny(func(c *gin.Context, d policy.Denial) {
			errors.As(d.Err, &held)
			c.String(d.Status(), "%s, try again in %v", d.Reason, d.RetryAfter)
		}))
	lease, err := locker.Lock(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Unlock(t.Context()) }()
	a := s.put("/carts/1").want(t, http.StatusConflict).wantRetryAfter(t, 1)
	if a.body != "locked, try again in 1s" {
		t.Errorf("body %q", a.body)
	}
	if held == nil || held.Remaining <= 0 {
		t.Errorf("the hook is told nothing of the holder: %+v", held)
	}
	s.wantRuns(0)
	s.put("/carts/1?read=1").want(t, http.StatusOK)
	s.wantRuns(1)
}

func TestWiringMistakesPanic(t *testing.T) {
	l := newLocker(t, memstore.New())
	for want, wire := range map[string]func(){
		"exclusive: New: nil locker":                                          func() { exclusive.New(nil, ginmw.Global()) },
		"exclusive: New: nil key":                                             func() { exclusive.New(l, nil) },
		"policy: Wait: -1s is neither 0 nor between 1ms and 1h0m0s":           func() { policy.Wait(-time.Second) },
		"policy: Wait: 2ns is neither 0 nor between 1ms and 1h0m0s":           func() { policy.Wait(2) },
		"policy: Wait: 555555h33m20s is neither 0 nor between 1ms and 1h0m0s": func() { policy.Wait(2e9 * time.Second) },
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
	s := newServer(t, l, ok, nil, policy.Wait(0))
	s.put("/carts/1").want(t, http.StatusOK)
}
