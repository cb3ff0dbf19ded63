package memstore

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ofDay returns a request for n tokens of 10 in each day.
func ofDay(key string, n int64) store.TokenRequest {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	return store.TokenRequest{Limiter: "api", Key: key, Charges: []store.Charge{{
		Bucket: "@day", Cost: time.Duration(n), Capacity: 10, Overdraft: 10, Interval: 1,
		Period: &store.Period{Begin: today, End: today.Add(24 * time.Hour), Next: today.Add(48 * time.Hour)},
	}}}
}

func takes(t *testing.T, s *Store, r store.TokenRequest) store.TakeReply {
	t.Helper()
	reply, err := s.TakeTokens(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// The wall clock decides, also if it is set.
func TestPeriodsByAClockThatIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		var off time.Duration
		s.buckets.wallClock = func() time.Time { return time.Now().Add(off) }
		time.Sleep(12 * time.Hour)
		takes(t, s, ofDay("k", 9))
		for _, c := range []struct {
			off   time.Duration
			used  int64
			lasts time.Duration
		}{
			{-time.Hour, 9, 13 * time.Hour}, {-13 * time.Hour, 9, 25 * time.Hour}, {-40 * time.Hour, 0, 28 * time.Hour},
			{12*time.Hour - 1, 9, 1}, {12 * time.Hour, 0, 24 * time.Hour}, {0, 9, 12 * time.Hour},
		} {
			off = c.off
			if d := takes(t, s, ofDay("k", 0)).Debts; d.At(0) != time.Duration(c.used) || d.End(0) != c.lasts {
				t.Errorf("off by %v: %d used, for %v; want %d for %v", c.off, d.At(0), d.End(0), c.used, c.lasts)
			}
		}
		off = 0
		time.Sleep(12*time.Hour - time.Second)
		off = -10 * time.Second
		time.Sleep(5 * time.Second)
		s.buckets.shards[0].table.sweep(1<<20, time.Since(s.start))
		for i := range 1000 { // which sweep
			takes(t, s, ofDay(fmt.Sprint(i), 1))
		}
		if reply := takes(t, s, ofDay("k", 2)); reply.Allowed {
			t.Errorf("set back by 10 s, 6 s before the end: %+v", reply)
		}
	})
}

// Buckets of calendars count, and make room when their period is over.
func TestRoomForPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(WithMaxBuckets(100), RefuseNewBuckets())
		defer s.Close()
		for range 3 {
			for i := range 100 {
				takes(t, s, ofDay(fmt.Sprint(i, time.Now()), 1))
			}
			if _, err := s.TakeTokens(t.Context(), ofDay("new", 1)); !errors.Is(err, store.ErrFull) {
				t.Errorf("in a full store: %v", err)
			}
			if n := s.buckets.count(); n != 100 {
				t.Errorf("%d buckets", n)
			}
			time.Sleep(24*time.Hour + 2*clockSlack)
		}
	})
}

// A flood of keys does not displace the ones that have used much.
func TestFloodOfAPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(WithMaxBuckets(1000))
		defer s.Close()
		for i := range 50 {
			takes(t, s, ofDay(fmt.Sprint("victim-", i), 10))
		}
		for i := range 30_000 {
			takes(t, s, ofDay(fmt.Sprint("flood-", i), 1))
			if victim := fmt.Sprint("victim-", i%50); takes(t, s, ofDay(victim, 1)).Allowed {
				t.Fatalf("%s was forgotten after %d keys", victim, i)
			}
		}
	})
}

// No bounds, kinds or numbers crash a store.
func TestOddPeriods(t *testing.T) {
	s := New()
	defer s.Close()
	now := time.Now()
	times := []time.Time{{}, time.Unix(0, 0), now, now.Add(time.Hour), now.Add(math.MaxInt64), now.Add(math.MinInt64), time.Unix(1<<55, 0)}
	for _, begin := range times {
		for _, end := range times {
			for _, next := range times {
				for _, kind := range []*store.Period{{Begin: begin, End: end, Next: next}, nil} {
					r := ofDay("k", 3)
					r.Charges[0].Period = kind
					takes(t, s, r)
					r.Charges[0].Cost = -2
					if _, err := s.SettleTokens(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	if n := s.buckets.count(); n > 1 {
		t.Errorf("%d buckets", n)
	}
}

// A decision about a bucket that is known allocates its reply.
func TestAllocationsOfPeriods(t *testing.T) {
	s := New()
	defer s.Close()
	r := ofDay("k", 0)
	r.Charges[0].Cost, r.Charges[0].Capacity = 1, 1<<40
	takes(t, s, r)
	if n := testing.AllocsPerRun(100, func() { takes(t, s, r) }); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
