package redo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/redo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAway = errors.New("away")

func TestRetriesUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q redo.Queue
		tries, done := 0, false
		q.Add(time.Now().Add(time.Hour), func(context.Context) error {
			if tries++; tries < 10 {
				return errAway
			}
			return nil
		}, func() { done = true })
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries != 10 || !done {
			t.Errorf("%d tries, done %v", tries, done)
		}
	})
}

func TestGivesUpWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q redo.Queue
		start := time.Now()
		var gaveUp time.Duration
		q.Add(start.Add(10*time.Second), func(context.Context) error { return errAway }, func() { gaveUp = time.Since(start) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if gaveUp < 10*time.Second || gaveUp > 13*time.Second {
			t.Errorf("gave up after %v, want 10s and at most one pause", gaveUp)
		}
	})
}

// A task that fails for a reason of its own does not hold up the others.
func TestOneFailureDoesNotBlockTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q redo.Queue
		start := time.Now()
		var done []time.Duration
		q.Add(start.Add(time.Hour), func(context.Context) error { return errAway }, nil)
		for range 5 {
			q.Add(start.Add(time.Hour), func(context.Context) error {
				done = append(done, time.Since(start))
				return nil
			}, nil)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(done) != 5 || slices.Max(done) > time.Second {
			t.Errorf("done after %v", done)
		}
		time.Sleep(time.Hour)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q redo.Queue
		if err := q.Drain(t.Context()); err != nil {
			t.Fatalf("of an empty queue: %v", err)
		}
		var away atomic.Bool
		var tries atomic.Int64
		away.Store(true)
		q.Add(time.Now().Add(time.Hour), func(context.Context) error {
			if tries.Add(1); away.Load() {
				return errAway
			}
			return nil
		}, nil)
		time.Sleep(time.Minute) // the pauses are long by now
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		before := tries.Load()
		if err := q.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with the store away: %v", err)
		}
		if tries.Load() == before {
			t.Error("Drain did not try at once")
		}
		away.Store(false)
		start := time.Now()
		if err := q.Drain(t.Context()); err != nil || time.Since(start) > time.Second {
			t.Errorf("with the store back: %v after %v", err, time.Since(start))
		}
	})
}

func TestClosedStoreEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q redo.Queue
		tries := 0
		q.Add(time.Now().Add(time.Hour), func(context.Context) error {
			tries++
			return fmt.Errorf("settling: %w", outage.ErrClosed)
		}, nil)
		if err := q.Drain(t.Context()); err != nil || tries != 1 {
			t.Errorf("%v after %d tries", err, tries)
		}
	})
}

func TestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			q       redo.Queue
			away    atomic.Bool
			refused = 0
		)
		away.Store(true)
		for range 2000 {
			if !q.Add(time.Now().Add(time.Hour), func(context.Context) error {
				if away.Load() {
					return errAway
				}
				return nil
			}, nil) {
				refused++
			}
		}
		if refused != 2000-1024 {
			t.Errorf("%d of 2000 tasks were refused, want all beyond 1024", refused)
		}
		away.Store(false)
		if err := q.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
