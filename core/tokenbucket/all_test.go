package tokenbucket_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func TestAll(t *testing.T) {
	inBubble(t, tokenbucket.PerMinute(5), func(t *testing.T, users *tokenbucket.Limiter, st *storetest.Faulty) {
		teams := must(tokenbucket.New(st, "teams", tokenbucket.Limits{tokenbucket.PerMinute(3).Named("minute"), tokenbucket.PerDay(100).Named("day")}))
		ask := func(user string) tokenbucket.Decision {
			return must(tokenbucket.All(t.Context(), users.Ask(user, 1), teams.Ask("team", 1)))
		}
		for range 3 {
			if d := ask("ann"); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		calls := st.Calls(storetest.TakeTokens)
		d := ask("bob")
		if d.Allowed || d.RetryAfter != 20*time.Second || st.Calls(storetest.TakeTokens) != calls+1 {
			t.Errorf("%+v in %d calls", d, st.Calls(storetest.TakeTokens)-calls)
		}
		var denied []string
		for _, s := range d.Limits() {
			if s.RetryAfter > 0 {
				denied = append(denied, s.Name)
			}
		}
		if len(denied) != 1 || denied[0] != "minute" || len(d.Limits()) != 3 {
			t.Errorf("denied by %v: %+v", denied, d.Limits())
		}
		if n := must(users.Peek(t.Context(), "bob")).Limits()[0].Remaining; n != 5 {
			t.Errorf("a denial by the team left %d of the user's 5", n)
		}
	})
}

// A key that occurs twice in a decision pays for both.
func TestAllOfOneKey(t *testing.T) {
	inBubble(t, tokenbucket.PerMinute(5), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		for _, n := range []int64{3, math.MaxInt64} {
			if _, err := tokenbucket.All(t.Context(), l.Ask("k", 3), l.Ask("k", n)); !errors.Is(err, tokenbucket.ErrCostExceedsBurst) {
				t.Errorf("3 and %d of 5: %v", n, err)
			}
		}
		if d := must(tokenbucket.All(t.Context(), l.Ask("k", 3), l.Ask("k", 2))); !d.Allowed || len(d.Limits()) != 1 {
			t.Errorf("5 of 5: %+v", d)
		}
		if d := must(tokenbucket.All(t.Context(), l.Ask("k", 1), l.Ask("k", 1))); d.Allowed || d.RetryAfter != 24*time.Second {
			t.Errorf("2 more: %+v", d)
		}
		if d := must(l.Allow(t.Context(), "k")); d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

func TestAllRefuses(t *testing.T) {
	inBubble(t, tokenbucket.PerMinute(5), func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		other := must(tokenbucket.New(memstore.New(), "other", tokenbucket.PerMinute(5)))
		namesake := must(tokenbucket.New(memstore.New(), l.Name(), tokenbucket.PerMinute(5)))
		for name, c := range map[string]struct {
			asks []tokenbucket.Ask
			want error
		}{
			"namesake": {[]tokenbucket.Ask{l.Ask("k", 1), namesake.Ask("k", 1)}, store.ErrManySlots},
			"stores":   {[]tokenbucket.Ask{l.Ask("k", 1), other.Ask("k", 1)}, store.ErrManySlots},
			"negative": {[]tokenbucket.Ask{l.Ask("k", 1), l.Ask("l", -1)}, tokenbucket.ErrInvalidCost},
			"burst":    {[]tokenbucket.Ask{l.Ask("k", 1), l.Ask("l", 6)}, tokenbucket.ErrCostExceedsBurst},
			"key":      {[]tokenbucket.Ask{l.Ask("k", 1), l.Ask("", 1)}, tokenbucket.ErrInvalidKey},
		} {
			if d, err := tokenbucket.All(t.Context(), c.asks...); !errors.Is(err, c.want) || d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
		if _, err := tokenbucket.All(t.Context(), l.Ask("k", 1), tokenbucket.Ask{}); err == nil {
			t.Error("no limiter")
		}
		if n := st.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls", n)
		}
		if d := must(tokenbucket.All(t.Context())); !d.Allowed {
			t.Error("nothing is denied")
		}
		unlimited := must(tokenbucket.New(st, "unlimited", tokenbucket.Unlimited()))
		if d := must(tokenbucket.All(t.Context(), unlimited.Ask("k", 1<<40), l.Ask("k", 1))); !d.Allowed || len(d.Limits()) != 1 {
			t.Errorf("%+v", d)
		}
	})
}

// What a limiter remembers of its last decision is not used for other numbers, plans or limiters.
func TestAllAfterAnother(t *testing.T) {
	st := memstore.New()
	users := must(tokenbucket.New(st, "users", tokenbucket.PerDay(10)))
	teams := must(tokenbucket.New(st, "teams", tokenbucket.PerDay(100)))
	regions := must(tokenbucket.New(st, "regions", tokenbucket.PerDay(1000)))
	want := []int64{10, 100}
	ask := func(other *tokenbucket.Limiter, n, m int64) {
		t.Helper()
		d := must(tokenbucket.All(t.Context(), users.Ask("ann", n), other.Ask("red", m)))
		want[0], want[1] = want[0]-n, want[1]-m
		if l := d.Limits(); !d.Allowed || l[0].Remaining != want[0] || l[1].Remaining != want[1] || l[1].Name != other.Name() {
			t.Errorf("%d and %d: %+v, want %d left", n, m, l, want)
		}
	}
	ask(teams, 1, 1)
	ask(teams, 1, 1)
	ask(teams, 2, 1)
	ask(teams, 1, 2)
	if err := teams.SetPlan(tokenbucket.PerDay(50)); err != nil {
		t.Fatal(err)
	}
	want[1] = 45
	ask(teams, 1, 2)
	want[1] = 1000
	ask(regions, 1, 2)
}

func TestWithin(t *testing.T) {
	st := memstore.New()
	organisations := must(tokenbucket.New(st, "organisations", tokenbucket.PerMinute(100)))
	teams := must(tokenbucket.New(st, "teams", tokenbucket.PerMinute(10), tokenbucket.Within(organisations)))
	users := must(tokenbucket.New(st, "users", tokenbucket.PerMinute(2), tokenbucket.Within(teams)))
	for _, key := range []string{"acme", "acme/", "/ann", "acme/red", "/red/ann"} {
		_, err := users.Allow(t.Context(), key)
		if wrong := key != "/red/ann"; wrong && !errors.Is(err, tokenbucket.ErrInvalidKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
	d, err := tokenbucket.All(t.Context(), users.Ask("acme/red/ann", 1), teams.Ask("acme/red", 1), organisations.Ask("acme", 1))
	if err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	for name, parent := range map[string]*tokenbucket.Limiter{"nothing": nil, "another store": must(tokenbucket.New(memstore.New(), "x", tokenbucket.PerMinute(1)))} {
		if _, err := tokenbucket.New(st, "x", tokenbucket.PerMinute(1), tokenbucket.Within(parent)); err == nil {
			t.Errorf("within %s", name)
		}
	}
}
