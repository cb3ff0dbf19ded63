package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/internal/bucketmodel"
)

// Decisions are those of exact fractions, within a nanosecond for each token, and debts are exact.
func TestBucketsAgainstModels(t *testing.T) {
	check := func(model func(t *rapid.T, s *Store, pass func(time.Duration))) func(*testing.T) {
		return func(t *testing.T) {
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
	t.Run("debts", check(func(t *rapid.T, s *Store, pass func(time.Duration)) {
		bucketmodel.CheckDebts(t, s, pass, time.Nanosecond, false)
	}))
}

// forever is a test without a deadline, since the real one means nothing in a bubble.
type forever struct{ rapid.TB }

func (forever) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
