package statement

import (
	"context"
	"testing"
	"testing/synctest"
)

// Calls run at once, however many there are; few goroutines stay, and they end with the store.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails if a goroutine is left behind
		life, end := context.WithCancel(t.Context())
		w := newWorkers(life, 2)
		for range 3 {
			hold, running := make(chan struct{}), make(chan struct{}, 5)
			for range 5 {
				w.run(func() { running <- struct{}{}; <-hold })
			}
			for range 5 {
				<-running
			}
			if n := w.idle.Load(); n != 0 {
				t.Errorf("%d are idle while 5 calls run", n)
			}
			close(hold)
			synctest.Wait()
			if n := w.idle.Load(); n != 2 {
				t.Errorf("%d are idle, want 2", n)
			}
		}
		end()
	})
}
