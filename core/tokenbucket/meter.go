package tokenbucket

import (
	"cmp"
	"math/bits"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// meter does a limit's arithmetic: it converts tokens into time and back.
type meter struct {
	name      string // in decisions and headers
	unit      string // of costs
	bucket    string // in the store
	burst     int64
	interval  time.Duration // in which a token comes back, rounded up to the nanosecond
	capacity  time.Duration // of burst tokens
	overdraft time.Duration // by which a debt may exceed the capacity
	count     int64         // tokens that come back in each period
	per       time.Duration
	fresh     bool // a change of the rate fills the bucket
	calendar  calendar
	window    time.Duration // in which an empty bucket refills, in decisions
}

// internalBucket is a part of the names of internal buckets. No limit's name can contain it.
const internalBucket = " "

// newMeter compiles a limit that has passed check.
func newMeter(l Limit, name, bucket string) meter {
	m := meter{
		name: name, unit: cmp.Or(l.counts, name), bucket: bucket, burst: l.burst, interval: l.interval(),
		count: l.back(), per: l.per, fresh: l.resetOnChange, calendar: l.calendar,
	}
	if l.calendar.unit != noCalendar {
		m.bucket += internalBucket + unitNames[l.calendar.unit] // another kind of bucket than that of a rate
	}
	m.capacity = m.cost(l.burst)
	m.overdraft = m.capacity
	if l.explicitOverdraft {
		m.overdraft = m.cost(l.overdraft)
	}
	if m.window = m.per; l.calendar.unit == noCalendar {
		m.window = ceil(m.atRate(m.capacity))
	}
	return m
}

// charge returns the charge of n tokens now.
func (m *meter) charge(n int64) store.Charge {
	c := store.Charge{
		Bucket: m.bucket, Cost: m.cost(n), Capacity: m.capacity, Overdraft: m.overdraft, Interval: m.interval, Fresh: m.fresh,
	}
	if m.calendar.unit != noCalendar {
		c.Period = m.calendar.periodAt(time.Now())
	}
	return c
}

// cost is the time in which n tokens come back, for 0 <= n <= burst.
func (m *meter) cost(n int64) time.Duration { return time.Duration(n) * m.interval }

// remaining is how many whole tokens a bucket with this debt holds.
func (m *meter) remaining(debt time.Duration) int64 {
	return int64(max(m.capacity-debt, 0) / m.interval)
}

// wait is how long a bucket with this debt needs until it can afford the cost: zero if it can now.
// The period of a calendar lasts until end.
func (m *meter) wait(debt, cost, end time.Duration) time.Duration {
	room := m.capacity - cost
	switch {
	case cost == 0, debt <= room:
		return 0
	case m.calendar.unit != noCalendar:
		return ceil(max(end, 1))
	}
	return ceil(debt - room)
}

// atRate returns a debt at the limit's exact rate, rounded up. It leaves out the excess from the
// rounding of the interval. With the excess, a second's tokens would come back in a second and a
// few nanoseconds, which a header would call two seconds.
func (m *meter) atRate(debt time.Duration) time.Duration {
	exact, counted := uint64(m.per), uint64(m.interval)*uint64(m.count) // of count tokens
	if exact == counted {
		return debt
	}
	hi, lo := bits.Mul64(uint64(debt), exact)
	d, rest := bits.Div64(hi, lo, counted)
	return time.Duration(d + min(rest, 1))
}

// tell describes the bucket after a decision, in place: a copy of the description takes longer than
// the description. s.Reserved is set already.
func (m *meter) tell(s *LimitState, debt, cost, end time.Duration) {
	s.Name = m.name
	s.Capacity = m.burst
	s.Window = m.window
	s.RetryAfter = m.wait(debt, cost, end)
	s.Remaining = m.remaining(debt)
	used := debt
	if s.Reserved > 0 {
		used = m.without(debt, s.Reserved)
	}
	if m.calendar.unit == noCalendar {
		s.Reset = ceil(m.atRate(used))
		if s.Remaining < m.burst {
			s.Next = m.wait(debt, m.cost(s.Remaining+1), 0)
		}
		return
	}
	if used > 0 {
		s.Reset = ceil(end)
	}
	if debt > 0 {
		s.Next = ceil(end)
	}
}

// ceil rounds up to the microsecond, in which a store's clock may count.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
