package tokenbucket_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// deniedKeys returns the denied keys of a limiter as text.
func deniedKeys(l *tokenbucket.Limiter) string {
	var keys []string
	for _, k := range l.Denied() {
		keys = append(keys, fmt.Sprintf("%s:%d", k.Key, k.Denials-k.Excess))
	}
	return strings.Join(keys, " ")
}

// cached is a store with a denial cache.
type cached struct{ *memstore.Store }

func (cached) TakeQuickly(context.Context, string, string, *store.Charge) (_ time.Duration, allowed, decided bool) {
	return 0, false, false
}

func (c cached) TakeTokens(
	ctx context.Context, r store.TokenRequest, more ...store.TokenRequest,
) (store.TakeReply, error) {
	reply, err := c.Store.TakeTokens(ctx, r, more...)
	reply.Cached = !reply.Allowed
	return reply, err
}

// Every denial of a key is counted once, by whatever method and source.
func TestDenied(t *testing.T) {
	two := func(t *testing.T, call func() (allowed bool, err error)) { // the second is denied
		t.Helper()
		for i := range 2 {
			if allowed, err := call(); err != nil || allowed != (i == 0) {
				t.Errorf("call %d: allowed %v, %v", i, allowed, err)
			}
		}
	}
	allow := func(t *testing.T, l *tokenbucket.Limiter) {
		two(t, func() (bool, error) { d, err := l.Allow(t.Context(), "k"); return d.Allowed, err })
	}
	standIn := func() store.Buckets {
		primary := storetest.NewFaulty(memstore.New())
		primary.Break(storetest.TakeTokens, storetest.Down)
		return must(fallback.Buckets(primary, memstore.New(), 1))
	}
	for name, test := range map[string]struct {
		store   func() store.Buckets // a memory store by default
		options []tokenbucket.Option
		use     func(t *testing.T, l *tokenbucket.Limiter)
		want    string
	}{
		"Allow": {use: allow, want: "k:1"},
		"AllowN": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			two(t, func() (bool, error) { d, err := l.AllowN(t.Context(), "k", 1); return d.Allowed, err })
		}},
		"AllowAtMost": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			two(t, func() (bool, error) { d, err := l.AllowAtMost(t.Context(), "k", 9); return d.Allowed, err })
		}},
		"Reserve": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			two(t, func() (bool, error) {
				r, err := l.Reserve(t.Context(), "k", tokenbucket.Cost{"api": 1})
				return r.Allowed, err
			})
		}},
		"ReserveN": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			two(t, func() (bool, error) { r, err := l.ReserveN(t.Context(), "k", 1); return r.Allowed, err })
		}},
		"an attempt": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			two(t, func() (bool, error) {
				r, err := l.ReserveN(t.Context(), "k", 1, tokenbucket.AsAttempt(nil))
				return r.Allowed, err
			})
		}},
		"a held key": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			if err := l.Hold(t.Context(), "k", time.Minute); err != nil {
				t.Fatal(err)
			}
			if d := must(l.Allow(t.Context(), "k")); d.Allowed {
				t.Errorf("%+v", d)
			}
		}},
		"a wait": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			for range 2 { // the second asks every 10 s
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
			}
		}},
		"a wait that would be too long": {want: "k:1", use: func(t *testing.T, l *tokenbucket.Limiter) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			two(t, func() (bool, error) { return l.Wait(ctx, "k") == nil, nil })
		}},
		"a wait behind another": {want: "k:2", use: func(t *testing.T, l *tokenbucket.Limiter) {
			must(l.Allow(t.Context(), "k"))
			for range 2 {
				go func() { _ = l.Wait(t.Context(), "k") }()
				synctest.Wait()
			}
			time.Sleep(90 * time.Second) // the second one is the first in its queue
		}},
		"Peek": {use: func(t *testing.T, l *tokenbucket.Limiter) {
			must(l.Allow(t.Context(), "k"))
			if d := must(l.Peek(t.Context(), "k")); d.Allowed {
				t.Errorf("%+v", d)
			}
		}},
		"an error": {use: func(t *testing.T, l *tokenbucket.Limiter) {
			if _, err := l.AllowN(t.Context(), "k", 2); err == nil {
				t.Error("more than a burst")
			}
		}},
		"a candidate": {
			options: []tokenbucket.Option{tokenbucket.WithCandidate(tokenbucket.PerDay(1))},
			use: func(t *testing.T, l *tokenbucket.Limiter) {
				must(l.Allow(t.Context(), "k"))
				time.Sleep(2 * time.Minute)
				if d := must(l.Allow(t.Context(), "k")); !d.Allowed {
					t.Errorf("%+v", d)
				}
			},
		},
		"a block":    {options: []tokenbucket.Option{tokenbucket.WithLease(10)}, use: allow, want: "k:1"},
		"a cache":    {store: func() store.Buckets { return cached{memstore.New()} }, use: allow, want: "k:1"},
		"a stand-in": {store: standIn, use: allow, want: "k:1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.Buckets(memstore.New())
				if test.store != nil {
					st = test.store()
				}
				stop := namesake.Watch(st)
				defer stop()
				l := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(1), test.options...))
				defer func() { _ = l.Close() }()
				test.use(t, l)
				if got := deniedKeys(l); got != test.want {
					t.Errorf("denied are %q, want %q", got, test.want)
				}
			})
		})
	}
}

// In All the keys count whose limits deny, and all of them if one is held.
func TestDeniedTogether(t *testing.T) {
	st := memstore.New()
	defer namesake.Watch(st)()
	users := must(tokenbucket.New(st, "users", tokenbucket.PerHour(2)))
	teams := must(tokenbucket.New(st, "teams", tokenbucket.Limits{
		tokenbucket.PerHour(100), tokenbucket.PerDay(1).Named("daily"),
	}))
	others := must(tokenbucket.New(st, "others", tokenbucket.Unlimited()))
	all := func() tokenbucket.Decision {
		return must(tokenbucket.All(t.Context(), others.Ask("o", 1), users.Ask("ann", 1), teams.Ask("acme", 1)))
	}
	is := func(when, ofUsers, ofTeams string) {
		t.Helper()
		if u, a, o := deniedKeys(users), deniedKeys(teams), deniedKeys(others); u != ofUsers || a != ofTeams || o != "" {
			t.Errorf("%s: %q, %q and %q are denied, want %q, %q and none", when, u, a, o, ofUsers, ofTeams)
		}
	}
	all()
	is("allowed", "", "")
	all()
	is("over the team's limit", "", "acme:1")
	must(users.Allow(t.Context(), "ann"))
	all()
	is("over both limits", "ann:1", "acme:2")
	for _, err := range []error{
		users.Reset(t.Context(), "ann"), teams.Reset(t.Context(), "acme"), users.Hold(t.Context(), "ann", time.Minute),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if d := all(); d.Held == 0 {
		t.Errorf("%+v", d)
	}
	is("held", "ann:2", "acme:3")
}

// Without a presence nothing is counted, and its end forgets all counts.
func TestDeniedUnwatched(t *testing.T) {
	st := memstore.New()
	l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1)))
	deny := func() {
		for range 3 {
			must(l.Allow(t.Context(), "k"))
		}
	}
	if deny(); l.Denied() != nil {
		t.Errorf("%v", l.Denied())
	}
	stop := namesake.Watch(st)
	same := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1)))
	if deny(); deniedKeys(l) != "k:3" || deniedKeys(same) != "k:3" {
		t.Errorf("%v, and of the other of its name %v", l.Denied(), same.Denied())
	}
	if stop(); l.Denied() != nil {
		t.Errorf("%v", l.Denied())
	}
	elsewhere := must(tokenbucket.New(storetest.NewFaulty(st), "api", tokenbucket.PerHour(1)))
	if must(elsewhere.Allow(t.Context(), "k")); elsewhere.Denied() != nil {
		t.Errorf("on a store from elsewhere: %v", elsewhere.Denied())
	}
}

func TestDeniedAllocations(t *testing.T) {
	st := memstore.New()
	l := must(tokenbucket.New(st, "api", tokenbucket.PerDay(1)))
	ctx := t.Context()
	for _, watched := range []bool{false, true} {
		if watched {
			defer namesake.Watch(st)()
		}
		if n := testing.AllocsPerRun(10_000, func() { _, _ = l.Allow(ctx, "k") }); n != 0 {
			t.Errorf("watched %v: %v allocations", watched, n)
		}
	}
}

func BenchmarkDenied(b *testing.B) {
	for _, watched := range []bool{false, true} {
		for _, allowed := range []bool{true, false} {
			b.Run(fmt.Sprintf("watched=%v/allowed=%v", watched, allowed), func(b *testing.B) {
				st := memstore.New()
				plan := tokenbucket.PerDay(1)
				if allowed {
					plan = tokenbucket.PerSecond(100_000_000)
				}
				l := must(tokenbucket.New(st, "api", plan))
				must(l.Allow(b.Context(), "k"))
				if watched {
					defer namesake.Watch(st)()
				}
				ctx := b.Context()
				b.ReportAllocs()
				for b.Loop() {
					if d, _ := l.Allow(ctx, "k"); d.Allowed != allowed {
						b.Fatalf("%+v", d)
					}
				}
			})
		}
	}
}
