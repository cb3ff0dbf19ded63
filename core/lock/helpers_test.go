package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// wiretap is a store with faults that records its grants.
type wiretap struct {
	*storetest.Faulty

	mu      sync.Mutex
	granted []store.LeaseRef
}

func newWiretap() *wiretap {
	return &wiretap{Faulty: storetest.NewFaulty(memstore.New())}
}

func (w *wiretap) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := w.Faulty.AcquireLease(ctx, req)
	if err == nil && reply.Outcome == store.Granted {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.granted = append(w.granted, req.Ref(reply.Fence))
	}
	return reply, err
}

// lose ends the last hold that was granted at once, as the loss of the store's state does.
func (w *wiretap) lose(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	last := w.granted[len(w.granted)-1:]
	w.mu.Unlock()
	if was, err := w.Store.ReleaseLeases(t.Context(), last); err != nil || was[0] != store.Released {
		t.Fatalf("ReleaseLeases: %v, %v", was, err)
	}
}

// inBubble runs a test with faked time, on a store that is closed after its Lockers.
func inBubble(t *testing.T, test func(t *testing.T, w *wiretap)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWiretap()
		t.Cleanup(func() { _ = w.Close() })
		test(t, w)
	})
}

func newLocker(t *testing.T, st store.Leases, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "test", opts...))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustLock(t *testing.T, l *lock.Locker, key string) *lock.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key)
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	return lease
}

func mustUnlock(t *testing.T, lease *lock.Lease) {
	t.Helper()
	ok(t, lease.Unlock(t.Context()))
}

// wantEnded checks that a lease's context has ended, and why.
func wantEnded(t *testing.T, lease *lock.Lease, cause error) {
	t.Helper()
	if ctx := lease.Context(); ctx.Err() == nil || !errors.Is(context.Cause(ctx), cause) {
		t.Errorf("the lease's context: %v because of %v, want %v", ctx.Err(), context.Cause(ctx), cause)
	}
}

func wantValid(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the lease's context has ended: %v", context.Cause(lease.Context()))
	}
}

// wantFree checks that the store has no holder of a lock, and no waiter.
func wantFree(t *testing.T, st store.Leases, key string) {
	t.Helper()
	s, err := st.(store.LeaseLister).InspectLease(context.Background(), store.LockKind+"test", key)
	if err != nil || len(s.Holders) != 0 || s.Waiting != 0 {
		t.Errorf("the lock has state %+v, %v; want it free", s, err)
	}
}

// pending is a call in flight.
type pending struct {
	lease *lock.Lease
	err   error
	done  chan struct{}
}

func start(call func() (*lock.Lease, error)) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lease, p.err = call()
	}()
	synctest.Wait()
	return p
}

func (p *pending) returned() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

var errDown = store.ErrUnavailable

const ttl = 30 * time.Second // the default

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
