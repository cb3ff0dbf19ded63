package store_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Of periods of 28 and 31 days, a store's clock picks one.
func TestEndAt(t *testing.T) {
	begin := time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC)
	end, next := begin.AddDate(0, 1, 0), begin.AddDate(0, 2, 0)
	p := store.Period{Begin: begin, End: end, Next: next}
	both := next.Sub(begin)
	for _, c := range []struct {
		now, want time.Time
	}{
		{begin, end}, {end.Add(-1), end}, {end, next}, {next.Add(-1), next}, {begin.Add(-1), begin}, {begin.AddDate(0, -1, 0), begin},
		{begin.Add(-both), begin}, {begin.Add(-both - 1), begin.Add(-both)}, {begin.Add(-10 * both), begin.Add(-9 * both)},
		{next, next.Add(both)}, {next.Add(both - 1), next.Add(both)}, {next.Add(7 * both), next.Add(8 * both)},
	} {
		if got := p.EndAt(c.now.In(time.FixedZone("", 3600))); !got.Equal(c.want) {
			t.Errorf("at %v it ends at %v, want %v", c.now, got.UTC(), c.want)
		}
	}
	for _, odd := range []store.Period{{}, {Begin: next, End: end, Next: begin}, {Begin: begin, End: begin, Next: begin}} {
		if got := odd.EndAt(time.Time{}.Add(1)); !got.After(time.Time{}) {
			t.Errorf("%+v ends at %v", odd, got)
		}
	}
}
