package mwtest

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/problems"
)

// refusing has a middleware of each policy that refuses a request without its key.
var refusing = map[string]func(t *rig, hooks Hooks, o policy.Option) Middleware{
	"ratelimit": func(t *rig, hooks Hooks, o policy.Option) Middleware {
		return RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader, Options: []policy.RateLimitOption{o}, Hooks: hooks}
	},
	"idempotency": func(t *rig, hooks Hooks, o policy.Option) Middleware {
		return Idempotency{Guard: newGuard(t, newStore(t)), Options: []policy.IdempotencyOption{policy.Required(), o}, Hooks: hooks}
	},
	"exclusive": func(t *rig, hooks Hooks, o policy.Option) Middleware {
		return Exclusive{Locker: newLocker(t, newStore(t)), By: byHeader, Options: []policy.ExclusiveOption{o}, Hooks: hooks}
	},
	"concurrency": func(t *rig, hooks Hooks, o policy.Option) Middleware {
		return Concurrency{Semaphore: newSemaphore(t, newStore(t), 1), By: byHeader, Options: []policy.ConcurrencyOption{o}, Hooks: hooks}
	},
	"fenced": func(t *rig, hooks Hooks, o policy.Option) Middleware {
		return Fenced{Checker: newChecker(t), By: byID, Options: []policy.FencedOption{o}, Hooks: hooks}
	},
}

// typeOf returns the type of an answer's problem.
func typeOf(a answer) string {
	a.t.Helper()
	var problem struct{ Type string }
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		a.t.Fatalf("%d %q is no problem: %v", a.status, a.body, err)
	}
	return problem.Type
}

// denialRows are about the content of refusals.
var denialRows = []row{
	{"an application has its own problem types", func(t *rig) {
		for name, build := range refusing {
			for _, base := range []string{"https://shop.example/problems#", "/problems/"} {
				t.Run(name+", "+base, func(t *rig) {
					var c counter
					a := serve(t, c.handle, build(t, Hooks{}, policy.ProblemTypes(base))).send("1", "")
					kind := typeOf(a)
					if !strings.HasPrefix(kind, base) {
						t.Errorf("the type is %s", kind)
					}
					a.has("Link", "<"+kind+`>; rel="describedby"`)
					typed := Hooks{Deny: func(d policy.Denial) (int, string) { return http.StatusTeapot, d.Type() }}
					serve(t, c.handle, build(t, typed, policy.ProblemTypes(base))).send("1", "").is(http.StatusTeapot, kind)
					c.ran(t, 0)
				})
			}
		}
	}},
	{"the type of a problem is the address of its page", func(t *rig) {
		pages := serve(t, problems.Handler(Path).ServeHTTP)
		for name, build := range refusing {
			t.Run(name, func(t *rig) {
				kind := typeOf(serve(t, new(counter).handle, build(t, Hooks{}, policy.ProblemTypes(Path))).send("1", ""))
				page := pages.request(http.MethodGet, strings.TrimPrefix(kind, Path), "", "Accept", "text/html")
				if page.status != http.StatusOK || !strings.Contains(page.body, "<code>"+kind+"</code>") {
					t.Errorf("%s: %d %s", kind, page.status, page.body)
				}
				page.has("Content-Type", "text/html; charset=utf-8")
			})
		}
		unknown := pages.request(http.MethodGet, "unknown", "")
		if unknown.status != http.StatusNotFound {
			t.Errorf("a page of no type: %d %s", unknown.status, unknown.body)
		}
	}},
	{"standard problem types are not replaced, and link to the application's page", func(t *rig) {
		for name, reason := range map[string]policy.Reason{"limited": policy.QuotaExceeded, "down": policy.ReducedCapacity, "held": policy.AbnormalUsage} {
			const own = "https://shop.example/problems/"
			for base, link := range map[string]string{"": "", own: "<" + own + string(reason) + `>; rel="describedby"`} {
				t.Run(name+", "+base, func(t *rig) {
					var opts []policy.RateLimitOption
					if base != "" {
						opts = append(opts, policy.ProblemTypes(base))
					}
					st := newStore(t)
					l := newLimiter(t, st, tokenbucket.PerHour(1))
					s := serve(t, new(counter).handle, RateLimit{Limiter: l, By: byHeader, Options: opts})
					s.send("1", "", "X-Key", "a").is(http.StatusCreated, "run 1")
					switch reason {
					case policy.ReducedCapacity:
						st.Break(storetest.Any, storetest.Down)
					case policy.AbnormalUsage:
						if err := l.Hold(t.Context(), "a", time.Minute); err != nil {
							t.Fatal(err)
						}
					}
					s.send("1", "", "X-Key", "a").denies(reason).has("Link", link)
				})
			}
		}
	}},
	{"a denial has the limit that refused", func(t *rig) {
		denials := make(chan policy.Denial, 1)
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.Limits{
				tokenbucket.PerSecond(1000).Named("wide"), tokenbucket.PerHour(2).Named("hourly"), tokenbucket.PerMinute(2).Named("minute"),
			}),
			By: Key{Kind: Global},
			Hooks: Hooks{Deny: func(d policy.Denial) (int, string) {
				denials <- d
				return http.StatusTeapot, "denied"
			}},
		})
		s.send("1", "").is(http.StatusCreated, "run 1")
		s.send("1", "").is(http.StatusCreated, "run 2")
		a := s.send("1", "").is(http.StatusTeapot, "denied")
		retries(t, a)
		if a.header.Get("RateLimit") == "" {
			t.Error("the hook's answer has no RateLimit")
		}
		d := <-denials
		if strings.Join(d.ViolatedPolicies, " ") != "hourly minute" {
			t.Errorf("violated are %v", d.ViolatedPolicies)
		}
		l := d.Limit
		if l.Name != "hourly" || l.Capacity != 2 || l.Window != time.Hour || l.Remaining != 0 || l.RetryAfter != d.RetryAfter {
			t.Errorf("%+v, to be tried again after %v", l, d.RetryAfter)
		}
		if l.Reset <= 59*time.Minute || l.Reset > time.Hour || l.RetryAfter <= 29*time.Minute || l.RetryAfter > 30*time.Minute {
			t.Errorf("the bucket is full after %v, and has a token after %v", l.Reset, l.RetryAfter)
		}
	}},
	{"a denial for another reason has no limit", func(t *rig) {
		s := serve(t, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader,
			Hooks: Hooks{Deny: func(d policy.Denial) (int, string) { return http.StatusTeapot, "limit " + d.Limit.Name }},
		})
		s.send("1", "").is(http.StatusTeapot, "limit ")
	}},
}
