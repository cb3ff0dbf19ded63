package tokenbucket_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func TestTextForm(t *testing.T) {
	for text, want := range map[string]tokenbucket.Limit{
		"100/1m":                     tokenbucket.PerMinute(100),
		"100/1m burst=20":            tokenbucket.PerMinute(100).Burst(20),
		"10/1s burst=20 name=short":  tokenbucket.PerSecond(10).Burst(20).Named("short"),
		"1000/24h name=daily":        tokenbucket.PerDay(1000).Named("daily"),
		"1/500ms":                    tokenbucket.Per(1, 500*time.Millisecond),
		"3/1h30m":                    tokenbucket.Per(3, 90*time.Minute),
		"999999999999999/1s burst=1": tokenbucket.PerSecond(999_999_999_999_999).Burst(1),
		"5/24h overdraft=0 counts=tokens reset-on-change": tokenbucket.PerDay(5).Overdraft(0).Counts("tokens").ResetOnChange(),
		"10/day": tokenbucket.Daily(10), "10/week name=x": tokenbucket.Weekly(10).Named("x"),
		"10/month overdraft=3 from=15 in=UTC": tokenbucket.Monthly(10).Overdraft(3).From(15).In(time.UTC),
		"100/1m strict":                       tokenbucket.Strict(100, time.Minute),
		"9/1s strict burst=8 name=x":          tokenbucket.Strict(9, time.Second).Burst(8).Named("x"),
	} {
		if got := want.String(); got != text {
			t.Errorf("prints %q, want %q", got, text)
		}
		got, err := tokenbucket.ParseLimit(text)
		if err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]tokenbucket.Limit{
		"5/s": tokenbucket.PerSecond(5), "5/m\t burst=2": tokenbucket.PerMinute(5).Burst(2),
		"5/h": tokenbucket.PerHour(5), "5/d": tokenbucket.PerDay(5), "5/2d": tokenbucket.Per(5, 48*time.Hour),
	} {
		if got, err := tokenbucket.ParseLimit(text); err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %v, %v", text, got, err)
		}
	}
}

func TestTextMarshaling(t *testing.T) {
	text, err := tokenbucket.PerMinute(7).MarshalText()
	var l tokenbucket.Limit
	if err != nil || l.UnmarshalText(text) != nil || l != tokenbucket.PerMinute(7) {
		t.Errorf("%q was read as %v", text, l)
	}
	if err := l.UnmarshalText([]byte("7/never")); !errors.Is(err, tokenbucket.ErrInvalidLimit) || l != tokenbucket.PerMinute(7) {
		t.Errorf("bad text: %v, and the limit is %v", err, l)
	}
}

func TestBadText(t *testing.T) {
	for _, text := range []string{
		"", "100", "/1m", "100/", "x/1m", "100/x", "100/1m burst", "100/1m burst=", "100/1m burst=x", "100/1m name=",
		"100/1m burst=1 burst=2", "100/1m overdraft=-1", "100/1m overdraft=x", "1/1d overdraft=4000", "1/day burst=5", "1/day strict", "1/week from=2", "1/month from=0", "1/month from=32", "1/month in=", "1/month in=Nowhere", "1/1m from=2", "1/1m in=UTC", "100/1m counts=", "100/1m reset-on-change=1", "100/1m other=1", "100/1m strict=1", "100/1m strict strict", "1/1m strict", "5/1m strict burst=5", "0/1m", "-1/1m", "100/0s", "100/-1m", "100/1m burst=0",
		"99999999999999999999/1m", "100/99999d", "100/-1d",
	} {
		if l, err := tokenbucket.ParseLimit(text); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
			t.Errorf("ParseLimit(%q) = %v, %v", text, l, err)
		}
	}
}

// New refuses limits that cannot be kept exactly, with the reason.
func TestInvalidLimits(t *testing.T) {
	store := memstore.New()
	for _, c := range []struct {
		plan tokenbucket.Plan
		why  string
	}{
		{nil, "nil plan"},
		{tokenbucket.Limit{}, "count"},
		{tokenbucket.PerSecond(0), "count"},
		{tokenbucket.PerSecond(-1), "count"},
		{tokenbucket.PerSecond(1e15), "count"},
		{tokenbucket.Per(1, 0), "period is not positive"},
		{tokenbucket.Per(1, -time.Second), "period is not positive"},
		{tokenbucket.Per(1, 1500*time.Nanosecond), "whole number of microseconds"},
		{tokenbucket.Per(1, 11*366*24*time.Hour), "period is longer"},
		{tokenbucket.PerSecond(1).Burst(0), "burst"},
		{tokenbucket.PerSecond(1).Burst(-5), "burst"},
		{tokenbucket.Strict(0, time.Second), "count"},
		{tokenbucket.Strict(1, time.Second), "at least 2"},
		{tokenbucket.Strict(10, time.Second).Burst(10), "less than its count"},
		{tokenbucket.Strict(1e12, 24*time.Hour).Burst(1e12 - 1), "refilling"},
		{tokenbucket.PerDay(1).Burst(1e12), "refilling"},
		{tokenbucket.PerDay(1).Burst(999_999_999_999_999), "refilling"},
		{tokenbucket.PerSecond(1).Named("a b"), "space"},
		{tokenbucket.PerSecond(1).Named("é"), "ASCII"},
		{tokenbucket.PerSecond(1).Named(strings.Repeat("n", 129)), "129 bytes"},
		{tokenbucket.PerDay(1).Overdraft(-1), "overdraft"},
		{tokenbucket.PerDay(1).Overdraft(1e12), "refilling"},
		{tokenbucket.PerDay(1).Counts("a b"), "space"},
		{tokenbucket.PerDay(1).From(1), "only limits of a calendar"},
		{tokenbucket.PerDay(1).In(time.UTC), "only limits of a calendar"},
		{tokenbucket.Monthly(1).From(32), "day 32"},
		{tokenbucket.Monthly(1).From(-1), "day -1"},
		{tokenbucket.Daily(1).From(1), "day 1"},
		{tokenbucket.Daily(1).Burst(2), "has no burst"},
		{tokenbucket.Daily(1).In(time.FixedZone("somewhere", 60)), "LoadLocation"},
		{tokenbucket.Limits{}, "no limits"},
		{tokenbucket.Limits{tokenbucket.PerSecond(1), tokenbucket.PerSecond(2)}, `called "1s"`},
		{tokenbucket.Limits{tokenbucket.PerSecond(1).Named("x"), tokenbucket.PerMinute(2).Named("x")}, `called "x"`},
		{tokenbucket.Limits{tokenbucket.PerSecond(1), tokenbucket.PerMinute(0)}, "count"},
		{make(tokenbucket.Limits, 17), "17 limits"},
		{tokenbucket.PlanFunc(nil), "nil PlanFunc"},
		{tokenbucket.Cached(nil, time.Minute, 1), "nil PlanFunc"},
		{tokenbucket.Cached(noPlan, 0, 1), "not positive"},
		{tokenbucket.Cached(noPlan, time.Minute, 0), "below 1"},
	} {
		l, err := tokenbucket.New(store, "api", c.plan)
		if l != nil || !errors.Is(err, tokenbucket.ErrInvalidLimit) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("New with %v: %v, want why: %s", c.plan, err, c.why)
		}
	}
}

func noPlan(context.Context, string) (tokenbucket.Plan, error) { return nil, nil }

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"100/1m", "5/s burst=20", "1000/1d name=daily", "1/500ms", "a/b", "1/1h0m", "7/m burst=07", "7/m strict burst=3", "2/m strict", "2/m overdraft=5 counts=x reset-on-change"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := tokenbucket.ParseLimit(text)
		if err != nil {
			if !errors.Is(err, tokenbucket.ErrInvalidLimit) {
				t.Fatalf("ParseLimit(%q): %v", text, err)
			}
			return
		}
		again, err := tokenbucket.ParseLimit(l.String())
		if err != nil || again != l {
			t.Fatalf("%q is %v, which reads as %v, %v", text, l, again, err)
		}
		if _, err := tokenbucket.New(memstore.New(memstore.WithMaxBuckets(1)), "api", l); err != nil {
			t.Fatalf("%q parses, and New refuses it: %v", text, err)
		}
	})
}
