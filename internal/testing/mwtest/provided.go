package mwtest

import (
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// everyPolicy builds the middleware of a policy on a store that is down, and fails open.
var everyPolicy = map[string]func(t *rig, by Key, log policy.Option) Middleware{
	"ratelimit": func(t *rig, by Key, log policy.Option) Middleware {
		return RateLimit{Limiter: newLimiter(t, brokenStore(t), apiPlan), By: by, Options: []policy.RateLimitOption{policy.FailOpen(), log}}
	},
	"idempotency": func(t *rig, by Key, log policy.Option) Middleware {
		return Idempotency{Guard: newGuard(t, brokenStore(t)), By: by, Options: []policy.IdempotencyOption{policy.RunUnprotected(), log}}
	},
	"exclusive": func(t *rig, by Key, log policy.Option) Middleware {
		return Exclusive{Locker: newLocker(t, brokenStore(t)), By: by, Options: []policy.ExclusiveOption{policy.RunUnprotected(), log}}
	},
	"concurrency": func(t *rig, by Key, log policy.Option) Middleware {
		return Concurrency{Semaphore: newSemaphore(t, brokenStore(t), 1), By: by, Options: []policy.ConcurrencyOption{policy.FailOpen(), log}}
	},
	"fenced": func(t *rig, by Key, log policy.Option) Middleware {
		c := newChecker(t)
		c.fail(store.ErrUnavailable)
		return Fenced{Checker: c, By: by, Options: []policy.FencedOption{policy.RunUnprotected(), log}}
	},
}

func brokenStore(t *rig) *storetest.Faulty {
	st := newStore(t)
	st.Break(storetest.Any, storetest.Down)
	return st
}

// providedRows are about keys that the application does not provide.
var providedRows = func() (rows []row) {
	header := []string{keyHeader, "k", fence.Header, "1"}
	for name, build := range everyPolicy {
		rows = append(rows, row{name + ", what the application has to provide", func(t *rig) {
			for missing, by := range map[string]Key{`"user"`: byUser, `"nothing"`: {Kind: ByID, Name: "nothing"}} {
				var j Journal
				var c counter
				s := serve(t, c.handle, build(t, by, policy.Logger(j.Logger())))
				for range 3 {
					s.send("1", "", header...).denies(policy.InternalError)
				}
				c.ran(t, 0)
				logged := j.Records(t)
				if len(logged) != 1 || logged[0]["level"] != "ERROR" || !strings.Contains(logged[0]["error"].(string), missing) {
					t.Errorf("logged %v, want once that %s is missing", logged, missing)
				}
			}
		}}, row{name + ", what the client has to send", func(t *rig) {
			var j Journal
			var c counter
			s := serve(t, c.handle, build(t, byHeader, policy.Logger(j.Logger())))
			for range 3 {
				s.send("1", "", header...).denies(policy.KeyMissing)
			}
			c.ran(t, 0)
			if logged := j.Records(t); len(logged) > 0 {
				t.Errorf("logged %v", logged)
			}
			if a := s.send("1", "", append([]string{"X-Key", "a"}, header...)...); a.status != http.StatusCreated { // so it is open
				t.Errorf("answered with %d while the store is down", a.status)
			}
		}})
	}
	return rows
}()
