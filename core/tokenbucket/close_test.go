package tokenbucket_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Close ends the first in a queue and the waiters behind it, and every later call.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1)))
		if _, err := l.Allow(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ended := make(chan error)
		for range 3 {
			go func() { ended <- l.Wait(t.Context(), "k") }()
		}
		synctest.Wait()
		for range 2 {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		for range 3 {
			if err := <-ended; !errors.Is(err, tokenbucket.ErrClosed) || !errors.Is(err, store.ErrClosed) {
				t.Errorf("a waiter: %v", err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("waiters ended after %v", took)
		}
		_, allow := l.Allow(t.Context(), "other")
		_, peek := l.Peek(t.Context(), "other")
		for name, err := range map[string]error{
			"Allow": allow, "Peek": peek, "Wait": l.Wait(t.Context(), "k"), "Reset": l.Reset(t.Context(), "k"),
			"SetPlan": l.SetPlan(tokenbucket.PerHour(2)),
		} {
			if !errors.Is(err, tokenbucket.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		again := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1)))
		defer func() { _ = again.Close() }()
		if d, err := again.Allow(t.Context(), "k"); err != nil || d.Allowed {
			t.Errorf("the bucket was lost: %+v, %v", d, err)
		}
	})
}
