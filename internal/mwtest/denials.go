package mwtest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// refusing has a middleware of each policy that refuses a request without its key.
var refusing = map[string]func(t *testing.T, hooks Hooks, o policy.Option) Middleware{
	"ratelimit": func(t *testing.T, hooks Hooks, o policy.Option) Middleware {
		return RateLimit{Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader, Options: []policy.RateLimitOption{o}, Hooks: hooks}
	},
	"idempotency": func(t *testing.T, hooks Hooks, o policy.Option) Middleware {
		return Idempotency{Guard: newGuard(t, newStore(t)), Options: []policy.IdempotencyOption{policy.Required(), o}, Hooks: hooks}
	},
	"exclusive": func(t *testing.T, hooks Hooks, o policy.Option) Middleware {
		return Exclusive{Locker: newLocker(t, newStore(t)), By: byHeader, Options: []policy.ExclusiveOption{o}, Hooks: hooks}
	},
	"concurrency": func(t *testing.T, hooks Hooks, o policy.Option) Middleware {
		return Concurrency{Semaphore: newSemaphore(t, newStore(t), 1), By: byHeader, Options: []policy.ConcurrencyOption{o}, Hooks: hooks}
	},
	"fenced": func(t *testing.T, hooks Hooks, o policy.Option) Middleware {
		return Fenced{Checker: newChecker(t), By: byID, Options: []policy.FencedOption{o}, Hooks: hooks}
	},
}

// denialRows are about the content of refusals.
var denialRows = []row{
	{"an application has its own problem types", func(t *testing.T, f Framework) {
		const base = "https://shop.example/problems#"
		for name, build := range refusing {
			t.Run(name, func(t *testing.T) {
				var c counter
				a := serve(t, f, c.handle, build(t, Hooks{}, policy.ProblemTypes(base))).send("1", "")
				var problem struct{ Type string }
				if err := json.Unmarshal([]byte(a.body), &problem); err != nil || !strings.HasPrefix(problem.Type, base) {
					t.Errorf("%s, %v", a.body, err)
				}
				a.has("Link", "<"+problem.Type+`>; rel="describedby"`)
				typed := Hooks{Deny: func(d policy.Denial) (int, string) { return http.StatusTeapot, d.Type() }}
				serve(t, f, c.handle, build(t, typed, policy.ProblemTypes(base))).send("1", "").is(http.StatusTeapot, problem.Type)
				c.ran(t, 0)
			})
		}
	}},
	{"registered problem types are not replaced", func(t *testing.T, f Framework) {
		s := serve(t, f, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(1)), By: Key{Kind: Global},
			Options: []policy.RateLimitOption{policy.ProblemTypes("https://shop.example/problems/")},
		})
		s.send("1", "").is(http.StatusCreated, "run 1")
		s.send("1", "").denies(policy.QuotaExceeded)
	}},
	{"a denial has the limit that refused", func(t *testing.T, f Framework) {
		denials := make(chan policy.Denial, 1)
		s := serve(t, f, new(counter).handle, RateLimit{
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
	{"a denial for another reason has no limit", func(t *testing.T, f Framework) {
		s := serve(t, f, new(counter).handle, RateLimit{
			Limiter: newLimiter(t, newStore(t), apiPlan), By: byHeader,
			Hooks: Hooks{Deny: func(d policy.Denial) (int, string) { return http.StatusTeapot, "limit " + d.Limit.Name }},
		})
		s.send("1", "").is(http.StatusTeapot, "limit ")
	}},
}
