package tokens

import (
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit          limit
		cost, capacity string
		window         time.Duration
	}{
		{perDay(1_000_000), "86400", "86400000000", day},
		{perDay(1), "86400000000", "86400000000", day},
		{ordinary(), "3334", "3334000000", 3_333_333_000_000},
	} {
		if cost, capacity := c.limit.cost(), c.limit.capacity(); cost != c.cost || capacity != c.capacity {
			t.Errorf("%+v: a token costs %s of %s µs, want %s of %s", c.limit, cost, capacity, c.cost, c.capacity)
		}
		if window := c.limit.window(); window != c.window {
			t.Errorf("%+v: a bucket fills in %v, want %v", c.limit, window, c.window)
		}
	}
}
