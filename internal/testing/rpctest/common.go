package rpctest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// policies build the interceptors of each policy on a store, with their common options.
var policies = map[string]func(t *rig, st store.Store, by Key, opts ...setting.RPCOption) Interceptor{
	"ratelimit": func(t *rig, st store.Store, by Key, opts ...setting.RPCOption) Interceptor {
		var all []policy.RPCRateLimitOption
		for _, o := range opts {
			all = append(all, o)
		}
		return t.RateLimit(NewLimiter(t, st, tokenbucket.PerMinute(10)), by, all...)
	},
	"idempotency": func(t *rig, st store.Store, by Key, opts ...setting.RPCOption) Interceptor {
		var all []policy.RPCIdempotencyOption
		for _, o := range opts {
			all = append(all, o)
		}
		return t.Idempotency(NewGuard(t, st), t.ScopeBy(by), all...)
	},
	"exclusive": func(t *rig, st store.Store, by Key, opts ...setting.RPCOption) Interceptor {
		var all []policy.ExclusiveOption
		for _, o := range opts {
			all = append(all, o)
		}
		return t.Exclusive(NewLocker(t, st), by, all...)
	},
	"concurrency": func(t *rig, st store.Store, by Key, opts ...setting.RPCOption) Interceptor {
		var all []policy.ConcurrencyOption
		for _, o := range opts {
			all = append(all, o)
		}
		return t.Concurrency(NewSemaphore(t, st, 3), by, all...)
	},
}

// Policy builds the interceptors of a policy on a store: "ratelimit", "idempotency", "exclusive"
// or "concurrency".
func Policy(t *testing.T, f Framework, name string, st store.Store, by Key, opts ...setting.RPCOption) Interceptor {
	return policies[name](&rig{t, f, inMemory}, st, by, opts...)
}

var stores = []storetest.Op{storetest.TakeTokens, storetest.BeginOperation, storetest.AcquireLease, storetest.AcquireLease}

// The common behaviour of all policies.
func everyPolicy(t *rig) {
	failing := t.KeyOf(func(Call) (string, error) { return "", errKey })
	for name, build := range policies {
		key := []string{"idempotency-key", "k"}
		call := func(client Client, pairs ...string) error {
			_, err := client.Make(with(t, append(pairs, key...)...), &Request{ID: "1"})
			return err
		}
		t.Run(name, func(t *rig) {
			t.Run("a call without the key is refused", func(t *rig) {
				var s Service
				client := serve(t, &s, build(t, newStore(t), t.ByMetadata("x-key")))
				denies(t, call(client), policy.KeyMissing)
				denies(t, call(client, "x-key", ""), policy.KeyMissing)
				denies(t, call(client, "x-key", "a", "x-key", "b"), policy.KeyMissing)
				s.ran(t, 0)
				ok(t, call(client, "X-Key", "a"))
			})
			t.Run("a key that is too long", func(t *rig) {
				var s Service
				client := serve(t, &s, build(t, newStore(t), t.ByMetadata("x-key")))
				denies(t, call(client, "x-key", strings.Repeat("k", 1025)), policy.KeyMalformed)
				s.ran(t, 0)
			})
			t.Run("a key function that fails is the server's fault", func(t *rig) {
				var s Service
				var errs []error
				client := serve(t, &s, build(t, newStore(t), failing, t.OnError(func(call Call, err error) {
					errs = append(errs, err)
					if !strings.HasSuffix(call.Method(), "/Make") {
						t.Errorf("reported for %s", call.Method())
					}
				})))
				denies(t, call(client), policy.InternalError)
				s.ran(t, 0)
				if len(errs) != 1 || !errors.Is(errs[0], errKey) {
					t.Errorf("reported %v", errs)
				}
			})
			t.Run("skipped calls pass", func(t *rig) {
				var s Service
				skip := t.Unless(func(call Call) bool { return call.Context().Value(UserKey{}) == "admin" })
				client := serve(t, &s, build(t, newStore(t), failing, skip))
				for range 3 {
					ok(t, call(client, "x-user", "admin"))
				}
				denies(t, call(client), policy.InternalError)
				s.ran(t, 3)
			})
			t.Run("denials can be answered otherwise", func(t *rig) {
				var s Service
				client := serve(t, &s, build(t, newStore(t), t.ByMetadata("x-key"), t.OnDeny(func(_ Call, d policy.Denial) error {
					return failure(t, NotFound, string(d.Reason))
				})))
				if err := call(client); err == nil || t.CodeOf(err) != NotFound || t.DetailsOf(err).Message != "key-missing" {
					t.Errorf("%v", err)
				}
				s.ran(t, 0)
			})
			t.Run("the store is unavailable", func(t *rig) {
				var s Service
				st := newStore(t)
				var behind error
				outer := t.Around(func(ctx context.Context, handler func(context.Context) error) error {
					behind = handler(ctx)
					return behind
				})
				client := serve(t, &s, outer, build(t, st, t.ByMetadata("x-key")))
				for _, op := range stores {
					st.Break(op, storetest.Down)
				}
				denies(t, call(client, "x-key", "a"), policy.ReducedCapacity)
				if d, ok := t.DenialOf(behind); !ok || d.Reason != policy.ReducedCapacity || !errors.Is(behind, store.ErrUnavailable) {
					t.Errorf("an outer interceptor gets %v", behind)
				}
				denies(t, call(client), policy.KeyMissing) // whatever the store's state
				s.ran(t, 0)
				st.Mend(storetest.Any)
				ok(t, call(client, "x-key", "a"))
			})
			t.Run("every builder of keys", func(t *rig) {
				for _, by := range []Key{
					t.ByField("id"), t.ByContext(UserKey{}), t.ByPeer(), t.ByMethod(), t.Global(),
				} {
					var s Service
					ok(t, call(serve(t, &s, build(t, newStore(t), by)), "x-user", "another"))
					s.ran(t, 1)
				}
			})
		})
	}
}

// All policies together, in the order of the documentation.
func policiesTogether(t *rig) {
	var s Service
	st := newStore(t)
	client := serve(t, &s,
		policies["ratelimit"](t, st, t.ByPeer(), nil), policies["idempotency"](t, st, t.ByContext(UserKey{}), nil),
		policies["exclusive"](t, st, t.ByField("id"), nil), policies["concurrency"](t, st, t.ByField("id"), nil))
	for range 2 {
		thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", "k"), &Request{ID: "1"})
		is(t, thing, err, "run 1")
	}
	s.ran(t, 1)
	if n := st.Calls(storetest.AcquireLease); n != 2 {
		t.Errorf("%d leases, want a lock and a permit, of which a replay needs none", n)
	}
}

func guardKeepsNoRefusalBehindIt(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	st := newStore(t)
	client := serve(t, &s,
		policies["idempotency"](t, st, t.ByContext(UserKey{}), nil), policies["exclusive"](t, st, t.ByField("id"), nil))
	first := making(with(t, "x-user", "u", "idempotency-key", "first"), t, client, &Request{ID: "1"})
	g.runs(t)
	second := with(t, "x-user", "u", "idempotency-key", "second")
	_, err := client.Make(second, &Request{ID: "1"})
	denies(t, err, policy.Locked)
	g.let()
	is(t, result(t, first).thing, nil, "done")
	g.let()
	thing, err := client.Make(second, &Request{ID: "1"})
	is(t, thing, err, "done")
	s.ran(t, 2)
}
