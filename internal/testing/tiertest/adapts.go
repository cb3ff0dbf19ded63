package tiertest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Adapts returns the change of an adaptive capacity of 10, of which the other 9 are in use, when a
// middleware has served requests of the key "1" for a window. serving returns a function that serves
// one.
func Adapts(t testing.TB, target time.Duration, serving func(*semaphore.Semaphore) (serve func())) int {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	sem, err := semaphore.New(st, "gate", 10, semaphore.WithAdaptiveCapacity(target, 10, 100))
	must(err)
	must(sem.SetAdaptiveCapacity(target, 1, 100))
	others, err := sem.TryAcquireN(t.Context(), "others", 9)
	must(err)
	serve := serving(sem)
	began := time.Now()
	for i := range 21 {
		if i == 20 { // the window has its samples
			<-time.After(300*time.Millisecond - time.Since(began))
		}
		serve()
		testpace.Eventually(t, within, "the permit is released", func() bool {
			state, err := sem.Inspect(t.Context(), "1")
			return err == nil && state.InUse == 0
		})
	}
	n, err := sem.Capacity("1")
	must(err)
	others.Void()
	must(others.Release(t.Context()))
	return n - 10
}
