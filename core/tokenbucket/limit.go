package tokenbucket

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

const (
	// maxCount is the largest integer that a structured field can carry (RFC 9651).
	maxCount = 999_999_999_999_999
	// maxWindow bounds the time that refills a bucket. With intervals rounded up, the time is less
	// than twice maxWindow. Twice maxWindow after any instant of the next centuries can be represented
	// in nanoseconds as a time.Duration, and in the microseconds of Redis's scripts (integers below
	// 2^53).
	maxWindow = 3660 * 24 * time.Hour
)

// Limit sets how fast the tokens of a bucket come back and how many it holds:
//
//	tokenbucket.PerMinute(100)                   // 100 a minute, all of which may come at once
//	tokenbucket.PerSecond(10).Burst(20)          // 10 a second, 20 at once after a pause
//	tokenbucket.PerDay(1000).Named("daily")      // one of several limits
//	tokenbucket.Strict(100, time.Minute)         // 100 in any minute at most
//
// A bucket that was full admits its burst and the tokens that come back: PerMinute(100) admits up
// to 200 within a minute after a pause. [Strict] does not.
//
// The time in which one token comes back is rounded up to the nanosecond, so tokens never come back
// faster than the rate. Of n a second, at most n in 10⁹ fewer come back: of 3,000 a second, 3 in a
// million. No rate is above 10⁹ a second. Limits are values; [New] refuses the ones that make no
// sense.
type Limit struct {
	count int64
	per   time.Duration
	burst int64
	name  string
	// explicitBurst tells Burst(0), an error, from a burst that was never set.
	explicitBurst bool
	strict        bool // the burst is a part of the count
	// overdraft is the number of tokens by which settlements may overdraw the bucket: a burst if it is
	// not explicit.
	overdraft         int64
	explicitOverdraft bool
	counts            string // the unit of costs; empty for the limit's name
	resetOnChange     bool
	calendar          calendar
}

// PerSecond is a limit of n tokens a second with a burst of n.
func PerSecond(n int64) Limit { return Per(n, time.Second) }

// PerMinute is a limit of n tokens a minute with a burst of n.
func PerMinute(n int64) Limit { return Per(n, time.Minute) }

// PerHour is a limit of n tokens an hour with a burst of n.
func PerHour(n int64) Limit { return Per(n, time.Hour) }

// PerDay is a limit of n tokens in 24 hours with a burst of n.
func PerDay(n int64) Limit { return Per(n, 24*time.Hour) }

// Per is a limit of n tokens in each period with a burst of n. The period is a whole number of
// microseconds.
func Per(n int64, period time.Duration) Limit { return Limit{count: n, per: period, burst: n} }

// Strict is a limit of n tokens in any period, wherever it begins, as a provider may count the
// calls of its clients. n is at least 2. The burst is a part of n: a fifth, at least 1, or the
// value of Burst, which is less than n. The rest comes back in each period: Strict(100,
// time.Minute).Burst(20) admits 20 at once and 80 a minute, so 100 in any minute, where
// PerMinute(100) admits up to 200.
//
// It counts admissions. If calls take different times to arrive, more of them may reach the
// provider within a period.
func Strict(n int64, period time.Duration) Limit {
	return Limit{count: n, per: period, burst: strictBurst(n), strict: true}
}

func strictBurst(n int64) int64 { return max(n/5, 1) }

// Burst returns l with a bucket that holds n tokens: the most that may be taken at once.
func (l Limit) Burst(n int64) Limit {
	l.burst, l.explicitBurst = n, true
	return l
}

// Overdraft returns l with a bucket that settlements ([Reservation.Settle]) may overdraw by n
// tokens: by as many as its burst if not set. Later requests wait until these tokens have come
// back.
func (l Limit) Overdraft(n int64) Limit {
	l.overdraft, l.explicitOverdraft = n, true
	return l
}

// Counts returns l as a limit of this unit of a [Cost], where several limits count the same:
//
//	tokenbucket.PerDay(5_000_000).Named("daily-tokens").Counts("tokens")
//
// Without it, the unit is the limit's name, or the limiter's for its only, unnamed limit.
func (l Limit) Counts(unit string) Limit {
	l.counts = unit
	return l
}

// ResetOnChange returns l with a bucket that is full after a change of its rate. Without it, used
// tokens stay used: a customer who has used 20 of 20 a day, and buys 1,000 a day, has 980 left.
func (l Limit) ResetOnChange() Limit {
	l.resetOnChange = true
	return l
}

// Named returns l with a name, which headers and decisions show, and under which its bucket is
// kept. A limit keeps its bucket through a change of plan if its name stays the same.
func (l Limit) Named(name string) Limit {
	l.name = name
	return l
}

func (l Limit) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", ErrInvalidLimit, l, fmt.Sprintf(format, args...))
	}
	switch {
	case l.count < 1 || l.count > maxCount:
		return refuse("the count is not between 1 and %d", int64(maxCount))
	case l.per <= 0:
		return refuse("the period is not positive")
	case l.per%time.Microsecond != 0:
		return refuse("the period is not a whole number of microseconds")
	case l.per > maxWindow:
		return refuse("the period is longer than %s", shortDuration(maxWindow))
	case l.burst < 1 || l.burst > maxCount:
		return refuse("the burst is not between 1 and %d", int64(maxCount))
	case l.explicitOverdraft && (l.overdraft < 0 || l.overdraft > maxCount):
		return refuse("the overdraft is not between 0 and %d", int64(maxCount))
	case l.calendar != (calendar{}) && l.calendar.unit == noCalendar:
		return refuse("only limits of a calendar have a location or a first day")
	case l.calendar.unit != noCalendar && (l.strict || l.explicitBurst || l.resetOnChange):
		return refuse("a limit of a calendar has no burst, is not strict, and has no rate to change")
	case l.calendar.unit == monthly && (l.calendar.from < 1 || l.calendar.from > 31),
		l.calendar.unit != monthly && l.calendar.from != 0:
		return refuse("day %d does not begin a %s", l.calendar.from, unitNames[l.calendar.unit])
	case !l.calendar.known():
		return refuse("the location %q is none that time.LoadLocation knows", l.calendar.in)
	case l.strict && l.count < 2:
		return refuse("a strict limit has a count of at least 2")
	case l.strict && l.burst >= l.count:
		return refuse("the burst of a strict limit is not less than its count")
	}
	for what, name := range map[string]string{"name": l.name, "unit": l.counts} {
		if name == "" {
			continue
		}
		if err := naming.CheckName(name); err != nil {
			return refuse("the %s: %v", what, err)
		}
		if strings.Contains(name, " ") {
			return refuse("the %s has a space", what)
		}
	}
	if l.calendar.unit != noCalendar {
		return nil
	}
	if !l.refillsInTime(l.burst) {
		return refuse("refilling the burst takes longer than %s", shortDuration(maxWindow))
	}
	if l.explicitOverdraft && !l.refillsInTime(l.overdraft) {
		return refuse("refilling the overdraft takes longer than %s", shortDuration(maxWindow))
	}
	return nil
}

// refillsInTime reports whether n tokens come back within the longest window.
func (l Limit) refillsInTime(n int64) bool {
	hi, lo := bits.Mul64(uint64(n), uint64(l.per))
	if hi >= uint64(l.back()) {
		return false
	}
	window, _ := bits.Div64(hi, lo, uint64(l.back()))
	return window <= uint64(maxWindow)
}

// back is how many tokens come back in a period.
func (l Limit) back() int64 {
	if l.strict {
		return l.count - l.burst
	}
	return l.count
}

// interval is the time in which one token comes back, rounded up to the nanosecond. For a limit of
// a calendar it is 1, which stands for a token.
func (l Limit) interval() time.Duration {
	if l.calendar.unit != noCalendar {
		return 1
	}
	return (l.per + time.Duration(l.back()) - 1) / time.Duration(l.back())
}
