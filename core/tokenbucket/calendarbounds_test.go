package tokenbucket

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The bounds of periods, in locations with daylight saving and in months without their first day.
func TestPeriods(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	beirut, err := time.LoadLocation("Asia/Beirut") // whose clocks are put forward at midnight
	if err != nil {
		t.Skip(err)
	}
	for name, c := range map[string]struct {
		limit            Limit
		now              string
		begin, end, next string
	}{
		"day":             {Daily(1), "2026-11-23T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z"},
		"day in Berlin":   {Daily(1).In(berlin), "2026-11-23T23:30:00Z", "2026-11-23T23:00:00Z", "2026-11-24T23:00:00Z", "2026-11-25T23:00:00Z"},
		"short day":       {Daily(1).In(berlin), "2026-03-29T05:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"},
		"long day":        {Daily(1).In(berlin), "2026-10-25T22:30:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"},
		"no midnight":     {Daily(1).In(beirut), "2026-03-29T12:00:00Z", "2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z", "2026-03-30T21:00:00Z"},
		"week":            {Weekly(1), "2026-11-22T12:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		"its first day":   {Weekly(1), "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"},
		"month":           {Monthly(1), "2026-12-31T12:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"},
		"from the 15th":   {Monthly(1).From(15), "2026-11-14T23:59:59Z", "2026-10-15T00:00:00Z", "2026-11-15T00:00:00Z", "2026-12-15T00:00:00Z"},
		"from the 31st":   {Monthly(1).From(31), "2027-02-10T00:00:00Z", "2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"},
		"on the last day": {Monthly(1).From(31), "2027-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2027-04-30T00:00:00Z"},
		"in a leap year":  {Monthly(1).From(30), "2028-02-29T12:00:00Z", "2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z", "2028-04-30T00:00:00Z"},
		"month in Berlin": {Monthly(1).In(berlin), "2026-03-31T23:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z", "2026-05-31T22:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			at := func(text string) time.Time {
				instant, err := time.Parse(time.RFC3339, text)
				if err != nil {
					t.Fatal(err)
				}
				return instant
			}
			if err := c.limit.check(); err != nil {
				t.Fatal(err)
			}
			p := c.limit.calendar.periodAt(at(c.now))
			if !p.Begin.Equal(at(c.begin)) || !p.End.Equal(at(c.end)) || !p.Next.Equal(at(c.next)) {
				t.Errorf("%v to %v, then to %v", p.Begin.UTC(), p.End.UTC(), p.Next.UTC())
			}
		})
	}
}

// Every instant belongs to the period of its own date: in all locations, around each change of their
// clocks.
func TestPeriodsAreThoseOfTheirDates(t *testing.T) {
	const zones = "/usr/share/zoneinfo"
	count := 0
	err := filepath.WalkDir(zones, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "right" || entry.Name() == "posix"): // the same once more
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		if in, err := time.LoadLocation(strings.TrimPrefix(path, zones+"/")); err == nil {
			count++
			datesOf(t, in)
		}
		return nil
	})
	if err != nil || count < 100 {
		t.Skipf("%s has %d locations: %v", zones, count, err)
	}
}

// datesOf checks instants around each change of a location's clocks, also those of the midnights before and
// after it.
func datesOf(t *testing.T, in *time.Location) {
	t.Helper()
	day, month := Daily(1).In(in).calendar, Monthly(1).In(in).calendar
	for after := time.Date(2026, 1, 1, 0, 0, 0, 0, in); after.Year() < 2051; {
		_, change := after.ZoneBounds()
		if change.IsZero() {
			return
		}
		if !change.After(after) { // at the end of 2040, ZoneBounds has a bound that is none
			after = after.Add(48 * time.Hour)
			continue
		}
		after = change
		for _, minutes := range []int{-1500, -1440, -720, -120, -60, -30, 0, 30, 60, 120, 720, 1440, 1500} {
			for _, off := range []time.Duration{-1, 0} {
				now := change.Add(time.Duration(minutes)*time.Minute + off)
				p := day.periodAt(now)
				if date(p.Begin) != date(now) || date(p.Begin.Add(-1)) >= date(now) || date(p.End) <= date(now) || date(p.End.Add(-1)) != date(now) {
					t.Fatalf("%v: the day of %v is %v to %v", in, now, p.Begin, p.End)
				}
				if p := month.periodAt(now); p.Begin.Month() != now.Month() || p.Begin.Add(-1).Month() == now.Month() || p.End.Add(-1).Month() != now.Month() {
					t.Fatalf("%v: the month of %v is %v to %v", in, now, p.Begin, p.End)
				}
			}
		}
	}
}

func date(t time.Time) string { return t.Format(time.DateOnly) }

// Each period ends where the next one begins, and includes the instant that it was asked for.
func TestPeriodsFollowEachOther(t *testing.T) {
	locations := []*time.Location{time.UTC}
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe"} {
		if in, err := time.LoadLocation(name); err == nil {
			locations = append(locations, in)
		}
	}
	for _, in := range locations {
		for _, l := range []Limit{Daily(1), Weekly(1), Monthly(1), Monthly(1).From(15), Monthly(1).From(29), Monthly(1).From(31)} {
			c := l.In(in).calendar
			for now := time.Date(2011, 11, 1, 0, 30, 0, 0, time.UTC); now.Year() < 2013; now = now.Add(17 * time.Hour) {
				p := c.periodAt(now)
				if now.Before(p.Begin) || !now.Before(p.End) || !p.End.Before(p.Next) {
					t.Fatalf("%v in %v: %v is not within %v to %v, %v", l, in, now, p.Begin, p.End, p.Next)
				}
				if q := c.periodAt(p.End); !q.Begin.Equal(p.End) || !q.End.Equal(p.Next) {
					t.Fatalf("%v in %v: %v to %v is followed by %v to %v", l, in, p.Begin, p.End, q.Begin, q.End)
				}
			}
		}
	}
}
