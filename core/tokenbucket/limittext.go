package tokenbucket

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// String returns the text form, which [ParseLimit] reads: "100/1m burst=20 name=daily".
func (l Limit) String() string {
	s := strconv.FormatInt(l.count, 10) + "/" + l.period()
	if l.strict {
		s += " strict"
	}
	if l.explicitBurst {
		s += " burst=" + strconv.FormatInt(l.burst, 10)
	}
	if l.explicitOverdraft {
		s += " overdraft=" + strconv.FormatInt(l.overdraft, 10)
	}
	if l.name != "" {
		s += " name=" + l.name
	}
	if l.counts != "" {
		s += " counts=" + l.counts
	}
	if l.resetOnChange {
		s += " reset-on-change"
	}
	if l.calendar.from > 1 {
		s += " from=" + strconv.Itoa(l.calendar.from)
	}
	if l.calendar.in != nil {
		s += " in=" + l.calendar.in.String()
	}
	return s
}

// period is the time in which the count comes back: 1m, or month.
func (l Limit) period() string {
	if l.calendar.unit != noCalendar {
		return unitNames[l.calendar.unit]
	}
	return shortDuration(l.per)
}

// ParseLimit reads a limit's text form, for flags and files: a count, a slash, a period, and
// options, separated by spaces. The period is one that [time.ParseDuration] reads; d for 24 hours
// is allowed too, and a number of 1 may be left out. The options are strict, burst=N, overdraft=N,
// name=NAME, counts=UNIT and reset-on-change. With day, week or month for the period it is a limit
// of a calendar. Such a limit has no burst; its options include from=DAY, and in=LOCATION as
// [time.LoadLocation] reads it:
//
//	100/1m
//	5/s burst=20
//	100/1m strict
//	1000/1d name=daily
//	10000/month from=15 in=Europe/Berlin
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
	limit, err := parseRate(n, period)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %q: %w", ErrInvalidLimit, text, err)
	}
	seen := map[string]bool{}
	for _, field := range fields[1:] {
		option, value, valued := strings.Cut(field, "=")
		if seen[option] {
			return Limit{}, fmt.Errorf("%w: %q: %s is given twice", ErrInvalidLimit, text, option)
		}
		seen[option] = true
		if err := limit.setOption(option, value, valued); err != nil {
			return Limit{}, fmt.Errorf("%w: %q: %w", ErrInvalidLimit, text, err)
		}
	}
	if limit.strict && !limit.explicitBurst {
		limit.burst = strictBurst(n)
	}
	return limit, limit.check()
}

// parseRate returns the limit of n in a period.
func parseRate(n int64, period string) (Limit, error) {
	switch period {
	case unitNames[daily]:
		return Daily(n), nil
	case unitNames[weekly]:
		return Weekly(n), nil
	case unitNames[monthly]:
		return Monthly(n), nil
	}
	per, err := parsePeriod(period)
	return Per(n, per), err
}

// setOption applies one of the words behind the rate.
func (l *Limit) setOption(option, value string, valued bool) (err error) {
	flags := map[string]*bool{"strict": &l.strict, "reset-on-change": &l.resetOnChange}
	if flag := flags[option]; flag != nil {
		if valued {
			return fmt.Errorf("%s has no value", option)
		}
		*flag = true
		return nil
	}
	switch option {
	case "burst", "overdraft", "from":
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil, option == "from" && (n < 1 || n > 31):
			return fmt.Errorf("%s=%s is no number that can be", option, value)
		case option == "burst":
			*l = l.Burst(n)
		case option == "overdraft":
			*l = l.Overdraft(n)
		default:
			*l = l.From(int(n))
		}
	case "in":
		in, err := time.LoadLocation(value)
		if err != nil || value == "" {
			return fmt.Errorf("the location %q is not known", value)
		}
		*l = l.In(in)
	case "name", "counts":
		if value == "" {
			return fmt.Errorf("the %s is empty", option)
		}
		if option == "name" {
			*l = l.Named(value)
		} else {
			*l = l.Counts(value)
		}
	default:
		return fmt.Errorf("%q is none of strict, burst=, overdraft=, name=, counts=, reset-on-change, from= and in=", option)
	}
	return nil
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
