package mwtest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// tellsNoLimits checks that an answer tells nothing of limits.
func (a answer) tellsNoLimits() answer {
	a.t.Helper()
	for name, values := range a.header {
		if strings.Contains(strings.ToLower(name), "ratelimit") {
			a.t.Errorf("%s is %q", name, values)
		}
	}
	return a
}

// shadowRows are about what clients are not told of limits.
var shadowRows = []row{
	{"limits can be hidden", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(1)), By: byHeader,
			Options: []policy.RateLimitOption{policy.LegacyHeaders(), policy.HideLimits()},
		})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1").tellsNoLimits()
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~3600").tellsNoLimits()
	}},
	timedRow("retries are spread from when there is a token", func(t *rig) {
		st := newStore(t)
		s := serveLocal(t, nil, RateLimit{
			Limiter: newLimiter(t, st, tokenbucket.PerHour(1)), By: byHeader,
			Options: []policy.RateLimitOption{policy.RetryJitter(2999 * time.Millisecond)},
		})
		spread := func(reason policy.Reason, header string, least int) {
			seen := make(map[string]bool)
			for range 300 { // one of three values is missing in one run of 10^52
				a := s.send(t.Context(), "1", "X-Key", "a").denies(reason).has("RateLimit", header)
				seen[a.header.Get("Retry-After")] = true
			}
			for after := least; after <= least+2; after++ {
				if !seen[strconv.Itoa(after)] || len(seen) != 3 {
					t.Fatalf("Retry-After is one of %v, want %d to %d", seen, least, least+2)
				}
			}
		}
		s.send(t.Context(), "1", "X-Key", "a").is(http.StatusOK, "done")
		<-time.After(1500 * time.Millisecond)
		spread(policy.QuotaExceeded, `"api";r=0;t=3599`, 3599)
		st.Break(storetest.TakeTokens, storetest.Down)
		spread(policy.ReducedCapacity, "", 1)
		s.send(t.Context(), "1").denies(policy.KeyMissing).has("Retry-After", "")
	}),
	{"a shadow denies nobody, and charges as if it did", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(2))
		shadow := RateLimit{
			Limiter: l, By: byHeader, Hooks: Hooks{Deny: onDenial, Report: func(err error) { t.Errorf("reported %v", err) }},
			Options: []policy.RateLimitOption{
				policy.LegacyHeaders(), policy.RetryJitter(time.Second), policy.StatusHeaders(), policy.Shadow(),
			},
		}
		s := serve(t, c.handle, shadow)
		for n := range 5 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).tellsNoLimits().has("Retry-After", "")
		}
		s.send("1", "").is(http.StatusCreated, "run 6").has("Link", "")
		s.send("1", "", "X-Key", strings.Repeat("k", 1025)).is(http.StatusCreated, "run 7")
		enforced := serve(t, c.handle, RateLimit{Limiter: l, By: byHeader})
		enforced.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~1800")
	}},
	{"a shadow before an enforced limit", func(t *rig) {
		var c counter
		st := newStore(t)
		trial := RateLimit{
			Limiter: must(tokenbucket.New(st, "trial", tokenbucket.PerHour(1))), By: byHeader, Options: []policy.RateLimitOption{policy.Shadow()},
		}
		s := serve(t, c.handle, trial, RateLimit{Limiter: newLimiter(t, st, tokenbucket.PerHour(2)), By: byHeader})
		for n := range 2 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("RateLimit-Policy", `"api";q=2;w=3600`)
		}
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("RateLimit-Policy", `"api";q=2;w=3600`)
	}},
	{"a shadow's failures are reported, and deny nobody", func(t *rig) {
		var c counter
		var log logbook
		st := newStore(t)
		plan := tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
			if key == "lost" {
				return nil, errKey
			}
			return tokenbucket.PerHour(1), nil
		})
		shadow := func(by Key, opts ...policy.RateLimitOption) server {
			return serve(t, c.handle, RateLimit{
				Limiter: newLimiter(t, st, plan), By: by, Options: append(opts, policy.Shadow(), log.option()),
			})
		}
		shadow(Key{Kind: Failing, Err: errKey}).send("1", "").is(http.StatusCreated, "run 1")
		missing := shadow(byUser)
		missing.send("1", "").is(http.StatusCreated, "run 2")
		missing.send("1", "").is(http.StatusCreated, "run 3")
		if log.count("the application does not provide the key") != 1 {
			t.Errorf("logged %s", log.text.String())
		}
		shadow(byHeader).send("1", "", "X-Key", "lost").is(http.StatusCreated, "run 4")
		st.Break(storetest.TakeTokens, storetest.Down)
		shadow(byHeader).send("1", "", "X-Key", "a").is(http.StatusCreated, "run 5").tellsNoLimits().has("Retry-After", "")
		if log.count(passes) > 0 {
			t.Errorf("logged %s", log.text.String())
		}
		shadow(byHeader, policy.FailOpen(), policy.StatusHeaders()).send("1", "", "X-Key", "a").is(http.StatusCreated, "run 6").tellsNoLimits()
		if log.count(passes) != 1 {
			t.Errorf("logged %s", log.text.String())
		}
	}},
}
