package lock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestSharedAndExclusiveTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		r1 := must(l.RLock(t.Context(), "k"))
		r2 := must(l.TryRLock(t.Context(), "k"))
		if !r1.Shared() || !r1.Fence().Shared || r1.Fence() == r2.Fence() {
			t.Errorf("fences %+v and %+v", r1.Fence(), r2.Fence())
		}
		writer := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		late := start(func() (*lock.Lease, error) { return l.RLock(t.Context(), "k") })
		if writer.returned() || late.returned() {
			t.Fatal("did not wait")
		}
		mustUnlock(t, r1)
		if writer.returned() {
			t.Fatal("did not wait for the last reader")
		}
		mustUnlock(t, r2)
		if !writer.returned() || late.returned() {
			t.Fatalf("the writer has it: %v, the late reader: %v", writer.returned(), late.returned())
		}
		mustUnlock(t, writer.lease)
		if !late.returned() || late.err != nil {
			t.Fatalf("the late reader: %v", late.err)
		}
		mustUnlock(t, late.lease)
		wantFree(t, w, "k")
	})
}

func TestDowngrade(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		number := lease.Fence().Number
		reader := start(func() (*lock.Lease, error) { return l.RLock(t.Context(), "k") })
		writer := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		ok(t, lease.Downgrade(t.Context()))
		if !reader.returned() || reader.err != nil || writer.returned() {
			t.Fatalf("the reader has it: %v; the writer: %v", reader.returned(), writer.returned())
		}
		if f := lease.Fence(); !f.Shared || f.Number != number || !lease.Shared() {
			t.Errorf("fence %+v, was %d", f, number)
		}
		ok(t, lease.Downgrade(t.Context()))
		if _, err := l.Lock(lease.Context(), "k"); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("upgrade: %v", err)
		}
		mustUnlock(t, lease)
		mustUnlock(t, reader.lease)
		if !writer.returned() || writer.err != nil {
			t.Fatalf("the writer: %v", writer.err)
		}
		mustUnlock(t, writer.lease)
		if err := writer.lease.Downgrade(t.Context()); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("of a released lease: %v", err)
		}
		wantFree(t, w, "k")
	})
}

func TestReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		outer := mustLock(t, l, "k")
		between := mustLock(t, l, "another")
		type own struct{}
		inner := must(l.Lock(context.WithValue(outer.Context(), own{}, 1), "k"))
		shared := must(l.RLock(inner.Context(), "k"))
		tried := must(l.TryLock(shared.Context(), "k"))
		if inner.Fence() != outer.Fence() || shared.Fence() != outer.Fence() || w.Calls(storetest.AcquireLease) != 2 {
			t.Errorf("fences %v, %v, %v; %d requests", outer.Fence(), inner.Fence(), shared.Fence(), w.Calls(storetest.AcquireLease))
		}
		if err := outer.Downgrade(t.Context()); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("Downgrade beneath others: %v", err)
		}
		mustUnlock(t, outer) // the order does not matter
		mustUnlock(t, tried)
		mustUnlock(t, inner)
		wantValid(t, shared)
		if _, err := newLocker(t, w).TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("another has it: %v", err)
		}
		mustUnlock(t, shared)
		wantEnded(t, shared, lock.ErrReleased)
		wantEnded(t, outer, lock.ErrReleased)
		wantFree(t, w, "k")
		mustUnlock(t, between)

		// A lease that was released cannot be re-entered.
		for name, ctx := range map[string]context.Context{
			"its context": outer.Context(), "a detached one": context.WithoutCancel(shared.Context()),
		} {
			if lease, err := l.Lock(ctx, "k"); lease != nil || !errors.Is(err, lock.ErrReleased) {
				t.Errorf("with %s: %v, %v", name, lease, err)
			}
		}
		again := mustLock(t, l, "k")
		if again.Fence().Number <= outer.Fence().Number {
			t.Errorf("fence %v after %v", again.Fence(), outer.Fence())
		}
		mustUnlock(t, again)
	})
}

func TestUpgradeIsADeadlock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		reader := must(l.RLock(t.Context(), "k"))
		for name, upgrade := range map[string]func(context.Context, string) (*lock.Lease, error){"Lock": l.Lock, "TryLock": l.TryLock} {
			if _, err := upgrade(reader.Context(), "k"); !errors.Is(err, lock.ErrDeadlock) {
				t.Errorf("%s: %v", name, err)
			}
		}
		again := must(l.RLock(reader.Context(), "k"))
		mustUnlock(t, again)
		mustUnlock(t, reader)
		wantFree(t, w, "k")
	})
}

func TestLockAll(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		all := must(l.LockAll(t.Context(), []string{"c", "a", "b", "a"}))
		if keys := all.Keys(); len(keys) != 3 || keys[0] != "a" || keys[2] != "c" {
			t.Errorf("keys %v", keys)
		}
		for _, key := range []string{"a", "b", "c"} {
			if f, ok := all.Fence(key); !ok || f.Number <= 0 {
				t.Errorf("fence of %s: %v, %v", key, f, ok)
			}
			if _, err := newLocker(t, w).TryLock(t.Context(), key); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if _, ok := all.Fence("d"); ok {
			t.Error("a fence of a key that is not held")
		}
		ctx := all.Context()
		if _, err := l.LockAll(ctx, []string{"0", "d"}); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("out of order: %v", err)
		}
		more := must(l.LockAll(ctx, []string{"d", "b"})) // b is held already
		ok(t, more.Unlock(t.Context()))
		if ctx.Err() != nil {
			t.Errorf("ended: %v", context.Cause(ctx))
		}
		if f, _ := all.Fence("b"); true { // the loss of one ends the context of all
			if done, err := l.ForceUnlock(t.Context(), "b", f.Number); !done || err != nil {
				t.Fatalf("ForceUnlock: %v, %v", done, err)
			}
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		if err := all.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		for _, key := range []string{"a", "b", "c", "d"} {
			wantFree(t, w, key)
		}

		// All or none.
		blocker := mustLock(t, l, "b")
		short, cancel := context.WithCancel(t.Context())
		waiting := start(func() (*lock.Lease, error) {
			_, err := l.LockAll(short, []string{"a", "b"})
			return nil, err
		})
		cancel()
		if !waiting.returned() || !errors.Is(waiting.err, context.Canceled) {
			t.Errorf("cancelled: %v", waiting.err)
		}
		wantFree(t, w, "a")
		mustUnlock(t, blocker)
		wantFree(t, w, "b")
	})
}
