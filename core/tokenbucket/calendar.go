package tokenbucket

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// unit is the kind of a calendar's periods.
type unit uint8

const (
	noCalendar unit = iota
	daily
	weekly
	monthly
)

var unitNames = [...]string{daily: "day", weekly: "week", monthly: "month"}

// calendar is the periods of a limit whose tokens come back together.
type calendar struct {
	unit unit
	from int            // the first day of a month
	in   *time.Location // nil for UTC
}

// Daily is a limit of n tokens in each calendar day, all of which come back at its end: at midnight
// in UTC, or in the location of [Limit.In]. [PerDay] counts any 24 hours instead, and its tokens
// come back one by one.
func Daily(n int64) Limit { return periodic(n, daily, 24*time.Hour) }

// Weekly is a limit of n tokens in each calendar week, which begins on Monday. It is otherwise as
// [Daily].
func Weekly(n int64) Limit { return periodic(n, weekly, 7*24*time.Hour) }

// Monthly is a limit of n tokens in each calendar month, which begins on the first, or on the day
// of [Limit.From]. It is otherwise as [Daily].
func Monthly(n int64) Limit { return periodic(n, monthly, 31*24*time.Hour) }

func periodic(n int64, u unit, longest time.Duration) Limit {
	l := Limit{count: n, per: longest, burst: n, calendar: calendar{unit: u}}
	if u == monthly {
		l.calendar.from = 1
	}
	return l
}

// In returns l, a limit of a calendar, with days that begin at midnight in loc. A date without a
// midnight, where clocks are put forward, begins at the end of the gap. A date with two midnights
// begins at the first one. [time.LoadLocation] must know the name of loc.
func (l Limit) In(loc *time.Location) Limit {
	l.calendar.in = loc
	return l
}

// From returns l with months that begin on this day, 1 to 31, such as the first day of a
// subscription. In a shorter month it is the last day. Only a [Monthly] limit has one.
func (l Limit) From(day int) Limit {
	l.calendar.from = day
	return l
}

// known reports whether the location can be read from a limit's text form.
func (c *calendar) known() bool {
	if c.in == nil {
		return true
	}
	_, err := time.LoadLocation(c.in.String())
	return err == nil && c.in.String() != ""
}

// periodAt returns the bounds of the period that includes an instant, and of the next.
func (c *calendar) periodAt(now time.Time) *store.Period {
	in := c.in
	if in == nil {
		in = time.UTC
	}
	now = now.In(in)
	later := 0
	begin := c.begin(now, later)
	if now.Before(begin) { // the month began on its day of the month before
		later = -1
		begin = c.begin(now, later)
	}
	// A location may have skipped a day: the next period then begins where the skipped one does.
	following := func(t time.Time) time.Time {
		for later++; !c.begin(now, later).After(t); {
			later++
		}
		return c.begin(now, later)
	}
	end := following(begin)
	return &store.Period{Begin: begin, End: end, Next: following(end)}
}

// begin returns when a period begins, so many after the one that begins in the day, week or month
// of now.
func (c *calendar) begin(now time.Time, later int) time.Time {
	year, month, day := now.Date()
	switch c.unit {
	case weekly:
		day += 7*later - (int(now.Weekday())+6)%7
	case monthly:
		first := time.Date(year, month+time.Month(later), 1, 0, 0, 0, 0, time.UTC)
		last := first.AddDate(0, 1, -1).Day()
		year, month, day = first.Year(), first.Month(), min(c.from, last)
	default:
		day += later
	}
	return firstInstant(year, month, day, now.Location())
}

// firstInstant returns the first instant of a date: midnight, the first of two midnights, or the
// end of the gap if clocks that are put forward skip midnight. [time.Date] chooses either side of
// the gap, and either midnight.
func firstInstant(year int, month time.Month, day int, in *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, in)
	start, end := t.ZoneBounds()
	switch hour, minute, second := t.Clock(); {
	case hour == 0 && minute == 0 && second == 0:
		if start.IsZero() {
			return t
		}
		_, before := start.Add(-1).Zone()
		_, offset := t.Zone()
		if first := t.Add(time.Duration(offset-before) * time.Second); before > offset && first.Before(start) {
			return first
		}
		return t
	case hour >= 12: // of the day before
		return end
	default:
		return start
	}
}
