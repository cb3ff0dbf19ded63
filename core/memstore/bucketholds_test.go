package memstore_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// of returns a request for n tokens of ten an hour.
func of(key string, n int64, buckets ...string) store.TokenRequest {
	r := store.TokenRequest{Limiter: "api", Key: key}
	for _, bucket := range append(buckets, "") {
		r.Charges = append(r.Charges, store.Charge{
			Bucket: bucket, Cost: time.Duration(n) * 6 * time.Minute, Capacity: time.Hour, Overdraft: time.Hour, Interval: 6 * time.Minute,
		})
	}
	return r
}

// Holds take half of the room at most, no flood of keys displaces them, and ended ones leave their
// room.
func TestHoldsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(100))
		hold := func(i int) error {
			return s.HoldTokens(t.Context(), of(fmt.Sprint("held-", i), 0), time.Minute)
		}
		for i := range 50 {
			ok(t, hold(i))
		}
		if err := hold(50); !errors.Is(err, store.ErrFull) {
			t.Errorf("one more hold: %v", err)
		}
		ok(t, hold(49)) // again
		for i := range 10_000 {
			if reply := must(s.TakeTokens(t.Context(), of(fmt.Sprint("flood-", i), 10))); !reply.Allowed {
				t.Fatalf("a new key: %+v", reply)
			}
		}
		for i := range 50 {
			if reply := must(s.TakeTokens(t.Context(), of(fmt.Sprint("held-", i), 1))); reply.Allowed || reply.Held != time.Minute {
				t.Errorf("held key %d: %+v", i, reply)
			}
		}
		if reply := must(s.TakeTokens(t.Context(), of("held-50", 1))); !reply.Allowed {
			t.Errorf("a key whose hold was refused: %+v", reply)
		}
		time.Sleep(time.Minute)
		for i := range 50 {
			ok(t, hold(100+i))
			if reply := must(s.TakeTokens(t.Context(), of(fmt.Sprint("held-", i), 1))); !reply.Allowed {
				t.Errorf("after hold %d: %+v", i, reply)
			}
		}
	})
}

// A store that refuses new buckets refuses holds of keys that have none.
func TestHoldInAFullStore(t *testing.T) {
	s := memstore.New(memstore.WithMaxBuckets(4), memstore.RefuseNewBuckets())
	for i := range 4 {
		must(s.TakeTokens(t.Context(), of(fmt.Sprint(i), 1)))
	}
	if err := s.HoldTokens(t.Context(), of("0", 0), time.Minute); !errors.Is(err, store.ErrFull) {
		t.Errorf("HoldTokens: %v", err)
	}
	if _, err := s.SettleTokens(t.Context(), of("new", 1)); !errors.Is(err, store.ErrFull) {
		t.Errorf("SettleTokens of a new bucket: %v", err)
	}
	if reply := must(s.SettleTokens(t.Context(), of("new", -1))); !reply.Allowed {
		t.Errorf("SettleTokens that gives back: %+v", reply)
	}
	must(s.SettleTokens(t.Context(), of("0", -1))) // a bucket without debt is not kept
	ok(t, s.HoldTokens(t.Context(), of("0", 0), time.Minute))
}

// A hold for longer than any clock counts does not overflow, and one for no time is none.
func TestHoldsOfAnyLength(t *testing.T) {
	s := memstore.New()
	for d, held := range map[time.Duration]bool{1<<63 - 1: true, 0: false, -time.Hour: false, -1 << 63: false} {
		ok(t, s.HoldTokens(t.Context(), of(d.String(), 0), d))
		if reply := must(s.TakeTokens(t.Context(), of(d.String(), 1))); reply.Allowed == held {
			t.Errorf("a hold of %v: %+v", d, reply)
		}
	}
}

// A decision about several keys in a full store displaces none of its own buckets, and charges none
// if there is no room for all.
func TestSeveralKeysInAFullStore(t *testing.T) {
	s := memstore.New(memstore.WithMaxBuckets(10))
	for i := range 20 {
		must(s.TakeTokens(t.Context(), of(fmt.Sprint("old-", i), 10)))
	}
	var all []store.TokenRequest
	for i := range 5 {
		all = append(all, of(fmt.Sprint("k-", i), 1, "second"), of(fmt.Sprint("k-", i), 2, "second"))
	}
	if reply := must(s.TakeTokens(t.Context(), all[0], all[1:]...)); !reply.Allowed {
		t.Fatalf("ten buckets: %+v", reply)
	}
	for i := range 5 {
		reply := must(s.TakeTokens(t.Context(), of(fmt.Sprint("k-", i), 0, "second")))
		for b := range 2 {
			if debt := reply.Debts.At(b); debt > 18*time.Minute || debt < 17*time.Minute {
				t.Errorf("key %d, bucket %d: a debt of %v, want that of three tokens", i, b, debt)
			}
		}
	}
	all = append(all, of("too", 1), of("many", 1))
	if _, err := s.TakeTokens(t.Context(), all[0], all[1:]...); !errors.Is(err, store.ErrFull) {
		t.Errorf("more buckets than the store holds: %v", err)
	}
	if reply := must(s.TakeTokens(t.Context(), of("k-0", 0))); reply.Debts.At(0) > 18*time.Minute {
		t.Errorf("a decision that failed has charged: %+v", reply)
	}
}

// Callers that charge a key at different rates take its burst together.
func TestConcurrentRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		const burst = 400
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 100 {
					interval := time.Hour + time.Duration(g*100+i%7)
					c := store.Charge{Cost: interval, Capacity: burst * interval, Interval: interval}
					if must(s.TakeTokens(t.Context(), store.TokenRequest{Limiter: "api", Key: "k", Charges: []store.Charge{c}})).Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := allowed.Load(); n != burst {
			t.Errorf("%d of 800 were allowed, want %d", n, burst)
		}
	})
}

// A decision about one bucket allocates nothing, held or not, at any rate that the bucket had
// before.
func TestDecisionsDoNotAllocate(t *testing.T) {
	s := memstore.New()
	requests := []store.TokenRequest{of("k", 0), of("k", 0), of("held", 0)}
	for i := range requests {
		requests[i].Charges[0].Cost = 1
	}
	requests[1].Charges[0].Interval = time.Hour
	ok(t, s.HoldTokens(t.Context(), requests[2], time.Hour))
	for i := range 9 { // that are looked up first
		other := of("k", 1)
		other.Charges[0].Interval += time.Duration(i)
		must(s.TakeTokens(t.Context(), other))
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, r := range requests {
			must(s.TakeTokens(t.Context(), r))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
