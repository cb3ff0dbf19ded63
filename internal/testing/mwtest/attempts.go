package mwtest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// failures charges answers with status 401.
var failures = RateLimit{Options: []policy.RateLimitOption{policy.ChargeStatus(http.StatusUnauthorized, http.StatusForbidden)}}

// attemptRows are about requests that are charged by the status of their answers.
var attemptRows = []row{
	{"only failed attempts count", func(t *rig) {
		s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(2)), failures, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(must(strconv.Atoi(r.Header.Get("X-Status"))))
		})
		for _, status := range []int{200, 201, 302, 400, 404, 500} {
			s.send("1", "", "X-Key", "a", "X-Status", strconv.Itoa(status))
			s.leaves("api 2")
		}
		s.send("1", "", "X-Key", "a", "X-Status", "401")
		s.leaves("api 1")
		s.send("1", "", "X-Key", "a", "X-Status", "403")
		s.leaves("api 0")
		s.send("1", "", "X-Key", "a", "X-Status", "200").denies(policy.QuotaExceeded)
		s.send("1", "", "X-Key", "b", "X-Status", "200").is(http.StatusOK, "")
	}},
	{"of 100 failing attempts at once as many run as there is room for", func(t *rig) {
		g := newGate(t)
		s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(10)), failures, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			g.handle(w, r)
		})
		answers := s.sendingMany(100, "X-Key", "a")
		for range 90 {
			(<-answers).denies(policy.QuotaExceeded)
		}
		for range 10 {
			g.runs(t)
			g.let()
			(<-answers).is(http.StatusUnauthorized, "done")
		}
		s.leaves("api 0")
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded)
		g.idle(t)
	}},
	{"an attempt whose status is not known counts", func(t *rig) {
		for _, e := range ends {
			s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(2)), failures, e.end)
			s.post(e.leaves)
			s.running.Wait()
			got := left(t, s.limiter)
			t.Logf("%s: %s", e.name, got)
			want := "api 2"
			switch e.name {
			case "a panic", "an aborted stream", "a client that leaves", "a connection that is taken over":
				want = "api 1"
			}
			s.leaves(want)
		}
	}},
	{"the status is that of what was sent first", func(t *rig) {
		for want, handler := range map[string]http.HandlerFunc{
			"api 1": func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				_ = http.NewResponseController(w).Flush()
				w.WriteHeader(http.StatusOK)
			},
			"api 2": func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "first")
				_ = http.NewResponseController(w).Flush()
				w.WriteHeader(http.StatusUnauthorized)
			},
		} {
			s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(2)), failures, handler)
			s.post(false)
			s.leaves(want)
		}
	}},
	{"the refusal of an inner middleware has a status", func(t *rig) {
		st := newStore(t)
		outer := newLimiter(t, st, tokenbucket.PerDay(2))
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: outer, By: byHeader, Options: []policy.RateLimitOption{policy.ChargeStatus(http.StatusTooManyRequests)},
		}, RateLimit{Limiter: must(tokenbucket.New(st, "inner", tokenbucket.PerDay(1))), By: byHeader})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
		if got := left(t, outer); got != "api 2" {
			t.Errorf("%s is left", got)
		}
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded)
		if got := left(t, outer); got != "api 1" {
			t.Errorf("%s is left", got)
		}
	}},
	{"a token that cannot be given back stays charged", func(t *rig) {
		var r reports
		st := newStore(t)
		limit := failures
		limit.Hooks = r.hooks()
		s := serveSettling(t, newLimiter(t, st, tokenbucket.PerDay(2)), limit, new(counter).handle)
		st.Break(storetest.SettleTokens, storetest.Down)
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
		s.leaves("api 1")
		r.are(t, store.ErrUnavailable)
	}},
	{"a shadow of attempts charges the failed ones", func(t *rig) {
		limit := RateLimit{Options: []policy.RateLimitOption{policy.ChargeStatus(http.StatusUnauthorized), policy.Shadow()}}
		s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(2)), limit, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(must(strconv.Atoi(r.Header.Get("X-Status"))))
		})
		for _, want := range []string{"api 1", "api 0", "api 0"} {
			s.send("1", "", "X-Key", "a", "X-Status", "401").is(http.StatusUnauthorized, "").tellsNoLimits()
			s.leaves(want)
		}
	}},
}

// heldKeyRows are about keys that are held.
var heldKeyRows = []row{
	timedRow("a key that exceeds its limits again is held for longer", func(t *rig) {
		s := serveLocal(t, nil, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PerMinute(1)), By: byHeader,
			Options: []policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(2*time.Minute, 2, 5*time.Minute)), policy.LegacyHeaders()},
		})
		send := func(key string) answer { return s.send(t.Context(), "1", "X-Key", key) }
		for _, held := range []time.Duration{2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
			send("a").is(http.StatusOK, "done")
			a := send("a").denies(policy.AbnormalUsage).has("Retry-After", fmt.Sprint(held.Seconds())).
				has("RateLimit", fmt.Sprintf(`"api";r=0;t=%v`, held.Seconds()))
			if !strings.Contains(a.body, `"violated-policies":["api"]`) {
				t.Errorf("denied with %s", a.body)
			}
			<-time.After(held - 30*time.Second) // the token is back
			send("a").denies(policy.AbnormalUsage).has("Retry-After", "30").has("RateLimit", `"api";r=0;t=30`).
				has("X-RateLimit-Remaining", "0").has("X-RateLimit-Reset", "30")
			send("b").is(http.StatusOK, "done")
			<-time.After(30 * time.Second)
		}
	}),
	timedRow("usage of a held key has nothing left until the hold ends", func(t *rig) {
		l := newLimiter(t, newStore(t), tokenbucket.PerMinute(5))
		s := serveLocal(t, nil, Usage{Limiter: l, By: byHeader})
		if err := l.Hold(t.Context(), "a", 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"remaining":0,"reset":300`, `"remaining":5,"reset":0`} {
			s.send(t.Context(), "1", "X-Key", "a").is(http.StatusOK, `{"limits":[{"name":"api","capacity":5,"window":60,`+want+"}]}\n")
			<-time.After(5 * time.Minute)
		}
	}),
	{"requests that are denied together hold their key once", func(t *rig) {
		st := newStore(t)
		l := newLimiter(t, st, tokenbucket.PerHour(1))
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: l, By: byHeader, Options: []policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))},
		})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() { s.send("1", "", "X-Key", "a").denies(policy.AbnormalUsage) })
		}
		all.Wait()
		if n := st.Calls(storetest.HoldTokens); n != 1 {
			t.Errorf("it was held %d times", n)
		}
		s.send("1", "", "X-Key", "a").denies(policy.AbnormalUsage).has("Retry-After", "~7200")
		if err := l.Reset(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 2")
	}},
	{"a key that cannot be held is denied as otherwise", func(t *rig) {
		var r reports
		st := newStore(t)
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, st, tokenbucket.PerHour(1)), By: byHeader, Hooks: r.hooks(),
			Options: []policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))},
		})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
		st.Break(storetest.HoldTokens, storetest.Down)
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~3600")
		r.are(t, store.ErrUnavailable)
	}},
	{"a key that an operator holds is refused", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(5))
		s := serve(t, c.handle, RateLimit{Limiter: l, By: byHeader})
		if err := l.Hold(t.Context(), "a", time.Hour); err != nil {
			t.Fatal(err)
		}
		s.send("1", "", "X-Key", "a").denies(policy.AbnormalUsage).has("Retry-After", "~3600")
		s.send("1", "", "X-Key", "b").is(http.StatusCreated, "run 1")
	}},
	{"failed attempts hold their key", func(t *rig) {
		var c counter
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			c.handle(httptest.NewRecorder(), r)
		}, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(2)), By: byHeader,
			Options: append(failures.Options, policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))),
		})
		for range 2 {
			s.send("1", "", "X-Key", "a").is(http.StatusUnauthorized, "")
		}
		for range 2 {
			s.send("1", "", "X-Key", "a").denies(policy.AbnormalUsage).has("Retry-After", "~7200")
		}
		c.ran(t, 2)
	}},
	{"a shadow holds its key, and denies no request", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(1))
		s := serve(t, c.handle, RateLimit{Limiter: l, By: byHeader, Options: []policy.RateLimitOption{
			policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour)), policy.Shadow(),
		}})
		for n := range 3 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).tellsNoLimits().has("Retry-After", "")
		}
		serve(t, c.handle, RateLimit{Limiter: l, By: byHeader}).send("1", "", "X-Key", "a").denies(policy.AbnormalUsage)
	}},
}
