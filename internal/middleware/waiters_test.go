package middleware

import (
	"sync"
	"testing"
)

func TestWaitersAreLimited(t *testing.T) {
	w := newWaiters(2)
	for key, want := range map[string][]bool{"a": {true, true, false}, "b": {true, true, false}} {
		for n, want := range want {
			if got := w.join(key); got != want {
				t.Errorf("%s, time %d: %v", key, n, got)
			}
		}
	}
	w.leave("a")
	if !w.join("a") || w.join("a") {
		t.Error("the place of one that left is not for one more")
	}
}

func TestNoWaitersLeaveNothing(t *testing.T) {
	w := newWaiters(3)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if w.join("a") {
				w.leave("a")
			}
		})
	}
	all.Wait()
	if len(w.byKey) != 0 {
		t.Errorf("left %v", w.byKey)
	}
}
