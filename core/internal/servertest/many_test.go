package servertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// manyLocks is the environment variable with the number of locks in TestManyLocksOutliveASilence.
// If it is set, the silence lasts 8 s instead of 3. 100,000 locks take about a minute.
const manyLocks = "LOCKKEEPER_MANY_LOCKS"

// Many locks outlive a server that does not reply when their renewals are due, and none is left
// when their Locker is closed, whose holders then release them all at once.
func TestManyLocksOutliveASilence(t *testing.T) {
	n, ttl, silence, timeout := 5000, 30*time.Second, 3*time.Second, 2*time.Second // the machine may be busy
	if text := os.Getenv(manyLocks); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		silence, timeout = 8*time.Second, 250*time.Millisecond // the default
	} else {
		t.Parallel()
	}
	server := redistest.Start(t)
	store := newStore(t, connect(t, server.Addr()), redisstore.WithTimeout(timeout))
	l := newLocker(t, store, lock.WithTTL(ttl))

	began := time.Now()
	leases := make([]*lock.Lease, n)
	acquire := func() int64 { // locks the free ones, and returns how many
		var (
			wg    sync.WaitGroup
			next  atomic.Int64
			count atomic.Int64
		)
		for range 64 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
					for (leases[i] == nil || leases[i].Context().Err() != nil) && t.Context().Err() == nil {
						if lease, err := l.Lock(t.Context(), fmt.Sprint(i)); err == nil {
							leases[i] = lease
							count.Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		return count.Load()
	}
	acquire()
	acquired := time.Since(began)
	<-time.After(time.Until(began.Add(ttl / 3)))
	eventually(t, "all are held", func() bool { return acquire() == 0 }) // some may be lost if the machine is busy
	ok(t, server.Process().Signal(syscall.SIGSTOP))
	stopped := time.Now()
	<-time.After(silence)
	ok(t, server.Process().Signal(syscall.SIGCONT))
	lost := 0
	eventually(t, "each is renewed or lost", func() bool {
		lost = 0
		for _, lease := range leases {
			switch {
			case lease.Context().Err() != nil:
				lost++
			case !lease.ValidUntil().After(stopped.Add(ttl)):
				return false
			}
		}
		return true
	})
	if lost > 0 {
		t.Errorf("%d of %d are lost", lost, n)
	}
	for _, lease := range leases {
		context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
	}
	began = time.Now()
	if err := l.Close(); err != nil && !errors.Is(err, context.DeadlineExceeded) { // it is repeated if the machine is busy
		t.Error(err)
	}
	closed := time.Since(began)
	if closed > longest {
		t.Errorf("Close took %v", closed)
	}
	all := newLocker(t, store)
	left := func() (left int) {
		for state, err := range all.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			left += len(state.Holders)
		}
		return left
	}
	for n := left(); n > 0; n = left() {
		if time.Since(began) > longest {
			t.Fatalf("%d are left after %v", n, time.Since(began))
		}
	}
	t.Logf("%d locks: acquired in %v, %d lost, closed in %v", n, acquired, lost, closed)
}
