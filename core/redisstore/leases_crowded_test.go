package redisstore_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// 20,000 goroutines that want the same at once are all served, or told that the queue is full, and
// the store does not take the server to be down. With the race detector, which takes ten times as
// long for each of them, they are 2,000: .ci/run starts all without it.
func TestTwentyThousandAtOnce(t *testing.T) {
	goroutines := 20_000
	if testpace.Raced {
		goroutines = 2_000
	}
	server := redistest.Start(t)
	for name, acquire := range map[string]func(t *testing.T, s func() store.Leases) func() (func() error, error){
		"locks": func(t *testing.T, s func() store.Leases) func() (func() error, error) {
			l, err := lock.New(s(), "crowd")
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			return func() (func() error, error) {
				lease, err := l.Lock(ctx(), "k")
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Unlock(ctx()) }, nil
			}
		},
		"fair locks": func(t *testing.T, s func() store.Leases) func() (func() error, error) {
			l, err := lock.New(s(), "fair", lock.WithFair())
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			return func() (func() error, error) {
				lease, err := l.Lock(ctx(), "k")
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Unlock(ctx()) }, nil
			}
		},
		"permits": func(t *testing.T, s func() store.Leases) func() (func() error, error) {
			sem, err := semaphore.New(s(), "crowd", 10)
			must(t, err)
			t.Cleanup(func() { _ = sem.Close() })
			return func() (func() error, error) {
				p, err := sem.Acquire(ctx(), "k")
				if err != nil {
					return nil, err
				}
				return func() error { return p.Release(ctx()) }, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(logbook)
			get := acquire(t, func() store.Leases { return newStore(t, server.Client(), log.option()) })
			var (
				wg           sync.WaitGroup
				served, full atomic.Int64
			)
			began := time.Now()
			for range goroutines {
				wg.Go(func() {
					release, err := get()
					switch {
					case err == nil:
						served.Add(1)
						granted := time.Now()
						err := release()
						if took := time.Since(granted); err != nil && (took < time.Second || !errors.Is(err, lock.ErrLost)) { // a pushed grant lasts 2 s
							t.Errorf("release: %v after %v", err, took)
						}
					case errors.Is(err, semaphore.ErrQueueFull):
						full.Add(1)
					default:
						t.Errorf("acquire: %v", err)
					}
				})
			}
			wg.Wait()
			t.Logf("%d served, %d told that the queue is full, in %v", served.Load(), full.Load(), time.Since(began))
			if served.Load() == 0 || name != "permits" && full.Load() > 0 {
				t.Errorf("%d served, %d told that the queue is full", served.Load(), full.Load())
			}
			if log.has(tripped) {
				t.Error("the breaker opened")
			}
		})
	}
}
