package mwtest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// byTier gives each key the limit of its tier, which an earlier middleware has put into the context.
var byTier = tokenbucket.PlanFunc(func(ctx context.Context, _ string) (tokenbucket.Plan, error) {
	switch ctx.Value("tier") {
	case "gold":
		return tokenbucket.Unlimited(), nil
	case "silver":
		return tokenbucket.PerHour(2).Named("silver"), nil
	}
	return tokenbucket.PerHour(1).Named("tin"), nil
})

// usageRows are about how limits stand, and about where plans and decisions come from.
var usageRows = []row{
	{"usage says how the limits stand, and charges nothing", func(t *rig) {
		var c counter
		l := newLimiter(t, newStore(t), tokenbucket.Limits{
			tokenbucket.Per(3, 90*time.Minute-100*time.Millisecond).Named("burst"), tokenbucket.PerDay(5).Named("daily"),
		})
		limited, usage := serve(t, c.handle, RateLimit{Limiter: l, By: byHeader}), serve(t, c.handle, Usage{Limiter: l, By: byHeader})
		for range 3 {
			usage.send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[`+
				`{"name":"burst","capacity":3,"window":5400,"remaining":3,"reset":0},`+
				`{"name":"daily","capacity":5,"window":86400,"remaining":5,"reset":0}]}`+"\n").
				has("Content-Type", "application/json").has("Cache-Control", "no-store").has("RateLimit", "")
		}
		for range 3 {
			limited.send("1", "", "X-Key", "a")
		}
		limited.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded)
		for range 3 {
			usage.send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[`+
				`{"name":"burst","capacity":3,"window":5400,"remaining":0,"reset":~5400},`+
				`{"name":"daily","capacity":5,"window":86400,"remaining":2,"reset":~51840}]}`+"\n")
		}
		usage.request(http.MethodGet, "1", "", "X-Key", "b").is(http.StatusOK, `{"limits":[`+
			`{"name":"burst","capacity":3,"window":5400,"remaining":3,"reset":0},`+
			`{"name":"daily","capacity":5,"window":86400,"remaining":5,"reset":0}]}`+"\n")
		c.ran(t, 3)
	}},
	{"usage without limits has none", func(t *rig) {
		l := newLimiter(t, newStore(t), tokenbucket.Unlimited())
		serve(t, new(counter).handle, Usage{Limiter: l, By: byHeader}).send("1", "", "X-Key", "a").is(http.StatusOK, `{"limits":[]}`+"\n")
	}},
	{"usage is refused as the middleware refuses", func(t *rig) {
		st := newStore(t)
		l := newLimiter(t, st, apiPlan)
		var reported []error
		s := serve(t, new(counter).handle, Usage{Limiter: l, By: byHeader})
		s.send("1", "").denies(policy.KeyMissing).has("Cache-Control", "no-store")
		s.send("1", "", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
		serve(t, new(counter).handle, Usage{Limiter: l, By: Key{Kind: Failing, Err: errKey}}).send("1", "").denies(policy.InternalError)
		st.Break(storetest.TakeTokens, storetest.Down)
		s.send("1", "", "X-Key", "a").denies(policy.ReducedCapacity)
		hooks := Hooks{Deny: onDenial, Report: func(err error) { reported = append(reported, err) }}
		serve(t, new(counter).handle, Usage{Limiter: l, By: byHeader, Hooks: hooks}).send("1", "", "X-Key", "a").
			is(http.StatusTeapot, "denied: temporary-reduced-capacity")
		if len(reported) != 1 {
			t.Errorf("reported %v", reported)
		}
	}},
	{"a plan is chosen by what earlier middleware have set", func(t *rig) {
		for name, plan := range map[string]tokenbucket.Plan{"each time": byTier, "cached": tokenbucket.Cached(byTier, time.Hour, 10)} {
			t.Run(name, func(t *rig) {
				var c counter
				l := newLimiter(t, newStore(t), plan)
				tiers := Set{Name: "tier", Field: "X-Tier"}
				s := serve(t, c.handle, tiers, RateLimit{Limiter: l, By: byHeader})
				for n := range 3 {
					s.send("1", "", "X-Key", "a", "X-Tier", "gold").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("RateLimit", "")
				}
				for n := range 2 {
					s.send("1", "", "X-Key", "b", "X-Tier", "silver").is(http.StatusCreated, "run "+strconv.Itoa(n+4)).
						has("RateLimit-Policy", `"silver";q=2;w=3600`)
				}
				s.send("1", "", "X-Key", "b", "X-Tier", "silver").denies(policy.QuotaExceeded)
				s.send("1", "", "X-Key", "c").is(http.StatusCreated, "run 6")
				s.send("1", "", "X-Key", "c").denies(policy.QuotaExceeded)
				serve(t, c.handle, tiers, Usage{Limiter: l, By: byHeader}).send("1", "", "X-Key", "b", "X-Tier", "silver").
					is(http.StatusOK, `{"limits":[{"name":"silver","capacity":2,"window":3600,"remaining":0,"reset":~3600}]}`+"\n")
			})
		}
	}},
	{"a context that a plan keeps sees nothing of later requests", func(t *rig) {
		var (
			once sync.Once
			kept context.Context //nolint:containedctx // that is the test
			c    counter
		)
		l := newLimiter(t, newStore(t), tokenbucket.PlanFunc(func(ctx context.Context, _ string) (tokenbucket.Plan, error) {
			once.Do(func() {
				if kept = ctx; ctx.Value("tier") != "gold" || ctx.Value(contextKey("user")) != "u" || ctx.Done() == nil {
					t.Errorf("the plan sees %v and %v", ctx.Value("tier"), ctx.Value(contextKey("user")))
				}
			})
			return tokenbucket.PerHour(100), nil
		}))
		seen := func(w http.ResponseWriter, r *http.Request) {
			if tier := kept.Value("tier"); tier == "tin" || kept.Value(contextKey("user")) != "u" {
				t.Errorf("it sees %v and %v", tier, kept.Value(contextKey("user")))
			}
			c.handle(w, r)
		}
		s := serve(t, seen, Set{Name: "tier", Field: "X-Tier"}, RateLimit{Limiter: l, By: byHeader})
		s.send("1", "", "X-Key", "a", "X-Tier", "gold", "X-User", "u").is(http.StatusCreated, "run 1").has("RateLimit-Policy", `"api";q=100;w=3600`)
		for n := range 10 { // frameworks reuse their contexts
			s.send("1", "", "X-Key", "a", "X-Tier", "tin").is(http.StatusCreated, "run "+strconv.Itoa(n+2))
		}
	}},
	{"clients of some networks pass", func(t *rig) {
		var c counter
		for network, passes := range map[string]bool{"127.0.0.0/8": true, "::ffff:127.0.0.1": true, "10.0.0.0/8": false} {
			l := newLimiter(t, newStore(t), tokenbucket.PerHour(1))
			s := serve(t, c.handle, RateLimit{Limiter: l, By: Key{Kind: Global}, Hooks: Hooks{Networks: must(clientip.ParseNetworks(network))}})
			s.send("1", "")
			a := s.send("1", "", "X-Forwarded-For", "127.0.0.1")
			if !passes {
				a.denies(policy.QuotaExceeded)
			} else if a.status != http.StatusCreated {
				t.Errorf("%s: %d", network, a.status)
			}
		}
	}},
	{"a stand-in decides while the store is down", func(t *rig) {
		var c counter
		primary, standIn := newStore(t), memstore.New()
		t.Cleanup(func() { _ = standIn.Close() })
		l := newLimiter(t, must[store.Buckets](fallback.Buckets(primary, standIn, 0.5)), apiPlan)
		s := serve(t, c.handle, RateLimit{
			Limiter: l, By: byHeader, Options: []policy.RateLimitOption{policy.FailOpen(), policy.StatusHeaders()},
		})
		for range 8 {
			s.send("1", "", "X-Key", "a")
		}
		primary.Break(storetest.TakeTokens, storetest.Down)
		for n := range 5 { // half of the burst
			a := s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run "+strconv.Itoa(n+9))
			a.has("RateLimit-Policy", `"api";q=10;w=3600`).has("RateLimit-Status", "")
			if a.header.Get("RateLimit") == "" {
				t.Error("no RateLimit")
			}
		}
		s.send("1", "", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "~720").has("RateLimit", `"api";r=0;t=~720`)
		c.ran(t, 13)
		primary.Mend(storetest.Any)
		s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 14") // primary has two left
	}},
}
