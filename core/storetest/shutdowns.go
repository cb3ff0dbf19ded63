package storetest

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A store that was shut down begins nothing and ends waits, and finishes what was begun.

func shutDownLock(t *testing.T, h Harness) {
	l := newLock(t, h)
	held, waiting := l.exclusive(), l.exclusive()
	l.granted(held)
	w := l.waits(waiting)
	if err := h.Store.Shutdown(background()); err != nil {
		t.Fatal(err)
	}
	w.fails(store.ErrClosed)
	_, err := h.Store.AcquireLock(background(), l.exclusive())
	wantErrClosed(t, err)
	_, err = h.Store.AwaitLock(background(), waiting)
	wantErrClosed(t, err)
	_, err = h.Store.TakeTokens(background(), unique("limiter"), "k", []store.Charge{})
	wantErrClosed(t, err)
	l.renew(held, true)
	l.release(waiting, false)
	l.release(held, true)
}

func shutDownPermits(t *testing.T, h Harness) {
	p := newPermits(t, h, 1)
	held, waiting := p.request(1), p.request(1)
	p.granted(held)
	w := p.waits(waiting)
	if err := h.Store.Shutdown(background()); err != nil {
		t.Fatal(err)
	}
	w.fails(store.ErrClosed)
	_, err := h.Store.AcquirePermits(background(), p.request(1))
	wantErrClosed(t, err)
	_, err = h.Store.AwaitPermits(background(), waiting)
	wantErrClosed(t, err)
	p.renew(held, true)
	p.release(waiting, false)
	p.release(held, true)
}

func shutDownLatch(t *testing.T, h Harness) {
	l := newLatch(t, h)
	w := l.await(2)
	if err := h.Store.Shutdown(background()); err != nil {
		t.Fatal(err)
	}
	<-w.done
	wantErrClosed(t, w.err)
	_, err := h.Store.CountDownLatch(background(), l.request(2), "a")
	wantErrClosed(t, err)
}
