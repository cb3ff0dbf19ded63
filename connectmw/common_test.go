package connectmw_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things/thingsconnect"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func newLimiter(t *testing.T, st store.Buckets, plan tokenbucket.Plan) *tokenbucket.Limiter {
	t.Helper()
	return must(tokenbucket.New(st, "api", plan))
}

func newGuard(t *testing.T, st store.Records, opts ...guard.Option) *guard.Guard {
	t.Helper()
	return must(guard.New(st, "orders", opts...))
}

func newLocker(t *testing.T, st store.Leases) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "carts"))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func newSemaphore(t *testing.T, st store.Leases, capacity int, opts ...semaphore.Option) *semaphore.Semaphore {
	t.Helper()
	s := must(semaphore.New(st, "reports", capacity, opts...))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// policies build the interceptors of each policy on a store, with their common options.
var policies = map[string]func(t *testing.T, st store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor{
	"ratelimit": func(t *testing.T, st store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor {
		var all []policy.RPCRateLimitOption
		for _, o := range opts {
			all = append(all, o)
		}
		return ratelimit.New(newLimiter(t, st, tokenbucket.PerMinute(10)), by, all...)
	},
	"idempotency": func(t *testing.T, st store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor {
		var all []policy.RPCIdempotencyOption
		for _, o := range opts {
			all = append(all, o)
		}
		return idempotency.New(newGuard(t, st), connectmw.ScopeBy(by), all...)
	},
	"exclusive": func(t *testing.T, st store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor {
		var all []policy.ExclusiveOption
		for _, o := range opts {
			all = append(all, o)
		}
		return exclusive.New(newLocker(t, st), by, all...)
	},
	"concurrency": func(t *testing.T, st store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor {
		var all []policy.ConcurrencyOption
		for _, o := range opts {
			all = append(all, o)
		}
		return concurrency.New(newSemaphore(t, st, 3), by, all...)
	},
}

var stores = []storetest.Op{storetest.TakeTokens, storetest.BeginOperation, storetest.AcquireLease, storetest.AcquireLease}

// The common behaviour of all policies.
func TestEveryPolicy(t *testing.T) {
	failing := func(*connectmw.Call) (string, error) { return "", errKey }
	for name, build := range policies {
		key := []string{"idempotency-key", "k"}
		call := func(client client, pairs ...string) error {
			_, err := client.Make(with(t, append(pairs, key...)...), &things.MakeRequest{Id: "1"})
			return err
		}
		t.Run(name, func(t *testing.T) {
			t.Run("a call without the key is refused", func(t *testing.T) {
				var s service
				client := serve(t, &s, build(t, newStore(t), connectmw.ByHeader("x-key")))
				denies(t, call(client), policy.KeyMissing)
				denies(t, call(client, "x-key", ""), policy.KeyMissing)
				denies(t, call(client, "x-key", "a", "x-key", "b"), policy.KeyMissing)
				s.ran(t, 0)
				ok(t, call(client, "X-Key", "a"))
			})
			t.Run("a key that is too long", func(t *testing.T) {
				var s service
				client := serve(t, &s, build(t, newStore(t), connectmw.ByHeader("x-key")))
				denies(t, call(client, "x-key", strings.Repeat("k", 1025)), policy.KeyMalformed)
				s.ran(t, 0)
			})
			t.Run("a key function that fails is the server's fault", func(t *testing.T) {
				var s service
				var errs []error
				client := serve(t, &s, build(t, newStore(t), failing, connectmw.OnError(func(call *connectmw.Call, err error) {
					errs = append(errs, err)
					if call.Spec().Procedure != thingsconnect.ThingsMakeProcedure {
						t.Errorf("reported for %s", call.Spec().Procedure)
					}
				})))
				denies(t, call(client), policy.InternalError)
				s.ran(t, 0)
				if len(errs) != 1 || !errors.Is(errs[0], errKey) {
					t.Errorf("reported %v", errs)
				}
			})
			t.Run("skipped calls pass", func(t *testing.T) {
				var s service
				skip := connectmw.Unless(func(call *connectmw.Call) bool { return call.Context().Value(userKey{}) == "admin" })
				client := serve(t, &s, build(t, newStore(t), failing, skip))
				for range 3 {
					ok(t, call(client, "x-user", "admin"))
				}
				denies(t, call(client), policy.InternalError)
				s.ran(t, 3)
			})
			t.Run("denials can be answered otherwise", func(t *testing.T) {
				var s service
				client := serve(t, &s, build(t, newStore(t), connectmw.ByHeader("x-key"), connectmw.OnDeny(func(_ *connectmw.Call, d policy.Denial) error {
					return failure(connect.CodeNotFound, string(d.Reason))
				})))
				if err := call(client); codeOf(err) != connect.CodeNotFound || !strings.HasSuffix(err.Error(), ": key-missing") {
					t.Errorf("%v", err)
				}
				s.ran(t, 0)
			})
			t.Run("the store is unavailable", func(t *testing.T) {
				var s service
				st := newStore(t)
				var behind error
				outer := around(func(ctx context.Context, handler func(context.Context) error) error {
					behind = handler(ctx)
					return behind
				})
				client := serve(t, &s, outer, build(t, st, connectmw.ByHeader("x-key")))
				for _, op := range stores {
					st.Break(op, storetest.Down)
				}
				denies(t, call(client, "x-key", "a"), policy.ReducedCapacity)
				if d, ok := connectmw.DenialOf(behind); !ok || d.Reason != policy.ReducedCapacity || !errors.Is(behind, store.ErrUnavailable) {
					t.Errorf("an outer interceptor gets %v", behind)
				}
				denies(t, call(client), policy.KeyMissing) // whatever the store's state
				s.ran(t, 0)
				st.Mend(storetest.Any)
				ok(t, call(client, "x-key", "a"))
			})
			t.Run("every builder of keys", func(t *testing.T) {
				for _, by := range []connectmw.KeyFunc{
					connectmw.ByField("id"), connectmw.ByContext(userKey{}), connectmw.ByPeer(), connectmw.ByProcedure(), connectmw.Global(),
				} {
					var s service
					ok(t, call(serve(t, &s, build(t, newStore(t), by)), "x-user", "another"))
					s.ran(t, 1)
				}
			})
		})
	}
}

// All policies together, in the order of the documentation.
func TestPoliciesTogether(t *testing.T) {
	var s service
	st := newStore(t)
	byID := connectmw.ByField("id")
	byUser := connectmw.ByContext(userKey{})
	client := serve(t, &s,
		policies["ratelimit"](t, st, connectmw.ByPeer(), nil), policies["idempotency"](t, st, byUser, nil),
		policies["exclusive"](t, st, byID, nil), policies["concurrency"](t, st, byID, nil))
	for range 2 {
		thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", "k"), &things.MakeRequest{Id: "1"})
		is(t, thing, err, "run 1")
	}
	s.ran(t, 1)
	if n := st.Calls(storetest.AcquireLease); n != 2 {
		t.Errorf("%d leases, want a lock and a permit, of which a replay needs none", n)
	}
}

func TestGuardKeepsNoRefusalBehindIt(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	st := newStore(t)
	client := serve(t, &s,
		policies["idempotency"](t, st, connectmw.ByContext(userKey{}), nil), policies["exclusive"](t, st, connectmw.ByField("id"), nil))
	first := making(with(t, "x-user", "u", "idempotency-key", "first"), t, client, &things.MakeRequest{Id: "1"})
	g.runs(t)
	second := with(t, "x-user", "u", "idempotency-key", "second")
	_, err := client.Make(second, &things.MakeRequest{Id: "1"})
	denies(t, err, policy.Locked)
	g.let()
	is(t, result(t, first).thing, nil, "done")
	g.let()
	thing, err := client.Make(second, &things.MakeRequest{Id: "1"})
	is(t, thing, err, "done")
	s.ran(t, 2)
}
