package mwtest

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// guardRows are about the limits of records, and about records that the store has not confirmed.
var guardRows = []row{
	{"the store fails while the handler runs", func(t *rig) {
		for _, opts := range [][]guard.Option{nil, {guard.WithRerun()}} {
			var c counter
			store := newStore(t)
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				store.Break(storetest.Any, storetest.Down)
				c.handle(w, r)
			}, Idempotency{
				Guard: newGuard(t, store, opts...), By: byUser, Options: []policy.IdempotencyOption{policy.RunUnprotected()},
			})
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "")
			for range 2 {
				s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
			}
			s.send("1", "other", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
			store.Mend(storetest.Any)
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
			if err := store.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			// The process ends: new requests are refused, even if requests may bypass the store.
			s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.ReducedCapacity)
			c.ran(t, 1)
		}
	}},
	{"a full scope refuses new keys", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{
			Guard: newGuard(t, newStore(t), guard.WithMaxPerScope(2)), By: byUser,
			Options: []policy.IdempotencyOption{policy.RunUnprotected(policy.EvenMisconfigured())},
		})
		send := func(user, key string) answer { return s.send("1", "", "X-User", user, keyHeader, key) }
		send("u", "k1").is(http.StatusCreated, "run 1")
		send("u", "k2").is(http.StatusCreated, "run 2")
		for range 2 { // no open policy applies
			a := send("u", "k3").denies(policy.KeyQuotaExceeded)
			if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 86_000 || n > 86_400+5_400 {
				t.Errorf("Retry-After is %q, want when the first record ends", a.header.Get("Retry-After"))
			}
			if !strings.Contains(a.body, `"violated-policies":["orders"]`) {
				t.Errorf("the body is %q", a.body)
			}
			send("u", "k1").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		}
		send("v", "k3").is(http.StatusCreated, "run 3")
	}},
	{"a scope full of results does not keep more", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t), guard.WithMaxScopeBytes(1)), By: byUser})
		s.send("1", "", "X-User", "u", keyHeader, "k1").is(http.StatusCreated, "run 1")
		s.send("1", "", "X-User", "u", keyHeader, "k1").denies(policy.ResponseNotRetained)
		c.ran(t, 1)
	}},
	{"the empty scope has no limit", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t), guard.WithMaxPerScope(1), guard.WithMaxScopeBytes(1))})
		for n := range 3 {
			key := "k" + strconv.Itoa(n)
			for _, replayed := range []string{"", "true"} {
				s.send("1", "", keyHeader, key).is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("Idempotency-Replayed", replayed)
			}
		}
	}},
}
