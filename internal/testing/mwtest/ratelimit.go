package mwtest

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// apiPlan allows ten requests, and one more each six minutes.
var apiPlan = tokenbucket.PerHour(10)

func newLimiter(t *rig, st store.Buckets, plan tokenbucket.Plan) *tokenbucket.Limiter {
	t.Helper()
	return must(tokenbucket.New(st, "api", plan))
}

var byHeader = Key{Kind: ByHeader, Name: "X-Key"}

var rateLimitRows = append([]row{
	{"a request within the limit is allowed", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader})
		for n := range 3 {
			a := s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
			a.has("RateLimit-Policy", `"api";q=10;w=3600`).has("Retry-After", "")
			if got := a.header.Get("RateLimit"); !strings.HasPrefix(got, `"api";r=`+strconv.Itoa(9-n)+";t=") {
				t.Errorf("RateLimit is %q", got)
			}
		}
		if got := s.send("1", "", "X-Key", "b").header.Get("RateLimit"); !strings.HasPrefix(got, `"api";r=9;`) {
			t.Errorf("another key's RateLimit is %q", got)
		}
	}},
	{"a request over the limit is denied", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader})
		for range 10 {
			s.send("1", "", "X-Key", "a")
		}
		a := s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~360")
		if !strings.Contains(a.body, `"violated-policies":["api"]`) {
			t.Errorf("denied with %q", a.body)
		}
		a.has("RateLimit", `"api";r=0;t=~360`) // although the bucket is full only after an hour
		c.ran(t, 10)
		s.send("1", "", "X-Key", "b").is(http.StatusCreated, "run 11")
	}},
	{"all limits of a plan are in the headers, and the one that denies in the problem", func(t *rig) {
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.Limits{
				tokenbucket.PerHour(10).Named("burst"), tokenbucket.PerDay(1).Named("daily"),
			}),
			By: Key{Kind: Global}, Options: []policy.RateLimitOption{policy.LegacyHeaders()},
		})
		s.send("1", "").is(http.StatusCreated, "run 1")
		a := s.send("1", "").denies(policy.QuotaExceeded).has("Retry-After", "~86400")
		a.has("RateLimit-Policy", `"burst";q=10;w=3600, "daily";q=1;w=86400`).has("RateLimit", `"burst";r=9;t=~360, "daily";r=0;t=~86400`)
		a.has("X-RateLimit-Limit", "1").has("X-RateLimit-Remaining", "0").has("X-RateLimit-Reset", "~86400")
		if !strings.Contains(a.body, `"violated-policies":["daily"]`) {
			t.Errorf("denied with %q", a.body)
		}
	}},
	{"every limiter of a chain adds its policy", func(t *rig) {
		var limits []Middleware
		for name, plan := range map[string]tokenbucket.Limit{"a": tokenbucket.PerMinute(5), "b": tokenbucket.PerMinute(7)} {
			limits = append(limits, RateLimit{Limiter: must(tokenbucket.New(newStore(t), name, plan)), By: Key{Kind: Global}})
		}
		got := strings.Join(serve(t, new(counter).handle, limits...).send("1", "").header.Values("RateLimit-Policy"), ", ")
		if got != `"a";q=5;w=60, "b";q=7;w=60` && got != `"b";q=7;w=60, "a";q=5;w=60` {
			t.Errorf("RateLimit-Policy is %s", got)
		}
	}},
	{"a forwarded address from an untrusted peer is ignored", func(t *rig) {
		s := serve(t, new(counter).handle, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(1)), By: Key{Kind: ByClientIP}})
		s.send("1", "", "X-Forwarded-For", "203.0.113.1", "X-Real-IP", "203.0.113.1").is(http.StatusCreated, "run 1")
		s.send("1", "", "X-Forwarded-For", "203.0.113.2", "X-Real-IP", "203.0.113.2").denies(policy.QuotaExceeded)
	}},
	{"a plan that fails is the server's fault", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return nil, errKey })),
			By:      Key{Kind: Global}, Options: []policy.RateLimitOption{policy.FailOpen()},
		})
		s.send("1", "").denies(policy.InternalError)
		c.ran(t, 0)
	}},
	{"an unavailable source of plans is an outage", func(t *rig) {
		var c counter
		down := tokenbucket.Cached(func(context.Context, string) (tokenbucket.Plan, error) {
			return nil, fmt.Errorf("%w: no database", store.ErrUnavailable)
		}, time.Minute, 10)
		closed := RateLimit{Limiter: newLimiter(t, newStore(t), down), By: Key{Kind: Global}}
		open := closed
		open.Options = []policy.RateLimitOption{policy.FailOpen(), policy.StatusHeaders()}
		serve(t, c.handle, closed).send("1", "").denies(policy.ReducedCapacity)
		serve(t, c.handle, open).send("1", "").is(http.StatusCreated, "run 1").has("RateLimit-Status", "bypassed")
	}},
	{"a plan without limits passes all, without header fields", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
				if key == "gold" {
					return tokenbucket.Unlimited(), nil
				}
				return tokenbucket.PerHour(1), nil
			})),
			By: byHeader, Options: []policy.RateLimitOption{policy.LegacyHeaders()},
		})
		for n := range 3 {
			s.send("1", "", "X-Key", "gold").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).
				has("RateLimit", "").has("RateLimit-Policy", "").has("X-RateLimit-Limit", "")
		}
		s.send("1", "", "X-Key", "tin").is(http.StatusCreated, "run 4")
		s.send("1", "", "X-Key", "tin").denies(policy.QuotaExceeded)
	}},
	{"the older header fields are sent if configured", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader, Options: []policy.RateLimitOption{policy.LegacyHeaders()},
		})
		s.send("1", "", "X-Key", "a").has("X-RateLimit-Limit", "10").has("X-RateLimit-Remaining", "9").has("X-RateLimit-Reset", "~360")
	}},
	{"the older fields of a denial tell of the next token", func(t *rig) {
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader, Options: []policy.RateLimitOption{policy.LegacyHeaders()},
		})
		for range 10 {
			s.send("1", "", "X-Key", "a")
		}
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~360").
			has("X-RateLimit-Remaining", "0").has("X-RateLimit-Reset", "~360") // although the bucket is full only after an hour
	}},
	{"a key that is too long is refused", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader})
		s.send("1", "", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
		c.ran(t, 0)
	}},
	{"an unavailable store refuses requests", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, st, apiPlan), By: byHeader})
		for _, fault := range []storetest.Fault{storetest.Down, storetest.LostReply} {
			st.Break(storetest.TakeTokens, fault)
			s.send("1", "", "X-Key", "a").denies(policy.ReducedCapacity)
			s.send("1", "").denies(policy.KeyMissing) // whatever the store's state
		}
		st.Mend(storetest.Any)
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
	}},
	{"an unavailable store lets requests pass if configured", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, st, apiPlan), By: byHeader, Options: []policy.RateLimitOption{policy.FailOpen()},
		})
		st.Break(storetest.TakeTokens, storetest.Down)
		for n := range 12 {
			s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("RateLimit", "")
		}
		s.send("1", "").denies(policy.KeyMissing)
	}},
	{"an answer that bypassed the store is marked if configured", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, RateLimit{
			Limiter: newLimiter(t, st, apiPlan), By: byHeader,
			Options: []policy.RateLimitOption{policy.FailOpen(), policy.StatusHeaders()},
		})
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1").has("RateLimit-Status", "")
		st.Break(storetest.TakeTokens, storetest.Down)
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 2").has("RateLimit-Status", "bypassed")
	}},
	{"tokens are refilled", func(t *rig) {
		var c counter
		// A busy machine, too, answers two requests within half a second, once in a while.
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.Per(1, 500*time.Millisecond)), By: Key{Kind: Global}})
		eventually(t, "a request is denied", func() bool { return s.send("1", "").status == http.StatusTooManyRequests })
		eventually(t, "a request is allowed again", func() bool { return s.send("1", "").status == http.StatusCreated })
	}},
}, keyRows(func(t *rig, by Key, hooks Hooks) Middleware {
	return RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: by, Hooks: hooks}
})...)

// corsRows are that a preflight takes no token, and that a browser may read a refusal, with CORS in front.
var corsRows = []row{
	{"CORS in front of a limit", func(t *rig) {
		var c counter
		limited := t.framework.Serve(c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(2)), By: Key{Kind: Global}})
		s := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "https://shop.example")
			if r.Method == http.MethodOptions {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			limited.ServeHTTP(w, r)
		}))
		for n := range 2 {
			s.request(http.MethodOptions, "1", "").is(http.StatusNoContent, "")
			s.send("1", "").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
		}
		s.send("1", "").denies(policy.QuotaExceeded).has("Access-Control-Allow-Origin", "https://shop.example")
	}},
}

// memoryRows measure the memory of the process.
var memoryRows = []row{
	{"a key does not keep its request in memory", func(t *rig) {
		var c counter
		s := serve(t, c.handle, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(1)), By: Key{Kind: ByID, Name: "id"}})
		const keys = 100
		rest := "?q=" + strings.Repeat("q", 250<<10)
		s.send("first"+rest, "").is(http.StatusCreated, "run 1")
		s.send("first"+rest, "").denies(policy.QuotaExceeded)
		before := heap()
		for i := range keys {
			s.send(strconv.Itoa(i)+rest, "").is(http.StatusCreated, "run "+strconv.Itoa(i+2))
		}
		if each := (heap() - before) / keys; each > 8<<10 {
			t.Errorf("%d bytes for each key", each)
		}
	}},
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what was in pools goes at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // it fits
}
