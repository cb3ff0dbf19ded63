package storetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestFaults(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	l, err := tokenbucket.New(f, "api", tokenbucket.PerHour(10))
	if err != nil {
		t.Fatal(err)
	}
	remaining := func() int64 {
		t.Helper()
		d, err := l.Peek(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return d.Limits()[0].Remaining
	}

	f.BreakNext(storetest.TakeTokens, storetest.Down, 1)
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("Down: %v", err)
	}
	if n := remaining(); n != 10 {
		t.Errorf("Down: %d tokens remain, want 10", n)
	}

	f.BreakNext(storetest.Any, storetest.LostReply, 1)
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("LostReply: %v", err)
	}
	if n := remaining(); n != 9 {
		t.Errorf("LostReply: %d tokens remain, want 9", n)
	}

	f.Break(storetest.TakeTokens, storetest.Hung)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("Hung: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := l.Allow(t.Context(), "k")
		done <- err
	}()
	f.Mend(storetest.Any)
	if err := <-done; err != nil {
		t.Errorf("Hung and mended: %v", err)
	}
	if n := remaining(); n != 8 {
		t.Errorf("Hung and mended: %d tokens remain, want 8", n)
	}
	if n := f.Calls(storetest.TakeTokens); n != 7 || f.Calls(storetest.Any) != 7 {
		t.Errorf("counted %d calls, want 7", n)
	}
	if err := f.Ping(t.Context()); err != nil || f.Calls(storetest.Ping) != 1 {
		t.Errorf("Ping: %v", err)
	}
}

func TestFaultsOfLocks(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	req := store.LockRequest{Name: "n", Key: "k", ID: "id", TTL: time.Minute, Fences: 1}
	hold := store.LockRef{Name: "n", Key: "k", ID: "id", TTL: time.Minute}
	held := func() bool {
		t.Helper()
		held, err := f.VerifyLock(t.Context(), hold)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	f.BreakNext(storetest.AcquireLock, storetest.Down, 1)
	if _, err := f.AcquireLock(t.Context(), req); !errors.Is(err, store.ErrUnavailable) || held() {
		t.Errorf("Down: %v", err)
	}
	f.BreakNext(storetest.AcquireLock, storetest.LostReply, 1)
	if _, err := f.AcquireLock(t.Context(), req); !errors.Is(err, store.ErrUnconfirmed) || !held() {
		t.Errorf("LostReply: %v", err)
	}
	f.BreakNext(storetest.ListLocks, storetest.Down, 1)
	for _, want := range []error{store.ErrUnavailable, nil} {
		n := 0
		for state, err := range f.ListLocks(t.Context(), "n") {
			n++
			if !errors.Is(err, want) {
				t.Errorf("ListLocks: %+v, %v, want %v", state, err, want)
			}
		}
		if n != 1 {
			t.Errorf("ListLocks yielded %d times", n)
		}
	}
	for op, call := range map[storetest.Op]func() error{
		storetest.AcquirePermits: func() error {
			_, err := f.AcquirePermits(t.Context(), store.PermitRequest{})
			return err
		},
		storetest.AwaitPermits: func() error {
			_, err := f.AwaitPermits(t.Context(), store.PermitRequest{})
			return err
		},
		storetest.RenewPermits:   func() error { _, err := f.RenewPermits(t.Context(), nil); return err },
		storetest.ReleasePermits: func() error { _, err := f.ReleasePermits(t.Context(), nil); return err },
		storetest.InspectPermits: func() error { _, err := f.InspectPermits(t.Context(), "n", "k"); return err },
		storetest.ListPermits: func() (err error) {
			for _, err = range f.ListPermits(t.Context(), "n") {
			}
			return err
		},
		storetest.CountDownLatch: func() error {
			_, err := f.CountDownLatch(t.Context(), store.LatchRequest{}, "p")
			return err
		},
		storetest.InspectLatch: func() error { _, err := f.InspectLatch(t.Context(), store.LatchRequest{}); return err },
		storetest.AwaitLatch:   func() error { return f.AwaitLatch(t.Context(), store.LatchRequest{}) },
	} {
		f.BreakNext(op, storetest.Down, 1)
		if err := call(); !errors.Is(err, store.ErrUnavailable) || f.Calls(op) != 1 {
			t.Errorf("%s: %v", op, err)
		}
	}
	f.BreakNext(storetest.ReleaseLock, storetest.LostReply, 1)
	if _, err := f.ReleaseLock(t.Context(), hold); !errors.Is(err, store.ErrUnconfirmed) || held() {
		t.Errorf("LostReply: %v", err)
	}
	if released, err := f.ReleaseLock(t.Context(), hold); !released || err != nil {
		t.Errorf("the repeat of a release: %v, %v", released, err)
	}
}
