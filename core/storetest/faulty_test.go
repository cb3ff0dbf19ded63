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
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
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

func TestFaultsOfTokens(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	r := store.TokenRequest{Limiter: "api", Key: "k", Charges: []store.Charge{
		{Cost: time.Hour, Capacity: 10 * time.Hour, Overdraft: time.Hour, Interval: time.Hour},
	}}
	look := r
	look.Charges = []store.Charge{{Capacity: 10 * time.Hour, Overdraft: time.Hour, Interval: time.Hour}}
	for op, call := range map[storetest.Op]func(context.Context) error{
		storetest.SettleTokens: func(ctx context.Context) error { _, err := f.SettleTokens(ctx, r); return err },
		storetest.HoldTokens:   func(ctx context.Context) error { return f.HoldTokens(ctx, r, time.Hour) },
	} {
		changed := func() bool {
			t.Helper()
			reply, err := f.Store.TakeTokens(t.Context(), look)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Store.ResetTokens(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			return reply.Held > 0 || reply.Debts.At(0) > 0
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for fault, want := range map[storetest.Fault]struct {
			err     error
			changes bool
		}{
			storetest.Down:      {store.ErrUnavailable, false},
			storetest.Full:      {store.ErrFull, false},
			storetest.LostReply: {store.ErrUnconfirmed, true},
			storetest.Hung:      {context.Canceled, false},
		} {
			ctx := t.Context()
			if fault == storetest.Hung {
				ctx = ended
			}
			f.BreakNext(op, fault, 1)
			if err := call(ctx); !errors.Is(err, want.err) || changed() != want.changes {
				t.Errorf("%s, fault %d: %v", op, fault, err)
			}
		}
		if err := call(t.Context()); err != nil || !changed() || f.Calls(op) != 5 {
			t.Errorf("%s: %v, %d calls", op, err, f.Calls(op))
		}
	}
}

func TestFaultsOfLeases(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	name := store.LockKind + "n"
	req := store.LeaseRequest{Name: name, Key: "k", ID: "id", Weight: 1, Capacity: 1, TTL: time.Minute, Fences: 1}
	holds := func() []store.LeaseHolder {
		t.Helper()
		state, err := f.Store.InspectLease(t.Context(), name, "k")
		if err != nil {
			t.Fatal(err)
		}
		return state.Holders
	}
	f.BreakNext(storetest.AcquireLease, storetest.Down, 1)
	if _, err := f.AcquireLease(t.Context(), req); !errors.Is(err, store.ErrUnavailable) || len(holds()) != 0 {
		t.Errorf("Down: %v", err)
	}
	f.BreakNext(storetest.AcquireLease, storetest.LostReply, 1)
	if _, err := f.AcquireLease(t.Context(), req); !errors.Is(err, store.ErrUnconfirmed) || len(holds()) != 1 {
		t.Fatalf("LostReply: %v", err)
	}
	refs := []store.LeaseRef{req.Ref(holds()[0].Fence)}
	latch := store.LatchRequest{Name: "n", Count: 1, TTL: time.Minute}
	for op, call := range map[storetest.Op]func() error{
		storetest.AwaitLease:     func() error { _, err := f.AwaitLease(t.Context(), req); return err },
		storetest.RenewLeases:    func() error { _, err := f.RenewLeases(t.Context(), refs); return err },
		storetest.DowngradeLease: func() error { _, err := f.DowngradeLease(t.Context(), refs[0], 1); return err },
		storetest.VerifyLease:    func() error { _, err := f.VerifyLease(t.Context(), refs[0]); return err },
		storetest.InspectLease:   func() error { _, err := f.InspectLease(t.Context(), name, "k"); return err },
		storetest.RevokeLease:    func() error { _, err := f.RevokeLease(t.Context(), name, "k", 1); return err },
		storetest.ListLeases: func() error {
			var errs []error
			for _, err := range f.ListLeases(t.Context(), name) {
				errs = append(errs, err)
			}
			if len(errs) != 1 {
				t.Errorf("ListLeases yielded %v", errs)
			}
			return errors.Join(errs...)
		},
		storetest.CountDownLatch: func() error { _, err := f.CountDownLatch(t.Context(), latch, "p"); return err },
		storetest.InspectLatch:   func() error { _, err := f.InspectLatch(t.Context(), latch); return err },
		storetest.AwaitLatch: func() error {
			if _, err := f.Store.CountDownLatch(t.Context(), latch, "p"); err != nil {
				t.Error(err)
			}
			return f.AwaitLatch(t.Context(), latch)
		},
	} {
		f.BreakNext(op, storetest.Down, 1)
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s, Down: %v", op, err)
		}
		if err := call(); err != nil || f.Calls(op) != 2 {
			t.Errorf("%s: %v, %d calls", op, err, f.Calls(op))
		}
	}
	f.BreakNext(storetest.ReleaseLeases, storetest.LostReply, 1)
	if _, err := f.ReleaseLeases(t.Context(), refs); !errors.Is(err, store.ErrUnconfirmed) || len(holds()) != 0 {
		t.Errorf("LostReply: %v", err)
	}
	refs[0].Repeated = true
	if outcomes, err := f.ReleaseLeases(t.Context(), refs); err != nil || len(outcomes) != 1 || outcomes[0] != store.ReleaseUnknown {
		t.Errorf("the repeat of a release: %v, %v", outcomes, err)
	}
}

func TestFaultsOfDocuments(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	req := store.DocumentRequest{Space: "s", Name: "a", Data: []byte("text"), Version: store.NoDocument}
	for op, call := range map[storetest.Op]func() error{
		storetest.PutDocument:    func() error { _, _, err := f.PutDocument(t.Context(), req); return err },
		storetest.GetDocument:    func() error { _, _, err := f.GetDocument(t.Context(), "s", "a"); return err },
		storetest.RemoveDocument: func() error { _, err := f.RemoveDocument(t.Context(), "s", "b", store.AnyVersion); return err },
		storetest.ListDocuments: func() (err error) {
			for _, listed := range f.ListDocuments(t.Context(), "s") {
				err = errors.Join(err, listed)
			}
			return err
		},
	} {
		f.BreakNext(op, storetest.Down, 1)
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s, Down: %v", op, err)
		}
		if err := call(); err != nil || f.Calls(op) != 2 {
			t.Errorf("%s: %v, %d calls", op, err, f.Calls(op))
		}
	}
	f.BreakNext(storetest.RemoveDocument, storetest.LostReply, 1)
	if gone, err := f.RemoveDocument(t.Context(), "s", "a", store.AnyVersion); gone || !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("LostReply: %t, %v", gone, err)
	}
	f.BreakNext(storetest.PutDocument, storetest.LostReply, 1)
	if _, ok, err := f.PutDocument(t.Context(), req); ok || !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("LostReply: %t, %v", ok, err)
	}
	if version, ok, err := f.PutDocument(t.Context(), req); !ok || version == 0 || err != nil {
		t.Errorf("the repeat of a put: %d, %t, %v", version, ok, err)
	}
}
