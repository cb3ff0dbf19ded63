package rpctest

import (
	"context"
	"log/slog"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// downChecker is a fence.Checker whose store is down.
type downChecker struct{}

func (downChecker) Check(context.Context, string, fence.Token) error { return store.ErrUnavailable }

// openPolicies build the interceptors of each policy on a store that is down. Calls pass without
// it.
var openPolicies = map[string]func(t *rig, st store.Store, by Key, l *slog.Logger) Interceptor{
	"ratelimit": func(t *rig, st store.Store, by Key, l *slog.Logger) Interceptor {
		return t.RateLimit(NewLimiter(t, st, tokenbucket.PerMinute(10)), by, policy.FailOpen(), policy.Logger(l))
	},
	"idempotency": func(t *rig, st store.Store, by Key, l *slog.Logger) Interceptor {
		return t.Idempotency(NewGuard(t, st), t.ScopeBy(by), policy.RunUnprotected(), policy.Logger(l))
	},
	"exclusive": func(t *rig, st store.Store, by Key, l *slog.Logger) Interceptor {
		return t.Exclusive(NewLocker(t, st), by, policy.RunUnprotected(), policy.Logger(l))
	},
	"concurrency": func(t *rig, st store.Store, by Key, l *slog.Logger) Interceptor {
		return t.Concurrency(NewSemaphore(t, st, 3), by, policy.FailOpen(), policy.Logger(l))
	},
	"fenced": func(t *rig, _ store.Store, by Key, l *slog.Logger) Interceptor {
		return t.Fenced(downChecker{}, by, policy.RunUnprotected(), policy.Logger(l))
	},
}

// A value that the application did not provide is an internal error, and logged once; one that the
// client did not send is the client's error. No outage policy hides either.
func missingKeys(t *rig) {
	sent := []string{"idempotency-key", "k", "lock-fence", "1"}
	for name, build := range openPolicies {
		for _, c := range []struct {
			by      Key
			reason  policy.Reason
			missing string
		}{
			{t.ByContext(UserKey{}), policy.InternalError, "UserKey"},
			{t.ByField("nothing"), policy.InternalError, `"nothing"`},
			{t.FirstOf(t.ByContext(UserKey{}), t.ByField("nothing")), policy.InternalError, "UserKey"},
			{t.ByMetadata("x-key"), policy.KeyMissing, ""},
			{t.ByField("request_id"), policy.KeyMissing, ""},
			{t.FirstOf(t.ByContext(UserKey{}), t.ByMetadata("x-key")), policy.KeyMissing, ""},
		} {
			t.Run(name, func(t *rig) {
				st := newStore(t)
				st.Break(storetest.Any, storetest.Down)
				var j mwtest.Journal
				var s Service
				client := serve(t, &s, build(t, st, c.by, j.Logger()))
				for range 3 {
					_, err := client.Make(with(t, sent...), &Request{ID: "1"})
					denies(t, err, c.reason)
				}
				s.ran(t, 0)
				logged := j.Records(t)
				if c.missing == "" {
					if len(logged) > 0 {
						t.Errorf("logged %v", logged)
					}
				} else if len(logged) != 1 || !strings.Contains(logged[0]["error"].(string), c.missing) {
					t.Errorf("logged %v, want once that %s is missing", logged, c.missing)
				}
			})
		}
	}
}

// A client stream cannot be keyed by its requests, which is logged as a mistake in the wiring.
func clientStreamHasNoRequest(t *rig) {
	var j mwtest.Journal
	var s Service
	client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerMinute(1)), t.ByField("id"), policy.Logger(j.Logger())))
	for range 2 {
		stream := must(client.Talk(t.Context()))
		_, err := stream.Recv()
		denies(t, err, policy.InternalError)
	}
	if logged := j.Records(t); len(logged) != 1 || !strings.Contains(logged[0]["error"].(string), "Talk") {
		t.Errorf("logged %v", logged)
	}
}
