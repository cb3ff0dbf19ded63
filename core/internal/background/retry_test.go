package background_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var errDown = errors.New("down")

// server is called by tasks.
type server struct {
	down  atomic.Bool
	tries atomic.Int64
}

func (s *server) try(context.Context) error {
	if s.tries.Add(1); s.down.Load() {
		return errDown
	}
	return nil
}

func inAnHour(try func(context.Context) error) background.Task {
	return background.Task{Until: time.Now().Add(time.Hour), Try: try}
}

func TestRetriesUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q background.RetryQueue
		tries, done := 0, errDown
		task := inAnHour(func(context.Context) error {
			if tries++; tries < 10 {
				return errDown
			}
			return nil
		})
		task.After = func(err error) { done = err }
		q.Add(task)
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries != 10 || done != nil {
			t.Errorf("%d tries, ended with %v", tries, done)
		}
	})
}

func TestEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q background.RetryQueue
		start := time.Now()
		var ended time.Duration
		q.Add(background.Task{
			Until: start.Add(10 * time.Second),
			Try:   func(context.Context) error { return errDown },
			After: func(err error) {
				if ended = time.Since(start); !errors.Is(err, errDown) {
					t.Errorf("ended with %v", err)
				}
			},
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if ended < 10*time.Second || ended > 11*time.Second {
			t.Errorf("ended after %v, want 10s and at most one pause", ended)
		}
	})
}

// A task that always fails, or hangs, does not delay others.
func TestOneFailureDoesNotBlockTheRest(t *testing.T) {
	for name, bad := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errDown },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					q    background.RetryQueue
					mu   sync.Mutex
					late []time.Duration
					done int
				)
				q.Add(inAnHour(bad))
				for range 3 {
					start := time.Now()
					for range 5 {
						q.Add(inAnHour(func(context.Context) error {
							mu.Lock()
							defer mu.Unlock()
							done++
							if took := time.Since(start); took > time.Second {
								late = append(late, took)
							}
							return nil
						}))
					}
					time.Sleep(5 * time.Second)
					synctest.Wait()
				}
				if done != 15 || len(late) > 0 {
					t.Errorf("%d of 15 are done, and late: %v", done, late)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// An outage costs few tries, however many tasks there are, and after it all of them succeed at once.
func TestOutageOfManyTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := background.RetryQueue{MaxBytes: 1 << 30}
		var s server
		s.down.Store(true)
		for range 10_000 {
			q.Add(inAnHour(func(ctx context.Context) error {
				time.Sleep(time.Millisecond) // a round trip
				return s.try(ctx)
			}))
		}
		time.Sleep(time.Minute)
		if n := s.tries.Load(); n > 1000 {
			t.Errorf("%d tries in a minute of outage", n)
		}
		time.Sleep(10 * time.Minute) // the pauses are long by now
		s.down.Store(false)
		start := time.Now()
		if err := q.Drain(t.Context()); err != nil || time.Since(start) > time.Second {
			t.Errorf("10,000 tasks are done %v after the outage: %v", time.Since(start), err)
		}
	})
}

// A successful call shortens the pause.
func TestHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			q background.RetryQueue
			s server
		)
		q.Hurry() // nothing to do
		s.down.Store(true)
		q.Add(inAnHour(s.try))
		time.Sleep(time.Minute)
		for s.tries.Load() > 0 { // right after a try
			s.tries.Store(0)
			time.Sleep(time.Millisecond)
		}
		for s.tries.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		s.down.Store(false)
		start := time.Now()
		q.Hurry()
		for q.Left() > 0 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); took > 25*time.Millisecond {
			t.Errorf("done %v after the successful call", took)
		}

		s.down.Store(true)
		q.Add(inAnHour(s.try))
		s.tries.Store(0)
		for range 1000 {
			q.Hurry()
			time.Sleep(time.Millisecond)
		}
		if n := s.tries.Load(); n > 60 {
			t.Errorf("%d tries in a second of successful calls: there is no pause", n)
		}
		s.down.Store(false)
		time.Sleep(time.Second)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			q background.RetryQueue
			s server
		)
		if err := q.Drain(t.Context()); err != nil {
			t.Fatalf("of an empty queue: %v", err)
		}
		s.down.Store(true)
		q.Add(inAnHour(s.try))
		time.Sleep(time.Minute) // the pauses are long by now
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		before := s.tries.Load()
		if err := q.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "1 unconfirmed") {
			t.Errorf("with the store down: %v", err)
		}
		if s.tries.Load() == before {
			t.Error("Drain did not try at once")
		}
		s.down.Store(false)
		start := time.Now()
		if err := q.Drain(t.Context()); err != nil || time.Since(start) > time.Second {
			t.Errorf("with the store back: %v after %v", err, time.Since(start))
		}
	})
}

func TestClosedStoreEndsATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q background.RetryQueue
		tries := 0
		task := inAnHour(func(context.Context) error {
			tries++
			return fmt.Errorf("settling: %w", store.ErrClosed)
		})
		var ended error
		task.After = func(err error) { ended = err }
		q.Add(task)
		if err := q.Drain(t.Context()); err != nil || tries != 1 || !errors.Is(ended, store.ErrClosed) {
			t.Errorf("%v after %d tries, ended with %v", err, tries, ended)
		}
	})
}

func TestRetryQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ max, each, fit int }{
			{0, 0, 1024},
			{64 << 20, 64 << 10, 1008}, // in 65 KiB each
			{2048, 1024, 1},
			{2048, 1025, 0},
		} {
			q := background.RetryQueue{MaxBytes: c.max}
			var s server
			s.down.Store(true)
			fit := 0
			for range 2000 {
				task := inAnHour(s.try)
				task.Bytes = c.each
				if q.Add(task) {
					fit++
				}
			}
			if fit != c.fit || q.Left() != fit {
				t.Errorf("%+v: %d tasks fit, %d are left", c, fit, q.Left())
			}
			s.down.Store(false)
			ok(t, q.Drain(t.Context()))
			again := inAnHour(s.try)
			again.Bytes = c.each
			if q.Add(again) != (c.fit > 0) {
				t.Errorf("%+v: completed tasks take room", c)
			}
			ok(t, q.Drain(t.Context()))
		}
	})
}
