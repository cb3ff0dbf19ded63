package mwtest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// dedupeRows are about requests without a key that are sent twice. The table's twins have more.
var dedupeRows = []row{
	{"a request without a key runs once", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.Dedupe(time.Minute))
		base := []string{"X-User", "u", "Content-Type", "text/plain"}
		s.send("1", "body", base...).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "")
		for n, other := range []struct {
			id, body string
			header   []string
		}{
			{"1", "body", []string{"X-User", "v", "Content-Type", "text/plain"}},
			{"1", "body", []string{"X-User", "u", "Content-Type", "text/html"}},
			{"1", "body", append([]string{"Host", "other.example"}, base...)},
			{"1", "body", append([]string{"If-Match", `"1"`}, base...)},
			{"1", "body", append([]string{keyHeader, "k"}, base...)},
			{"1", "other", base},
			{"1", "", base},
			{"2", "body", base},
			{"1?q=1", "body", base},
		} {
			for _, replayed := range []string{"", "true"} {
				s.send(other.id, other.body, other.header...).is(http.StatusCreated, "run "+strconv.Itoa(n+2)).has("Idempotency-Replayed", replayed)
			}
		}
		s.send("1", "body", append([]string{"X-Other", "field"}, base...)...).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		s.send("1", "another", append([]string{keyHeader, "k"}, base...)...).denies(policy.KeyReused)
		s.send("1", "body", "Content-Type", "text/plain").denies(policy.InternalError) // no user
		s.send("1", "body", append([]string{keyHeader, "a b"}, base...)...).denies(policy.KeyMalformed)
	}},
	{"what the application compares bodies by counts for requests without a key", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.Dedupe(time.Minute),
			policy.Fingerprint(func(_ *http.Request, body []byte) ([]byte, error) { return body[:1], nil }))
		s.send("1", "a1", "X-User", "u").is(http.StatusCreated, "run 1")
		s.send("1", "a2", "X-User", "u").is(http.StatusCreated, "run 1")
		s.send("1", "b2", "X-User", "u").is(http.StatusCreated, "run 2")
	}},
	{"requests without a key, where another field has it", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{
			Guard: newGuard(t, newStore(t)), KeyFrom: Key{Kind: InBody}, Options: []policy.IdempotencyOption{policy.Dedupe(time.Minute)},
		})
		for range 2 {
			s.send("1", `{"id":"e"}`).is(http.StatusCreated, "run 1")
			s.send("1", `{"id":"e"}`, keyHeader, "ignored").is(http.StatusCreated, "run 1")
			s.send("1", `{"no":"id"}`).is(http.StatusCreated, "run 2")
			s.send("1", `{"no":"key"}`).is(http.StatusCreated, "run 3")
		}
	}},
	{"bounds of bodies hold for requests without a key", func(t *rig) {
		var c counter
		s := orders(t, c.handle, policy.Dedupe(time.Minute), policy.MaxBody(10))
		s.send("1", "0123456789A", "X-User", "u").denies(policy.BodyTooLarge)
		s.request(http.MethodGet, "1", "0123456789A").is(http.StatusCreated, "run 1") // not guarded
	}},
	{"an unavailable store refuses requests without a key", func(t *rig) {
		for _, opts := range [][]policy.IdempotencyOption{nil, {policy.RunUnprotected()}} {
			st := newStore(t)
			st.Break(storetest.BeginOperation, storetest.Down)
			var c counter
			s := serve(t, c.handle, Idempotency{Guard: newGuard(t, st), Options: append(opts, policy.Dedupe(time.Minute))})
			if opts == nil {
				s.send("1", "").denies(policy.ReducedCapacity)
			} else {
				s.send("1", "").is(http.StatusCreated, "run 1").has("Idempotency-Status", "bypassed")
			}
			c.ran(t, len(opts))
		}
	}},
	timedRow("the window, below and above the lease", func(t *rig) {
		for _, window := range []time.Duration{time.Second, 30 * time.Second, time.Hour} {
			s := serveLocal(t, nil, Idempotency{
				Guard: newGuard(t, newStore(t)), Options: []policy.IdempotencyOption{policy.Dedupe(window)},
			})
			send := func(replayed string, header ...string) {
				t.Helper()
				s.send(t.Context(), "1", header...).is(http.StatusOK, "done").has("Idempotency-Replayed", replayed)
			}
			send("", "X-Take", "2m") // longer than lease and window: its record is there as long as it runs
			for range 2 {
				<-time.After(window/2 - time.Millisecond)
				send("true")
			}
			<-time.After(2 * time.Millisecond)
			send("")
			s.runs.ran(t, 2)
		}
	}),
	timedRow("how long a second click waits", func(t *rig) {
		for wait, opts := range map[time.Duration][]policy.IdempotencyOption{
			10 * time.Second: {policy.Dedupe(time.Second)},
			time.Minute:      {policy.Dedupe(time.Second), policy.Wait(time.Minute)},
		} {
			s := serveLocal(t, nil, Idempotency{Guard: newGuard(t, newStore(t)), Options: opts})
			first := s.later(t.Context(), "X-Take", (wait - time.Second).String())
			s.send(t.Context(), "1").is(http.StatusOK, "done").has("Idempotency-Replayed", "true")
			<-first
			<-time.After(time.Minute)
			first = s.later(t.Context(), "X-Take", (wait + time.Second).String())
			began := time.Now()
			s.send(t.Context(), "1").denies(policy.InFlight)
			if waited := time.Since(began); waited != wait {
				t.Errorf("waited %v, want %v", waited, wait)
			}
			<-first
			s.runs.ran(t, 2)
		}
	}),
	timedRow("a panic blocks requests without a key for as long as a lease", func(t *rig) {
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Panic") != "" {
				panic(http.ErrAbortHandler)
			}
		}, Idempotency{Guard: newGuard(t, newStore(t)), Options: []policy.IdempotencyOption{policy.Dedupe(5 * time.Second)}})
		if a := s.send(t.Context(), "1", "X-Panic", "yes"); a.status != http.StatusInternalServerError {
			t.Errorf("%d", a.status)
		}
		<-time.After(30*time.Second - time.Millisecond)
		s.send(t.Context(), "1").denies(policy.OutcomeUnknown)
		<-time.After(2 * time.Millisecond)
		s.send(t.Context(), "1").is(http.StatusOK, "done")
		s.runs.ran(t, 2)
	}),
	timedRow("a process that dies blocks requests without a key until its lease ends", func(t *rig) {
		st := newStore(t)
		st.Break(storetest.RenewOperations, storetest.Down) // as if dead
		s := serveLocal(t, nil, Idempotency{
			Guard: newGuard(t, st, guard.WithTTL(time.Minute)), Options: []policy.IdempotencyOption{policy.Dedupe(time.Second)},
		})
		first := s.later(t.Context(), "X-Take", "10m")
		<-time.After(49 * time.Second)
		s.send(t.Context(), "1").denies(policy.InFlight) // it has waited for 10 s
		<-time.After(2 * time.Second)
		s.send(t.Context(), "1").is(http.StatusOK, "done").has("Idempotency-Replayed", "")
		<-first
		s.runs.ran(t, 2)
	}),
	timedRow("a handler can forget that it was asked", func(t *rig) {
		s := serveLocal(t, func(_ http.ResponseWriter, r *http.Request) {
			attempt, _ := guard.FromContext(r.Context())
			attempt.Forget()
		}, Idempotency{Guard: newGuard(t, newStore(t)), Options: []policy.IdempotencyOption{policy.Dedupe(time.Minute)}})
		for range 2 {
			s.send(t.Context(), "1").is(http.StatusOK, "done").has("Idempotency-Replayed", "")
			<-time.After(2 * time.Millisecond)
		}
		s.runs.ran(t, 2)
	}),
}
