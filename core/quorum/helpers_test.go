package quorum_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newLocker(t *testing.T, st store.Leases, name string, opts ...lock.Option) *lock.Locker {
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

// wantEnded checks that a lease's context has ended, and its cause.
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

const ttl = 30 * time.Second // the default

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
