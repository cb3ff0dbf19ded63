package storetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// bareLeases and bareRecords are stores without optional abilities.
type (
	bareLeases  struct{ store.Leases }
	bareRecords struct{ store.Records }
)

// The suites pass on stores without abilities, whose tests they skip.
func TestSuitesOfBareStores(t *testing.T) {
	skipped := 0
	count := func(t *testing.T) {
		t.Cleanup(func() {
			if t.Skipped() {
				skipped++
			}
		})
	}
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[bareLeases])) {
		synctest.Test(t, func(t *testing.T) {
			count(t)
			st := memstore.New()
			defer st.Close()
			test(t, storetest.Harness[bareLeases]{Store: bareLeases{st}, Advance: time.Sleep})
		})
	})
	storetest.Records(t, func(t *testing.T, test func(*testing.T, storetest.Harness[bareRecords])) {
		synctest.Test(t, func(t *testing.T) {
			count(t)
			st := memstore.New()
			defer st.Close()
			test(t, storetest.Harness[bareRecords]{Store: bareRecords{st}, Advance: time.Sleep})
		})
	})
	if skipped == 0 {
		t.Error("no test needs an ability")
	}
}

// A lock on a store without abilities works, and says what it cannot do.
func TestALockOnABareStore(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	l := must(lock.New(bareLeases{st}, "jobs"))
	lease := must(l.Lock(t.Context(), "k"))
	if err := lease.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
	for what, err := range map[string]error{
		"Downgrade":   lease.Downgrade(t.Context()),
		"Inspect":     second(l.Inspect(t.Context(), "k")),
		"ForceUnlock": second(l.ForceUnlock(t.Context(), "k", lease.Fence().Number)),
	} {
		if !errors.Is(err, lock.ErrNotSupported) {
			t.Errorf("%s: %v, want ErrNotSupported", what, err)
		}
	}
	for _, err := range l.List(t.Context()) {
		if !errors.Is(err, lock.ErrNotSupported) {
			t.Errorf("List: %v, want ErrNotSupported", err)
		}
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := lease.Verify(t.Context()); !errors.Is(err, lock.ErrReleased) {
		t.Errorf("Verify after Unlock: %v, want ErrReleased", err)
	}
}

// A guard on a store without abilities works, and runs no step whose result could not be kept.
func TestAGuardOnABareStore(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	g := must(guard.New(bareRecords{st}, "orders"))
	op := guard.Operation{Scope: "user", Key: "k"}
	a, _, err := g.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	_, err = guard.Step(t.Context(), a, "charge", func(context.Context) (int, error) {
		t.Error("the step runs")
		return 0, nil
	})
	if !errors.Is(err, store.ErrNotSupported) {
		t.Errorf("Step: %v, want ErrNotSupported", err)
	}
	if err := a.Complete(t.Context(), guard.Result{}); err != nil {
		t.Error(err)
	}
	if _, err := g.Inspect(t.Context(), op); !errors.Is(err, store.ErrNotSupported) {
		t.Errorf("Inspect: %v, want ErrNotSupported", err)
	}
	for _, err := range g.Unresolved(t.Context()) {
		if !errors.Is(err, store.ErrNotSupported) {
			t.Errorf("Unresolved: %v, want ErrNotSupported", err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func second[T any](_ T, err error) error { return err }
