package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A call after many permits have expired finds exactly those, in little time.
func TestTenThousandPermitsExpire(t *testing.T) {
	const n = 10_000
	best := time.Hour
	for range 5 {
		s := New(WithMaxPermits(4 * n))
		shard := shardOf(s, s.permits.shards, "k")
		acquire := func(id string, weight int, now time.Duration, want store.AcquireOutcome) {
			t.Helper()
			req := store.PermitRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 2 * n, TTL: time.Minute}
			reply, _, err := acquirePermit(shard, req, now.Microseconds())
			if err != nil || reply.Outcome != want {
				t.Fatalf("%s: %+v, %v, want outcome %d", id, reply, err, want)
			}
		}
		at := func(i int) time.Duration { return time.Duration(i*7919%n) * time.Microsecond }
		for i := range n {
			acquire(fmt.Sprint(i), 1, at(i), store.Granted)
		}
		acquire("renewed", n, time.Minute-time.Microsecond, store.Granted)
		acquire("too early", 1, time.Minute-time.Microsecond, store.Taken)
		acquire("one", 1, time.Minute, store.Granted) // since one has ended
		acquire("two", 1, time.Minute, store.Taken)
		start := time.Now()
		acquire("most", n-2, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Granted) // since all but one have
		best = min(best, time.Since(start))
		acquire("late", 1, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Taken)
		sound(t, s)
		if got := s.permits.requests.Load(); got != 4 {
			t.Errorf("%d requests are counted, want the live ones: 4", got)
		}
	}
	t.Logf("the call that found %d permits expired took %v", n-2, best)
	if best > 50*time.Millisecond { // 2 ms on an idle machine
		t.Errorf("the call that found %d permits expired took %v", n-2, best)
	}
}
