package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// Close waits for attempts in flight, and begins no more.
func TestClose(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		closed := make(chan error)
		go func() { closed <- f.guard.Close() }()
		synctest.Wait()
		if _, _, err := f.guard.Begin(f.Context(), op); !errors.Is(err, guard.ErrClosed) || !errors.Is(err, store.ErrClosed) {
			f.Errorf("Begin: %v", err)
		}
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		f.want(<-closed, nil)
		f.want(f.guard.Close(), nil)
	})
}

// After a Close that times out, the store's Shutdown completes the work.
func TestCloseReportsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		g := newGuard(t, st)
		a, _, err := g.Begin(t.Context(), guard.Operation{Scope: "s", Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		st.Break(storetest.SettleOperation, storetest.Down)
		_ = a.Complete(t.Context(), guard.Result{})
		began := time.Now()
		if err := g.Close(); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 completions are not confirmed") {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("Close took %v", took)
		}
		st.Mend(storetest.Any)
		if err := st.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if n := st.Calls(storetest.SettleOperation); n < 2 {
			t.Errorf("%d attempts to settle", n)
		}
		_ = st.Close()
	})
}

// Close removes the hooks in the store.
func TestCloseDetaches(t *testing.T) {
	st := hookCounter{memstore.New(), new(int)}
	defer st.Close()
	g := newGuard(t, st)
	if err := g.Close(); err != nil || *st.hooks != 0 {
		t.Errorf("Close: %v, %d hooks remain", err, *st.hooks)
	}
}

// hookCounter counts the hooks of a store.
type hookCounter struct {
	*memstore.Store
	hooks *int
}

func (s hookCounter) AtShutdown(f func(context.Context) error) (remove func()) {
	*s.hooks++
	detach := s.Store.AtShutdown(f)
	return func() { *s.hooks--; detach() }
}
