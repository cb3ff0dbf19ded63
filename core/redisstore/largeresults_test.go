package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Large results take longer than the timeout, in both directions, and do not delay other calls.
func TestLargeResults(t *testing.T) {
	for timeout := time.Second; timeout <= 8*time.Second; timeout *= 2 {
		if !largeResults(t, timeout) {
			return
		}
	}
	t.Error("the machine takes seconds for a PING")
}

// largeResults completes and replays operations with large results, beside small calls with a timeout.
// It returns true if PINGs were so late that it proves nothing.
func largeResults(t *testing.T, timeout time.Duration) (late bool) {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	log := new(logbook)
	direct := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = direct.Close() })
	s := newStore(t, obedient(t, proxy.Addr(), 20), redisstore.WithTimeout(timeout), log.option())
	g := newGuard(t, s, guard.WithMaxResult(16<<20), guard.WithMaxScopeBytes(1<<30))
	l := newLimiter(t, s)
	_, err := l.AllowN(ctx(), "k", 0)
	must(t, err)
	var attempts []*guard.Attempt
	op := func(i int) guard.Operation { return guard.Operation{Scope: "alice", Key: fmt.Sprint(i)} }
	sizes := []int{16 << 20, 8 << 20, 1 << 20, 100 << 10, 10 << 10, 10}
	for i := range sizes {
		a, _, err := g.Begin(ctx(), op(i))
		must(t, err)
		attempts = append(attempts, a)
	}
	noise := make([]byte, sizes[0]) // that a guard does not compress
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	proxy.Throttle(sizes[0] * int(time.Second) / int(2*timeout)) // the largest takes two timeouts
	var all, failed atomic.Int64
	under, done := context.WithCancel(ctx())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for under.Err() == nil {
				if _, err := l.AllowN(ctx(), "k", 0); err != nil {
					failed.Add(1)
				}
				all.Add(1)
				<-time.After(time.Millisecond)
			}
		})
	}
	var wrong atomic.Value
	slowest := slowestPing(t, direct, func() {
		together(len(sizes), func(i int) {
			if err := attempts[i].Complete(ctx(), guard.Result{Status: 200, Data: noise[:sizes[i]]}); err != nil {
				wrong.Store(fmt.Sprintf("complete with %d bytes: %v", sizes[i], err))
			}
		})
		together(len(sizes), func(i int) {
			_, r, err := g.Begin(ctx(), op(i))
			if err != nil || r == nil || len(r.Data) != sizes[i] {
				wrong.Store(fmt.Sprintf("replay of %d bytes: %+v, %v", sizes[i], r != nil, err))
			}
		})
	})
	done()
	wg.Wait()
	if failed.Load() > all.Load()/20 { // the machine has to copy the large ones
		wrong.Store(fmt.Sprintf("%d of %d small calls beside large ones failed", failed.Load(), all.Load()))
	}
	if log.has(tripped) {
		wrong.Store("the breaker opened")
	}
	if wrong.Load() == nil {
		return false
	}
	if slowest > timeout/20 {
		t.Logf("late, with a PING of %v: %v", slowest, wrong.Load())
		return true
	}
	t.Error(wrong.Load())
	return false
}
