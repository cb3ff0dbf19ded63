package exclusive_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// faulty is a store that refuses some calls.
type faulty struct {
	store.Locks
	acquire, await, release func(context.Context) error // nil for those that it carries out
	mended                  atomic.Bool
}

func (f *faulty) fails(ctx context.Context, how func(context.Context) error) error {
	if how == nil || f.mended.Load() {
		return nil
	}
	return how(ctx)
}

func (f *faulty) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	if err := f.fails(ctx, f.acquire); err != nil {
		return store.LockReply{}, err
	}
	return f.Locks.AcquireLock(ctx, req)
}

func (f *faulty) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	if err := f.fails(ctx, f.await); err != nil {
		return store.Grant{}, err
	}
	return f.Locks.AwaitLock(ctx, req)
}

func (f *faulty) ReleaseLock(ctx context.Context, req store.LockRef) (bool, error) {
	if err := f.fails(ctx, f.release); err != nil {
		return false, err
	}
	return f.Locks.ReleaseLock(ctx, req)
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
	st := &faulty{Locks: memstore.New(), acquire: acquire}
	locker := newLocker(t, st)
	closed := newServer(t, locker, ok, policy.Wait(wait))
	a := closed.put("/carts/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity").wantRetryAfter(t, 1)
	if strings.Contains(a.body, "told to fail") {
		t.Errorf("an internal error reached the client: %s", a.body)
	}
	closed.wantRuns(0)
	closed.wantError(store.ErrUnavailable)

	open := newServer(t, locker, func(c *gin.Context) {
		if _, ok := lock.FromContext(c.Request.Context()); ok {
			t.Error("there is a lease")
		}
	}, policy.Wait(wait), policy.RunUnprotected())
	a = open.put("/carts/1").want(t, http.StatusOK)
	if got := a.header.Get("Lock-Status"); got != "bypassed" {
		t.Errorf("Lock-Status %q", got)
	}
	open.wantRuns(1)
	open.wantError(store.ErrUnavailable)

	st.mended.Store(true)
	a = newServer(t, locker, ok, policy.RunUnprotected()).put("/carts/1").want(t, http.StatusOK)
	if got := a.header.Get("Lock-Status"); got != "" {
		t.Errorf("Lock-Status %q with a store that is there", got)
	}
}

func TestStoreGoesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		holder := newLocker(t, st)
		lease, err := holder.Lock(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lease.Unlock(t.Context()) }()
		locker := newLocker(t, &faulty{Locks: st, await: func(context.Context) error {
			<-time.After(3 * time.Second)
			return errDown
		}})

		closed := newServer(t, locker, ok, policy.Wait(10*time.Second))
		closed.put("/carts/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity")
		closed.wantRuns(0)
		closed.wantError(store.ErrUnavailable)

		open := newServer(t, locker, ok, policy.Wait(10*time.Second), policy.RunUnprotected())
		open.put("/carts/1").want(t, http.StatusOK)
		open.wantError(store.ErrUnavailable)
	})
}

func TestReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &faulty{Locks: memstore.New(), release: down}
		locker := newLocker(t, st)
		s := newServer(t, locker, ok)
		s.put("/carts/1").want(t, http.StatusOK)
		s.wantError(store.ErrUnavailable)
		st.mended.Store(true)
		<-time.After(5 * time.Second) // it is tried again in the background
		wantFree(t, locker, "1")
	})
}

func TestClosedLocker(t *testing.T) {
	locker := newLocker(t, memstore.New())
	s := newServer(t, locker, ok, policy.RunUnprotected())
	if err := locker.Close(); err != nil {
		t.Fatal(err)
	}
	s.put("/carts/1").wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity").wantRetryAfter(t, 1)
	s.wantRuns(0)
}

// A request whose context has ended is not run, whatever is done in an outage.
func TestEndedRequest(t *testing.T) {
	s := newServer(t, newLocker(t, memstore.New()), ok, policy.RunUnprotected(), policy.Wait(time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPut, "/carts/1", nil))
	s.wantRuns(0)
	s.wantError(context.Canceled)
}
