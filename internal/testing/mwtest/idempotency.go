package mwtest

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func newGuard(t *rig, st store.Records, opts ...guard.Option) *guard.Guard {
	t.Helper()
	return must(guard.New(st, "orders", opts...))
}

const keyHeader = "Idempotency-Key"

var byUser = Key{Kind: ByContext, Name: "user"}

// orders is a guard scoped by user, in front of a handler.
func orders(t *rig, handler http.HandlerFunc, opts ...policy.IdempotencyOption) server {
	t.Helper()
	return serve(t, handler, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser, Options: opts})
}

var idempotencyRows = append([]row{
	{"a repeat gets the same answer", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		first := s.send("1", "body", "X-User", "u", keyHeader, `"k"`).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "")
		for _, key := range []string{`"k"`, "k"} { // quoted and bare are the same
			twin := s.send("1", "body", "X-User", "u", keyHeader, key).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
			twin.has("X-Run", "1").has("Content-Type", first.header.Get("Content-Type"))
		}
		s.send("1", "body", "X-User", "u", keyHeader, "other").is(http.StatusCreated, "run 2")
		c.ran(t, 2)
	}},
	{"a user never gets the answer of another", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		s.send("1", "", "X-User", "v", keyHeader, "k").is(http.StatusCreated, "run 2").has("Idempotency-Replayed", "")
		s.send("1", "", keyHeader, "k").denies(policy.InternalError) // authentication has let it through
		c.ran(t, 2)
	}},
	{"without a scope all users share keys", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t))})
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		s.send("1", "", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
	}},
	{"a key of another request is refused", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		s.send("1", "body", "X-User", "u", keyHeader, "k")
		s.send("1", "another body", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		s.send("2", "body", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		s.send("1?x=1", "body", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		c.ran(t, 1)
		s.send("1", "another body", "X-User", "v", keyHeader, "k").is(http.StatusCreated, "run 2")
	}},
	{"a repeat of a request in flight is refused", func(t *rig) {
		g := newGate(t)
		s := orders(t, g.handle)
		first := s.sending("1", "X-User", "u", keyHeader, "k")
		g.runs(t)
		a := s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.InFlight)
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 30 {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
		s.send("1", "other", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusOK, "done").has("Idempotency-Replayed", "true")
		g.idle(t)
	}},
	{"a missing key is allowed unless required", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		for n := range 2 {
			s.send("1", "", "X-User", "u").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
		}
		s = orders(t, c.handle, policy.Required())
		if a := s.send("1", "", "X-User", "u").denies(policy.KeyMissing); !strings.Contains(a.header.Get("Link"), "<") {
			t.Errorf("Link is %q", a.header.Get("Link"))
		}
		c.ran(t, 2)
	}},
	{"a malformed key is refused", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		for _, header := range [][]string{{keyHeader, ""}, {keyHeader, `"`}, {keyHeader, "a b"}, {keyHeader, "a", keyHeader, "b"}} {
			s.send("1", "", append([]string{"X-User", "u"}, header...)...).denies(policy.KeyMalformed)
		}
		c.ran(t, 0)
	}},
	{"other methods pass", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.Methods(http.MethodPut))
		for n := range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run "+strconv.Itoa(n+1))
		}
	}},
	{"methods are compared in upper case", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.Methods("Put", "post"))
		for range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		}
	}},
	{"a body that is too large is refused", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.MaxBody(10))
		s.send("1", "0123456789", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		s.send("1", "0123456789A", "X-User", "u", keyHeader, "l").denies(policy.BodyTooLarge)
		c.ran(t, 1)
	}},
	{"the handler reads the body", func(t *rig) {
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "read "+string(body))
			if err != nil {
				t.Error(err)
			}
		})
		s.send("1", "the body", "X-User", "u", keyHeader, "k").is(http.StatusOK, "read the body")
	}},
	{"the handler finds its attempt", func(t *rig) {
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			attempt, ok := guard.FromContext(r.Context())
			_, _ = io.WriteString(w, strconv.FormatBool(ok && attempt.Number() == 1 && attempt.OperationID() != ""))
		})
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusOK, "true")
	}},
	{"an answer that is too large is not retained", func(t *rig) {
		var j Journal
		runs := 0
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			runs++
			_, _ = io.WriteString(w, strings.Repeat("x", 200))
		}, Idempotency{
			Guard: newGuard(t, newStore(t), guard.WithMaxResult(100)), By: byUser,
			Options: []policy.IdempotencyOption{policy.Logger(j.Logger())},
		})
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusOK, strings.Repeat("x", 200))
		if a := s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.ResponseNotRetained); !strings.Contains(a.body, `"original-status":200`) {
			t.Errorf("denied with %q", a.body)
		}
		if runs != 1 {
			t.Errorf("the handler ran %d times", runs)
		}
		s.send("1", "", "X-User", "u", keyHeader, "another").is(http.StatusOK, strings.Repeat("x", 200))
		logs(t, &j, "larger than the guard keeps") // once for the route
	}},
	{"a server error is kept while it may have had effects", func(t *rig) {
		runs := 0
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			runs++
			if r.Header.Get("X-Clean") != "" {
				attempt, _ := guard.FromContext(r.Context())
				if err := attempt.MarkClean(r.Context()); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusBadGateway)
		})
		for range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "dirty").is(http.StatusBadGateway, "")
		}
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
		for range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "clean", "X-Clean", "yes").is(http.StatusBadGateway, "")
		}
		if runs != 3 {
			t.Errorf("ran %d times, of which twice cleanly", runs)
		}
	}},
	{"a panic", func(t *rig) {
		for _, opts := range [][]guard.Option{nil, {guard.WithRerun()}} {
			var c counter
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if attempt, _ := guard.FromContext(r.Context()); r.Header.Get("X-Clean") != "" {
					if err := attempt.MarkClean(r.Context()); err != nil {
						t.Error(err)
					}
				}
				c.handle(w, r) // half an answer
				panic(http.ErrAbortHandler)
			}, Idempotency{Guard: newGuard(t, newStore(t), opts...)})
			panics := func(header ...string) {
				t.Helper()
				if a := s.send("1", "", header...); a.status != http.StatusInternalServerError || strings.Contains(a.body, "run") {
					t.Errorf("a panic is answered with %d %q", a.status, a.body)
				}
			}
			panics(keyHeader, "k")
			if opts == nil {
				s.send("1", "", keyHeader, "k").denies(policy.OutcomeUnknown)
			} else {
				panics(keyHeader, "k")
			}
			before := c.runs
			panics(keyHeader, "clean", "X-Clean", "yes")
			panics(keyHeader, "clean", "X-Clean", "yes")
			c.ran(t, before+2)
			if before != 1+len(opts) {
				t.Errorf("the handler ran %d times", before)
			}
		}
	}},
	{"an unavailable store refuses requests", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, st), By: byUser})
		st.Break(storetest.BeginOperation, storetest.Down)
		s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.ReducedCapacity)
		c.ran(t, 0)
		st.Mend(storetest.Any)
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
	}},
	{"an unavailable store lets requests run unprotected if configured", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, Idempotency{
			Guard: newGuard(t, st), By: byUser, Options: []policy.IdempotencyOption{policy.RunUnprotected()},
		})
		st.Break(storetest.BeginOperation, storetest.Down)
		for n := range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("Idempotency-Status", "bypassed")
		}
	}},
}, keyRows(func(t *rig, by Key, hooks Hooks) Middleware {
	return Idempotency{Guard: newGuard(t, newStore(t)), By: by, Hooks: hooks}
}, keyHeader, "k")...)
