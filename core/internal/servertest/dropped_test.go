package servertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// stores runs a test on memory and on Redis.
func stores(t *testing.T, test func(t *testing.T, st store.Store)) {
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		test(t, st)
	})
	t.Run("redis", func(t *testing.T) { test(t, newStore(t, connect(t, redistest.Start(t).Addr()))) })
}

// A mechanism that is made for a request, and never closed, does not outlive it.
func TestDroppedMechanismsAreCollected(t *testing.T) {
	stores(t, func(t *testing.T, st store.Store) {
		for kind, drop := range map[string]func(name string){
			"lock":       func(name string) { must(lock.New(st, name)) },
			"semaphore":  func(name string) { must(semaphore.New(st, name, 3)) },
			"guard":      func(name string) { must(guard.New(st, name)) },
			"rate limit": func(name string) { must(tokenbucket.New(st, name, tokenbucket.PerHour(3))) },
		} {
			drop("first")
			goroutines, before := runtime.NumGoroutine(), heap()
			for i := range 10_000 {
				drop(fmt.Sprint(i))
			}
			testpace.Eventually(t, 30*time.Second, kind+": 10,000 are collected", func() bool { return heap() < before+2<<20 })
			if n := runtime.NumGoroutine(); n > goroutines+10 {
				t.Errorf("%s: %d goroutines, before %d", kind, n, goroutines)
			}
		}
	})
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A lock is renewed, and the store's shutdown ends its contexts and waits for its release, although
// its Locker was dropped.
func TestALeaseOutlivesItsLocker(t *testing.T) {
	stores(t, func(t *testing.T, st store.Store) {
		ttl := testpace.Scale(300 * time.Millisecond)
		other := newLocker(t, st)
		hold := func(key string) *lock.Lease {
			return must(must(lock.New(st, "test", lock.WithTTL(ttl))).Lock(context.Background(), key))
		}
		lease := hold("kept")
		hold("forgotten")
		for range 30 {
			runtime.GC()
			<-time.After(ttl / 10)
		}
		for _, key := range []string{"kept", "forgotten"} {
			if _, err := other.TryLock(t.Context(), key); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if ctx := lease.Context(); ctx.Err() != nil {
			t.Errorf("the hold has ended: %v", context.Cause(ctx))
		}
		var cause error
		context.AfterFunc(lease.Context(), func() {
			cause = context.Cause(lease.Context())
			_ = lease.Unlock(context.Background())
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
		defer cancel()
		err := st.Shutdown(ctx)
		if err == nil || !strings.Contains(err.Error(), "1 leases are not released") {
			t.Errorf("the shutdown: %v", err)
		}
		if !errors.Is(cause, lock.ErrClosed) {
			t.Errorf("it ended with %v", cause)
		}
	})
}
