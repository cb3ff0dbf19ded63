package zkstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// What steps cost is what their comments say.
func TestRequestsOfSteps(t *testing.T) {
	p := newPair(t)
	requests := func() (n int) {
		for _, name := range []string{"create", "createContainer", "delete", "exists", "getData", "setData", "getChildren", "multi"} {
			n += p.proxy.Seen(name)
		}
		return n
	}
	cost := func(what string, want int, step func()) {
		t.Helper()
		before := requests()
		if step(); requests()-before != want {
			t.Errorf("%s took %d requests, want %d", what, requests()-before, want)
		}
	}
	countDown := func(latch, participant string) func() {
		return func() {
			t.Helper()
			_, err := p.behind.CountDownLatch(t.Context(), store.LatchRequest{Name: latch, Count: 9, TTL: suiteSession}, participant)
			must(t, err)
		}
	}
	countDown("warm", "a")() // makes what all latches need
	countDown("warm", "b")()
	cost("the first participant", 6, countDown("latch", "a"))
	cost("another participant", 4, countDown("latch", "b"))

	l, other := locker(t, p.behind), locker(t, p.other)
	warm, err := l.Lock(t.Context(), "k")
	must(t, err)
	must(t, warm.Unlock(t.Context()))
	cost("a lock", 3, func() { warm, err = l.Lock(t.Context(), "k"); must(t, err) })
	cost("its release", 1, func() { must(t, warm.Unlock(t.Context())) })
	held, err := other.Lock(t.Context(), "k")
	must(t, err)
	cost("a refused try", 5, func() {
		if _, err := l.TryLock(t.Context(), "k"); err == nil {
			t.Error("granted twice")
		}
	})
	must(t, held.Unlock(t.Context()))
}
