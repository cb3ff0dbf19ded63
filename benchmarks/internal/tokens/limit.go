package tokens

import (
	"strconv"
	"time"
)

const day = 24 * time.Hour

// limit is the limit of a workload: a rate, and how many tokens may be taken at once.
type limit struct {
	tokens int
	period time.Duration
	burst  int
}

// perDay returns a limit of n tokens a day, all of which may be taken at once. Its interval is a whole number of
// microseconds.
func perDay(n int) limit { return limit{n, day, n} }

// ordinary returns a limit of 300 tokens a second, whose interval is no whole number of microseconds, with a burst that
// no measurement empties.
func ordinary() limit { return limit{300, time.Second, 1_000_000} }

// window returns the time in which an empty bucket fills.
func (l limit) window() time.Duration {
	return l.period / time.Duration(l.tokens) * time.Duration(l.burst)
}

// interval returns the time between two tokens in µs, rounded up.
func (l limit) interval() int64 {
	n := int64(l.tokens)
	return (l.period.Microseconds() + n - 1) / n
}

// cost returns the debt of one token in µs, for a script.
func (l limit) cost() string { return strconv.FormatInt(l.interval(), 10) }

// capacity returns the debt of the burst in µs, for a script.
func (l limit) capacity() string { return strconv.FormatInt(l.interval()*int64(l.burst), 10) }
