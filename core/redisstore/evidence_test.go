package redisstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// lockAndUnlock acquires a lock that no other caller wants, and releases it.
func lockAndUnlock(s *redisstore.Store, n int64) error {
	c := newClaim(fmt.Sprint("k", n), "holder")
	if _, err := c.acquire(s); err != nil {
		return err
	}
	_, err := c.release(s)
	return err
}

// A server that hangs accepts connections and says nothing. Each caller has to wait for it twice at
// most, and all together for no longer than twice the timeout.
func TestAHungServer(t *testing.T) {
	for _, callers := range []int{1, 100} {
		t.Run(fmt.Sprint(callers, " callers"), func(t *testing.T) {
			t.Parallel()
			timeout := testpace.Scale(500 * time.Millisecond)
			server := redistest.Start(t)
			log := new(logbook)
			s := newStore(t, dial(t, server.Addr(), time.Minute), redisstore.WithTimeout(timeout), log.option())
			eventually(t, 5*time.Second, "it works", func() bool { return lockAndUnlock(s, 0) == nil })
			stopped(t, server)
			var slow atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			for i := range callers {
				wg.Go(func() {
					for {
						sent := time.Now()
						_, err := newClaim(fmt.Sprint("k", i), "holder").acquire(s)
						if err == nil {
							t.Error("acquired from a server that hangs")
						}
						if time.Since(sent) < timeout/4 && log.has(tripped) {
							return
						}
						slow.Add(1)
					}
				})
			}
			wg.Wait()
			took := time.Since(began)
			t.Logf("%d calls were slow, and it took %v", slow.Load(), took)
			if n := slow.Load(); n > int64(2*callers) || took > 2*timeout+slack/2 {
				t.Errorf("%d calls were slow, and it took %v", n, took)
			}
			goesOn(t, server)
			eventually(t, 5*time.Second, "it works again", func() bool { return lockAndUnlock(s, 0) == nil })
		})
	}
}

// A call that got no connection at all has a new one tried as well.
func TestAHungServerFromTheStart(t *testing.T) {
	t.Parallel()
	timeout := testpace.Scale(250 * time.Millisecond)
	server := redistest.Start(t)
	stopped(t, server)
	log := new(logbook)
	s := newStore(t, dial(t, server.Addr(), time.Minute), redisstore.WithTimeout(timeout), log.option())
	calls := 0
	for began := time.Now(); !log.has(tripped); calls++ {
		_, err := newClaim("k", "holder").acquire(s)
		wantUnavailable(t, err, false)
		if took := time.Since(began); took > 2*timeout+slack/2 {
			t.Fatalf("after %v and %d calls the breaker is closed", took, calls+1)
		}
	}
	if calls > 2 {
		t.Errorf("%d calls were slow", calls)
	}
}

// A master that has become a replica is an outage, in which stand-ins answer.
func TestAMasterThatBecomesAReplica(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	log := new(logbook)
	s := newStore(t, server.Client(), log.option())
	standIn := memstore.New()
	t.Cleanup(func() { _ = standIn.Close() })
	buckets, err := fallback.Buckets(s, standIn, 1)
	must(t, err)
	l, err := tokenbucket.New(buckets, "api", tokenbucket.PerDay(100))
	must(t, err)
	must(t, lockAndUnlock(s, 0))
	must(t, server.Client().Do(ctx(), "replicaof", "127.0.0.1", "1").Err())
	for range 10 {
		err := lockAndUnlock(s, 0)
		if !store.Down(err) || store.CauseOf(err) != store.ReadOnly {
			t.Errorf("%v: an outage: %v, the cause is %q", err, store.Down(err), store.CauseOf(err))
		}
		if d, err := l.Allow(ctx(), "k"); err != nil || !d.Allowed {
			t.Errorf("the stand-in: %+v, %v", d, err)
		}
	}
	if !log.has(tripped) || !log.has("cause=read_only") || log.has("misconfigured") {
		t.Errorf("logged %s", &log.text)
	}
	must(t, server.Client().Do(ctx(), "replicaof", "no", "one").Err())
	eventually(t, 5*time.Second, "it works again", func() bool { return lockAndUnlock(s, 0) == nil })
}
