package tokenbucket

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/naming"
)

const (
	// maxCount is the largest integer that a structured field can carry (RFC 9651).
	maxCount = 999_999_999_999_999
	// maxWindow bounds the time that refills a bucket. Twice as much, which is more than rounding
	// intervals up makes of it, can be added to any instant of the next centuries: in nanoseconds as a
	// time.Duration, and in microseconds as Redis's scripts count (integers below 2^53).
	maxWindow = 3660 * 24 * time.Hour
)

// Limit says how fast the tokens of a bucket come back and how many it holds:
//
//	tokenbucket.PerMinute(100)                   // 100 a minute, all of which may come at once
//	tokenbucket.PerSecond(10).Burst(20)          // 10 a second, 20 at once after a pause
//	tokenbucket.PerDay(1000).Named("daily")      // one of several limits
//	tokenbucket.Strict(100, time.Minute)         // 100 in any minute at most
//
// A bucket that was full admits its burst and what comes back: PerMinute(100) up to 200 within a minute
// after a pause. [Strict] does not.
//
// The time in which one token comes back is rounded up to the nanosecond: never more tokens come back
// than the rate says, and of n a second fewer by n in 10⁹ at most, such as 3 in a million of 3,000 a
// second. No rate is above 10⁹ a second. Limits are values; [New] refuses the ones that make no sense.
type Limit struct {
	count int64
	per   time.Duration
	burst int64
	name  string
	// explicitBurst tells Burst(0), an error, from a burst that was never set.
	explicitBurst bool
	strict        bool // the burst is a part of the count
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

// Strict is a limit of n tokens in any period, wherever it begins, as a provider may count the calls of
// its clients. n is at least 2. The burst is a part of them: a fifth, at least 1, or what Burst sets, which
// is less than n. The others come back in each period: Strict(100, time.Minute).Burst(20) admits 20 at once and 80 a minute, so 100 in any
// minute, where PerMinute(100) admits up to 200.
//
// It counts admissions: where calls take different times to arrive, a period at the provider may have
// more of them.
func Strict(n int64, period time.Duration) Limit {
	return Limit{count: n, per: period, burst: strictBurst(n), strict: true}
}

func strictBurst(n int64) int64 { return max(n/5, 1) }

// Burst returns l with a bucket that holds n tokens: the most that may be taken at once.
func (l Limit) Burst(n int64) Limit {
	l.burst, l.explicitBurst = n, true
	return l
}

// Named returns l with a name of its own: what headers and decisions call it, and what its bucket
// is kept under. A limit keeps its bucket through a change of plan when its name stays the same.
func (l Limit) Named(name string) Limit {
	l.name = name
	return l
}

// String returns the text form, which [ParseLimit] reads: "100/1m burst=20 name=daily".
func (l Limit) String() string {
	s := strconv.FormatInt(l.count, 10) + "/" + shortDuration(l.per)
	if l.strict {
		s += " strict"
	}
	if l.explicitBurst {
		s += " burst=" + strconv.FormatInt(l.burst, 10)
	}
	if l.name != "" {
		s += " name=" + l.name
	}
	return s
}

// ParseLimit reads a limit's text form, as a flag or a file has it: a count, a slash, a period as
// [time.ParseDuration] reads it (d for 24 hours is allowed too, and a number of 1 may be left
// out), and optionally strict, burst=N and name=NAME, separated by spaces:
//
//	100/1m
//	5/s burst=20
//	100/1m strict
//	1000/1d name=daily
//
// The error matches [ErrInvalidLimit].
func ParseLimit(text string) (Limit, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Limit{}, fmt.Errorf("%w: empty text", ErrInvalidLimit)
	}
	count, period, ok := strings.Cut(fields[0], "/")
	if !ok {
		return Limit{}, fmt.Errorf("%w: %q: want a count and a period, such as 100/1m", ErrInvalidLimit, text)
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %q: the count is no number", ErrInvalidLimit, text)
	}
	per, err := parsePeriod(period)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %q: %w", ErrInvalidLimit, text, err)
	}
	limit := Per(n, per)
	seen := map[string]bool{}
	for _, field := range fields[1:] {
		option, value, valued := strings.Cut(field, "=")
		if seen[option] {
			return Limit{}, fmt.Errorf("%w: %q: %s is given twice", ErrInvalidLimit, text, option)
		}
		seen[option] = true
		switch option {
		case "strict":
			if valued {
				return Limit{}, fmt.Errorf("%w: %q: strict has no value", ErrInvalidLimit, text)
			}
			limit.strict = true
		case "burst":
			burst, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return Limit{}, fmt.Errorf("%w: %q: the burst is no number", ErrInvalidLimit, text)
			}
			limit = limit.Burst(burst)
		case "name":
			if value == "" {
				return Limit{}, fmt.Errorf("%w: %q: the name is empty", ErrInvalidLimit, text)
			}
			limit = limit.Named(value)
		default:
			return Limit{}, fmt.Errorf("%w: %q: %q is neither strict, burst= nor name=", ErrInvalidLimit, text, field)
		}
	}
	if limit.strict && !limit.explicitBurst {
		limit.burst = strictBurst(n)
	}
	return limit, limit.check()
}

// MarshalText implements [encoding.TextMarshaler].
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Limit) UnmarshalText(text []byte) error {
	limit, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = limit
	return nil
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
	case l.strict && l.count < 2:
		return refuse("a strict limit has a count of at least 2")
	case l.strict && l.burst >= l.count:
		return refuse("the burst of a strict limit is not less than its count")
	}
	if l.name != "" {
		if err := naming.CheckName(l.name); err != nil {
			return refuse("%v", err)
		}
		if strings.Contains(l.name, " ") {
			return refuse("the name has a space")
		}
	}
	hi, lo := bits.Mul64(uint64(l.burst), uint64(l.per))
	if hi >= uint64(l.back()) {
		return refuse("refilling the burst takes longer than %s", shortDuration(maxWindow))
	}
	if window, _ := bits.Div64(hi, lo, uint64(l.back())); window > uint64(maxWindow) {
		return refuse("refilling the burst takes longer than %s", shortDuration(maxWindow))
	}
	return nil
}

// back is how many tokens come back in a period.
func (l Limit) back() int64 {
	if l.strict {
		return l.count - l.burst
	}
	return l.count
}

// interval is the time in which one token comes back, rounded up to the nanosecond.
func (l Limit) interval() time.Duration {
	return (l.per + time.Duration(l.back()) - 1) / time.Duration(l.back())
}

func parsePeriod(s string) (time.Duration, error) {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		s = "1" + s
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || n < 1 || n > int64(maxWindow/(24*time.Hour)) {
			return 0, fmt.Errorf("bad period %q", s)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	per, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("bad period %q", s)
	}
	return per, nil
}

// shortDuration is d.String() without the zero units at its end: 1m, not 1m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
