package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// lifecycle is what a [store.Store] has beside the interfaces of the mechanisms.
type lifecycle interface {
	Ping(ctx context.Context) error
	Shutdown(ctx context.Context) error
	Close() error
}

// lifecycleOf returns the lifecycle of a store, and skips a test of one that has none.
func lifecycleOf(t *testing.T, st any) lifecycle {
	t.Helper()
	l, ok := st.(lifecycle)
	if !ok {
		t.Skip("the store has no Ping, Shutdown and Close")
	}
	return l
}

// closes closes a store, and checks what every closed store does.
func closes(t *testing.T, st any) {
	t.Helper()
	l := lifecycleOf(t, st)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantErrClosed(t, l.Ping(background()))
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func shutsDown(t *testing.T, st any) {
	t.Helper()
	if err := lifecycleOf(t, st).Shutdown(background()); err != nil {
		t.Fatal(err)
	}
}

func wantErrClosed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrClosed) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v, want store.ErrClosed", err)
	}
}

// A store after shutdown refuses new requests, ends waits, and still serves requests that finish
// something.

func shutDownBuckets(t *testing.T, h Harness[store.Buckets]) {
	shutsDown(t, h.Store)
	_, err := h.Store.TakeTokens(background(), unique("limiter"), "k", []store.Charge{})
	wantErrClosed(t, err)
}

func shutDownLock(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	held, waiting := l.exclusive(), l.exclusive()
	l.granted(held)
	w := l.waits(waiting)
	shutsDown(t, h.Store)
	w.fails(store.ErrClosed)
	_, err := h.Store.AcquireLock(background(), l.exclusive())
	wantErrClosed(t, err)
	_, err = h.Store.AwaitLock(background(), waiting)
	wantErrClosed(t, err)
	l.renew(held, true)
	l.release(waiting, false)
	l.release(held, true)
}

func shutDownPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1)
	held, waiting := p.request(1), p.request(1)
	p.granted(held)
	w := p.waits(waiting)
	shutsDown(t, h.Store)
	w.fails(store.ErrClosed)
	_, err := h.Store.AcquirePermits(background(), p.request(1))
	wantErrClosed(t, err)
	_, err = h.Store.AwaitPermits(background(), waiting)
	wantErrClosed(t, err)
	p.renew(held, true)
	p.release(waiting, false)
	p.release(held, true)
}

func shutDownLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	w := l.await(2)
	shutsDown(t, h.Store)
	<-w.done
	wantErrClosed(t, w.err)
	_, err := h.Store.CountDownLatch(background(), l.request(2), "a")
	wantErrClosed(t, err)
}
