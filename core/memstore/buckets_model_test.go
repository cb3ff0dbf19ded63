package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/internal/testing/bucketmodel"
)

// Decisions are those of exact fractions, within a nanosecond for each token, and debts are exact.
func TestBucketsAgainstModels(t *testing.T) {
	check := func(model func(t *rapid.T, s *Store, pass func(time.Duration))) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // time passes only as the model says
				rapid.Check(forever{t}, func(t *rapid.T) {
					s := New()
					defer s.Close()
					model(t, s, func(d time.Duration) { s.start = s.start.Add(-d) })
				})
			})
		}
	}
	t.Run("tokens", check(func(t *rapid.T, s *Store, pass func(time.Duration)) {
		bucketmodel.Check(t, s, pass, time.Nanosecond)
	}))
	t.Run("limiter", check(func(t *rapid.T, s *Store, pass func(time.Duration)) {
		bucketmodel.CheckLimiter(t, s, pass, time.Nanosecond)
	}))
	debts := func(t *rapid.T, s *Store, pass func(time.Duration)) {
		now := time.Now().Truncate(time.Microsecond)
		s.buckets.wallClock = func() time.Time { return now }
		bucketmodel.CheckDebts(t, s, now, func(d time.Duration) {
			pass(d)
			now = now.Add(d)
		}, time.Nanosecond, false)
	}
	t.Run("debts", check(debts))
	t.Run("debts, with few numbers for intervals", check(func(t *rapid.T, s *Store, pass func(time.Duration)) {
		sp := &s.buckets.spaces
		sp.limits, sp.intervals = map[limitName]space{}, make(map[spaceInfo]space, maxIntervals)
		for i := range maxIntervals - 2 {
			sp.intervals[spaceInfo{maxSpaces, time.Duration(i)}] = maxSpaces
		}
		debts(t, s, pass)
	}))
}

// forever is a test without a deadline, since the real one means nothing in a bubble.
type forever struct{ rapid.TB }

func (forever) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
