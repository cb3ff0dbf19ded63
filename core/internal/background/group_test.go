package background_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g background.Group
		if err := g.Wait(t.Context()); err != nil {
			t.Fatalf("without any: %v", err)
		}
		finish := make(chan struct{})
		g.Begin()
		g.Run(func() { <-finish })
		var waited [2]error
		done := make(chan struct{}, len(waited))
		for i := range waited {
			go func() {
				waited[i] = g.Wait(t.Context())
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		close(finish)
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("did not wait for both")
		}
		g.End()
		for range waited {
			<-done
		}
		ok(t, errors.Join(waited[:]...))
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	var g background.Group
	g.Begin()
	defer g.End()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
