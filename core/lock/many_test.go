package lock_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// manyLocks is the environment variable with the number of locks in TestManyLocksOutliveASilence, with leases of 30 s and a silence of 8 s: 100,000 take about a minute.
const manyLocks = "LOCKKEEPER_MANY_LOCKS"

// Many locks outlive a server that does not reply when their renewals are due, and none is left
// when their Locker is closed.
func TestManyLocksOutliveASilence(t *testing.T) {
	n, ttl, silence, timeout := 5000, 6*time.Second, 1600*time.Millisecond, time.Second // the machine may be busy
	if text := os.Getenv(manyLocks); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		ttl, silence, timeout = 30*time.Second, 8*time.Second, 250*time.Millisecond // the default
	} else {
		t.Parallel()
	}
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	store := must(redisstore.New(client, redisstore.WithTimeout(timeout)))
	t.Cleanup(func() { _ = store.Close() })
	l := newLocker(t, leasesOf(t, store), lock.WithTTL(ttl))

	began := time.Now()
	var (
		wg     sync.WaitGroup
		leases = make([]*lock.Lease, n)
		next   atomic.Int64
	)
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				key := fmt.Sprint(i)
				lease, err := l.Lock(t.Context(), key)
				for err != nil && t.Context().Err() == nil {
					lease, err = l.Lock(t.Context(), key)
				}
				leases[i] = lease
			}
		})
	}
	wg.Wait()
	acquired := time.Since(began)
	<-time.After(time.Until(began.Add(ttl / 3)))
	ok(t, server.Process().Signal(syscall.SIGSTOP))
	<-time.After(silence)
	ok(t, server.Process().Signal(syscall.SIGCONT))
	<-time.After(ttl)
	lost := 0
	for _, lease := range leases {
		if lease == nil || lease.Context().Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d are lost", lost, n)
	}
	began = time.Now()
	ok(t, l.Close())
	closed := time.Since(began)
	if closed > 10*time.Second {
		t.Errorf("Close took %v", closed)
	}
	left := 0
	for state, err := range newLocker(t, leasesOf(t, store)).List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		left += len(state.Holders)
	}
	if left > 0 {
		t.Errorf("%d of %d are left", left, n)
	}
	t.Logf("%d locks: acquired in %v, %d lost, closed in %v", n, acquired, lost, closed)
}
