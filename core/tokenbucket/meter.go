package tokenbucket

import (
	"math/bits"
	"time"
)

// meter does a limit's arithmetic: it turns tokens into time and back.
type meter struct {
	name     string // in decisions and headers
	bucket   string // in the store
	burst    int64
	interval time.Duration // in which a token comes back, rounded up to the nanosecond
	capacity time.Duration // of burst tokens
	count    int64         // tokens that come back in each period
	per      time.Duration
}

// newMeter compiles a limit that has passed check.
func newMeter(l Limit, name, bucket string) meter {
	m := meter{name: name, bucket: bucket, burst: l.burst, interval: l.interval(), count: l.back(), per: l.per}
	m.capacity = m.cost(l.burst)
	return m
}

// cost is the time in which n tokens come back, for 0 <= n <= burst.
func (m *meter) cost(n int64) time.Duration { return time.Duration(n) * m.interval }

// remaining is how many whole tokens a bucket with this debt holds.
func (m *meter) remaining(debt time.Duration) int64 {
	return int64(max(m.capacity-debt, 0) / m.interval)
}

// wait is how long a bucket with this debt needs until it can afford the cost: zero if it can now.
func (m *meter) wait(debt, cost time.Duration) time.Duration {
	return ceil(max(debt+cost-m.capacity, 0))
}

// atRate is a debt as the limit's own rate counts it, rounded up: without what the rounding of the interval
// has added. A second's tokens come back in a second, and not in a few nanoseconds more, which a header
// would call two seconds.
func (m *meter) atRate(debt time.Duration) time.Duration {
	exact, counted := uint64(m.per), uint64(m.interval)*uint64(m.count) // of count tokens
	if exact == counted {
		return debt
	}
	hi, lo := bits.Mul64(uint64(debt), exact)
	d, rest := bits.Div64(hi, lo, counted)
	return time.Duration(d + min(rest, 1))
}

// tell describes the bucket after a decision, in place: to copy a description takes longer than to make it.
func (m *meter) tell(s *LimitState, debt, cost time.Duration) {
	s.Name = m.name
	s.Capacity = m.burst
	s.Window = ceil(m.atRate(m.capacity))
	s.Remaining = m.remaining(debt)
	s.Reset = ceil(m.atRate(debt))
	s.RetryAfter = m.wait(debt, cost)
}

// ceil rounds up to the microsecond, in which a store's clock may count.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
