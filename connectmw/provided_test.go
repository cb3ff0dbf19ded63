package connectmw_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
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
var openPolicies = map[string]func(t *testing.T, st store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor{
	"ratelimit": func(t *testing.T, st store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor {
		return ratelimit.New(newLimiter(t, st, tokenbucket.PerMinute(10)), by, policy.FailOpen(), policy.Logger(l))
	},
	"idempotency": func(t *testing.T, st store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor {
		return idempotency.New(newGuard(t, st), connectmw.ScopeBy(by), policy.RunUnprotected(), policy.Logger(l))
	},
	"exclusive": func(t *testing.T, st store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor {
		return exclusive.New(newLocker(t, st), by, policy.RunUnprotected(), policy.Logger(l))
	},
	"concurrency": func(t *testing.T, st store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor {
		return concurrency.New(newSemaphore(t, st, 3), by, policy.FailOpen(), policy.Logger(l))
	},
	"fenced": func(_ *testing.T, _ store.Store, by connectmw.KeyFunc, l *slog.Logger) connect.Interceptor {
		return fenced.New(downChecker{}, by, policy.RunUnprotected(), policy.Logger(l))
	},
}

// A value that the application did not provide is an internal error, and logged once; one that the
// client did not send is the client's error. No outage policy hides either.
func TestMissingKeys(t *testing.T) {
	sent := []string{"idempotency-key", "k", "lock-fence", "1"}
	for name, build := range openPolicies {
		for _, c := range []struct {
			by      connectmw.KeyFunc
			reason  policy.Reason
			missing string
		}{
			{connectmw.ByContext(userKey{}), policy.InternalError, "userKey"},
			{connectmw.ByField("nothing"), policy.InternalError, `"nothing"`},
			{connectmw.FirstOf(connectmw.ByContext(userKey{}), connectmw.ByField("nothing")), policy.InternalError, "userKey"},
			{connectmw.ByHeader("x-key"), policy.KeyMissing, ""},
			{connectmw.ByField("request_id"), policy.KeyMissing, ""},
			{connectmw.FirstOf(connectmw.ByContext(userKey{}), connectmw.ByHeader("x-key")), policy.KeyMissing, ""},
		} {
			t.Run(name, func(t *testing.T) {
				st := newStore(t)
				st.Break(storetest.Any, storetest.Down)
				var j mwtest.Journal
				var s service
				client := serve(t, &s, build(t, st, c.by, j.Logger()))
				for range 3 {
					_, err := client.Make(with(t, sent...), &things.MakeRequest{Id: "1"})
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
func TestClientStreamHasNoRequest(t *testing.T) {
	var j mwtest.Journal
	var s service
	client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerMinute(1)), connectmw.ByField("id"), policy.Logger(j.Logger())))
	for range 2 {
		stream := must(client.Talk(t.Context()))
		_, err := stream.Recv()
		denies(t, err, policy.InternalError)
	}
	if logged := j.Records(t); len(logged) != 1 || !strings.Contains(logged[0]["error"].(string), "Talk") {
		t.Errorf("logged %v", logged)
	}
}
