package lock_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // tests that say so wait for time to pass, on any machine
	goleak.VerifyTestMain(m, redistest.Redialing())
}

// wiretap is a store that counts what it is asked, and does otherwise when told to.
type wiretap struct {
	*memstore.Store

	mu    sync.Mutex
	calls map[string]int
	// granted has the last grant of each key.
	granted map[string]store.LockRef
	// before is asked before each call: an error is the answer, without the call.
	before func(call string) error
	// after is asked after each call: an error replaces the answer.
	after func(call string) error
}

func newWiretap() *wiretap {
	return &wiretap{Store: memstore.New(), calls: map[string]int{}, granted: map[string]store.LockRef{}}
}

func (w *wiretap) set(before, after func(string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// fail has calls of these names fail, without having been made.
func (w *wiretap) fail(err error, names ...string) {
	w.set(func(call string) error {
		for _, name := range names {
			if name == call {
				return err
			}
		}
		return nil
	}, nil)
}

func (w *wiretap) count(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[call]
}

func tapped[T any](w *wiretap, call string, do func() (T, error)) (T, error) {
	var none T
	w.mu.Lock()
	w.calls[call]++
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			return none, err
		}
	}
	v, err := do()
	if after != nil {
		if err := after(call); err != nil {
			return none, err
		}
	}
	return v, err
}

func (w *wiretap) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	return tapped(w, "acquire", func() (store.LockReply, error) {
		reply, err := w.Store.AcquireLock(ctx, req)
		if err == nil && reply.Outcome == store.Granted {
			w.mu.Lock()
			w.granted[req.Key] = store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID, Shared: req.Shared, TTL: req.TTL}
			w.mu.Unlock()
		}
		return reply, err
	})
}

func (w *wiretap) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	return tapped(w, "await", func() (store.Grant, error) { return w.Store.AwaitLock(ctx, req) })
}

func (w *wiretap) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	return tapped(w, "renew", func() ([]bool, error) { return w.Store.RenewLocks(ctx, reqs) })
}

func (w *wiretap) ReleaseLock(ctx context.Context, req store.LockRef) (bool, error) {
	return tapped(w, "release", func() (bool, error) { return w.Store.ReleaseLock(ctx, req) })
}

func (w *wiretap) VerifyLock(ctx context.Context, req store.LockRef) (bool, error) {
	return tapped(w, "verify", func() (bool, error) { return w.Store.VerifyLock(ctx, req) })
}

func (w *wiretap) DowngradeLock(ctx context.Context, req store.LockRef) (bool, error) {
	return tapped(w, "downgrade", func() (bool, error) { return w.Store.DowngradeLock(ctx, req) })
}

// inBubble runs a test on fake time, with a store that is closed and a Locker that is closed
// before.
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
	if err := lease.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
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

// wantFree checks that nobody has the lock, or waits for it, in the store.
func wantFree(t *testing.T, st store.Locks, key string) {
	t.Helper()
	s, err := st.InspectLock(context.Background(), "test", key)
	if err != nil || len(s.Holders) != 0 || s.Waiting != 0 {
		t.Errorf("the lock has state %+v, %v; want it free", s, err)
	}
}

// pending is a call that goes on.
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

// holdOf returns what names the hold of a lock, as an operator with access to the store has it.
func holdOf(t *testing.T, w *wiretap, key string) store.LockRef {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	req, ok := w.granted[key]
	if !ok {
		t.Fatalf("nobody has %q", key)
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
