package lock_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // parallel tests wait for time to pass, on any machine
	leaktest.Main(m, redistest.Redialing)
}

// wiretap is a store with faults that records its grants.
type wiretap struct {
	*storetest.Faulty

	mu      sync.Mutex
	granted map[string]store.LockRef // the last of each key
}

func newWiretap() *wiretap {
	return &wiretap{Faulty: storetest.NewFaulty(memstore.New()), granted: map[string]store.LockRef{}}
}

func (w *wiretap) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := w.Faulty.AcquireLock(ctx, req)
	if err == nil && reply.Outcome == store.Granted {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.granted[req.Key] = store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID, Shared: req.Shared, TTL: req.TTL}
	}
	return reply, err
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

func newLocker(t *testing.T, st store.Locks, opts ...lock.Option) *lock.Locker {
	t.Helper()
	return newLockerNamed(t, st, "test", opts...)
}

func newLockerNamed(t *testing.T, st store.Locks, name string, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, name, opts...))
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
func wantFree(t *testing.T, st store.Locks, key string) {
	t.Helper()
	s, err := st.InspectLock(context.Background(), "test", key)
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

// holdOf returns the store's reference to the last grant of a lock.
func holdOf(t *testing.T, w *wiretap, key string) store.LockRef {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	req, ok := w.granted[key]
	if !ok {
		t.Fatalf("%q was not granted", key)
	}
	return req
}

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
