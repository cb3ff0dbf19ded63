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

func setEnforcement(t *rig, l *tokenbucket.Limiter, e tokenbucket.Enforcement) {
	t.Helper()
	if err := l.SetEnforcement(e); err != nil {
		t.Fatal(err)
	}
}

// unenforced is a limit with all header fields that a limit can have, which a limiter that does not
// enforce hides.
func unenforced(t *rig, l *tokenbucket.Limiter, opts ...policy.RateLimitOption) RateLimit {
	return RateLimit{
		Limiter: l, By: byHeader, Hooks: Hooks{Deny: onDenial, Report: func(err error) { t.Errorf("reported %v", err) }},
		Options: append(opts, policy.LegacyHeaders(), policy.RetryJitter(time.Second)),
	}
}

// passesKeyless checks that requests without a usable key pass, after others have run.
func passesKeyless(s server, c *counter, runs int) {
	s.t.Helper()
	s.send("1", "").is(http.StatusCreated, "run "+strconv.Itoa(runs+1)).tellsNoLimits().has("Link", "")
	s.send("1", "", "X-Key", strings.Repeat("k", 1025)).is(http.StatusCreated, "run "+strconv.Itoa(runs+2)).tellsNoLimits()
	s.send("1", "", "X-Key", "").is(http.StatusCreated, "run "+strconv.Itoa(runs+3)).tellsNoLimits()
	c.ran(s.t, runs+3)
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
	{"a shadow denies no request, and charges as if it did", func(t *rig) {
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
	{"a limiter in shadow denies no request, and charges what it would allow", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(2))
		setEnforcement(t, l, tokenbucket.Enforcement{Mode: tokenbucket.Shadow})
		limit := unenforced(t, l)
		s, usage := serve(t, c.handle, limit), serve(t, c.handle, Usage{Limiter: l, By: byHeader})
		for n := range 5 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).tellsNoLimits().has("Retry-After", "")
			usage.send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[]}`+"\n").tellsNoLimits()
		}
		passesKeyless(s, &c, 5)
		usage.send("1", "").is(http.StatusOK, `{"limits":[]}`+"\n")
		setEnforcement(t, l, tokenbucket.Enforcement{})
		s.send("1", "", "X-Key", "a").is(http.StatusTeapot, "denied: quota-exceeded").has("RateLimit", `"api";r=0;t=~1800`)
		s.send("1", "").is(http.StatusTeapot, "denied: key-missing")
		c.ran(t, 8)
	}},
	{"a share of the keys is enforced", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(1))
		setEnforcement(t, l, tokenbucket.Enforcement{Share: 0.5})
		s, usage := serve(t, c.handle, unenforced(t, l)), serve(t, c.handle, Usage{Limiter: l, By: byHeader})
		runs := 0
		for i := range 20 {
			key := "key-" + strconv.Itoa(i)
			first, second := s.send("1", "", "X-Key", key), s.send("1", "", "X-Key", key)
			runs++
			first.is(http.StatusCreated, "run "+strconv.Itoa(runs))
			if l.Enforces(key) {
				first.has("RateLimit-Policy", `"api";q=1;w=3600`)
				second.is(http.StatusTeapot, "denied: quota-exceeded").has("RateLimit", `"api";r=0;t=~3600`)
				usage.send("1", "", "X-Key", key).is(http.StatusOK,
					`{"limits":[{"name":"api","capacity":1,"window":3600,"remaining":0,"reset":~3600}]}`+"\n")
				continue
			}
			runs++
			first.tellsNoLimits()
			second.is(http.StatusCreated, "run "+strconv.Itoa(runs)).tellsNoLimits().has("Retry-After", "")
			usage.send("1", "", "X-Key", key).is(http.StatusOK, `{"limits":[]}`+"\n")
		}
		passesKeyless(s, &c, runs)
	}},
	{"a limiter that is off asks no store", func(t *rig) {
		var c counter
		st := newStore(t)
		asked := 0
		l := newLimiter(t, st, tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
			asked++
			return tokenbucket.PerHour(1), nil
		}))
		setEnforcement(t, l, tokenbucket.Enforcement{Mode: tokenbucket.Off})
		st.Break(storetest.TakeTokens, storetest.Down)
		s := serve(t, c.handle, unenforced(t, l))
		for n := range 3 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).tellsNoLimits().has("Retry-After", "")
		}
		serve(t, c.handle, Usage{Limiter: l, By: byHeader}).send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[]}`+"\n")
		passesKeyless(s, &c, 3)
		twice := unenforced(t, l)
		twice.Options = []policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(time.Minute, 2, time.Hour)), policy.ChargeStatus(http.StatusCreated)}
		s = serve(t, c.handle, twice, twice)
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 7").tellsNoLimits()
		for _, op := range []storetest.Op{storetest.TakeTokens, storetest.SettleTokens, storetest.HoldTokens} {
			if n := st.Calls(op); n > 0 || asked > 0 {
				t.Errorf("%d calls of %v, %d of the PlanFunc", n, op, asked)
			}
		}
		st.Mend(storetest.TakeTokens)
		setEnforcement(t, l, tokenbucket.Enforcement{})
		s = serve(t, c.handle, unenforced(t, l))
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 8").has("RateLimit-Policy", `"api";q=1;w=3600`)
	}},
	{"an outage of a limiter in shadow is reported, and denies no request", func(t *rig) {
		var c counter
		var reported []error
		st := newStore(t)
		l := newLimiter(t, st, tokenbucket.PerHour(1))
		limit := unenforced(t, l, policy.StatusHeaders())
		limit.Report = func(err error) { reported = append(reported, err) }
		s := serve(t, c.handle, limit)
		open := unenforced(t, l, policy.StatusHeaders(), policy.FailOpen())
		st.Break(storetest.TakeTokens, storetest.Down)
		s.send("1", "", "X-Key", "a").is(http.StatusTeapot, "denied: temporary-reduced-capacity")
		setEnforcement(t, l, tokenbucket.Enforcement{Mode: tokenbucket.Shadow})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1").tellsNoLimits().has("Retry-After", "")
		serve(t, c.handle, open).send("1", "", "X-Key", "a").is(http.StatusCreated, "run 2").tellsNoLimits()
		serve(t, c.handle, Usage{Limiter: l, By: byHeader}).send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[]}`+"\n")
		if len(reported) != 2 {
			t.Errorf("reported %v", reported)
		}
	}},
	{"costs and attempts in shadow are settled if they were charged", func(t *rig) {
		st := newStore(t)
		plan := tokenbucket.Limits{tokenbucket.PerDay(10).Named("requests"), tokenbucket.PerDay(100).Named("tokens")}
		l := newLimiter(t, st, plan)
		setEnforcement(t, l, tokenbucket.Enforcement{Mode: tokenbucket.Shadow})
		handler := func(w http.ResponseWriter, r *http.Request) {
			if err := use(r, 50); err != nil {
				t.Errorf("Use: %v", err)
			}
			w.WriteHeader(http.StatusNoContent)
		}
		limit := unenforced(t, l)
		limit.Costs = estimated
		s := serve(t, handler, limit)
		for range 3 { // two of them fit
			s.send("1", "", "X-Key", "a", "X-Estimate", "50").is(http.StatusNoContent, "").tellsNoLimits()
		}
		if got := left(t, l); got != "requests 8, tokens 0" {
			t.Errorf("%s are left", got)
		}
		held := tokenbucket.Escalate(time.Minute, 2, time.Hour)
		attempts := unenforced(t, l, policy.ChargeStatus(http.StatusUnauthorized), policy.Hold(held))
		s = serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, attempts)
		for range 12 { // the tokens are used up
			s.send("1", "", "X-Key", "a").is(http.StatusUnauthorized, "").tellsNoLimits().has("Retry-After", "")
		}
		if n := st.Calls(storetest.HoldTokens); n > 0 {
			t.Errorf("held %d times", n)
		}
		setEnforcement(t, l, tokenbucket.Enforcement{})
		s.send("1", "", "X-Key", "a").is(http.StatusTeapot, "denied: abnormal-usage-detected")
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
	{"a shadow's failures are reported, and deny no request", func(t *rig) {
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
