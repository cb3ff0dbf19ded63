package mwtest

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// retained is a guard, and the ID of the operation that its handler has run last.
type retained struct {
	t     *rig
	guard *guard.Guard
	id    string
}

func newRetained(t *rig) *retained { return &retained{t: t, guard: newGuard(t, newStore(t))} }

// attempt returns the attempt of a request.
func (k *retained) attempt(r *http.Request) *guard.Attempt {
	attempt, ok := guard.FromContext(r.Context())
	if !ok {
		k.t.Error("the request has no attempt")
		panic(http.ErrAbortHandler)
	}
	k.id = attempt.OperationID()
	return attempt
}

func (k *retained) record() guard.Record {
	k.t.Helper()
	record, err := k.guard.InspectID(k.t.Context(), k.id)
	if err != nil {
		k.t.Fatal(err)
	}
	return record
}

// lasts checks how long the record is kept.
func (k *retained) lasts(want time.Duration) {
	k.t.Helper()
	if got := k.record().Expires; got > want || got < want-time.Minute {
		k.t.Errorf("it is kept for %v, want %v", got, want)
	}
}

// keptRows are about what is kept of an answer, and for how long.
var keptRows = []row{
	{"a route has its own retention", func(t *rig) {
		for _, own := range []time.Duration{0, 30 * time.Minute, 72 * time.Hour} {
			var (
				c    counter
				opts []policy.IdempotencyOption
				want = 24 * time.Hour
			)
			if own != 0 {
				opts, want = append(opts, policy.Retention(own)), own
			}
			k := newRetained(t)
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				k.attempt(r)
				c.handle(w, r)
			}, Idempotency{Guard: k.guard, By: byUser, Options: opts})
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
			k.lasts(want)
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		}
	}},
	{"a retention below the lease is refused", func(t *rig) {
		defer func() {
			if text, _ := recover().(string); !strings.HasPrefix(text, "idempotency: New: policy.Retention (29s) is less than the lease") {
				t.Errorf("it panicked with %q", text)
			}
		}()
		t.framework.Serve(func(http.ResponseWriter, *http.Request) {}, Idempotency{
			Guard: newGuard(t, newStore(t)), By: byUser, Options: []policy.IdempotencyOption{policy.Retention(29 * time.Second)},
		})
	}},
	{"a handler says how long its answer is kept", func(t *rig) {
		var c counter
		k := newRetained(t)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			k.attempt(r).Keep(48 * time.Hour)
			c.handle(w, r)
		}, Idempotency{Guard: k.guard, By: byUser, Options: []policy.IdempotencyOption{policy.Retention(time.Hour)}})
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		k.lasts(48 * time.Hour)
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
	}},
	{"a handler has its answer forgotten", func(t *rig) {
		var c counter
		k := newRetained(t)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			k.attempt(r).Forget()
			c.handle(w, r)
		}, Idempotency{Guard: k.guard, By: byUser})
		for n := range 2 {
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("Idempotency-Replayed", "")
			for end := time.Now().Add(t.patience); ; <-time.After(time.Millisecond) {
				_, err := k.guard.InspectID(t.Context(), k.id)
				if errors.Is(err, guard.ErrNoRecord) {
					break
				}
				if err != nil || time.Now().After(end) {
					t.Fatalf("the record stays: %v", err)
				}
			}
		}
		c.ran(t, 2)
	}},
	{"chosen header fields are kept", func(t *rig) {
		answer := func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range map[string]string{
				"X-Run": "1", "X-Secret": "s", "X-Other": "o", "Location": "/orders/1", "Content-Type": "text/csv", "Content-Language": "en",
			} {
				w.Header().Set(name, value)
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "a,b")
		}
		all := []string{"Content-Language", "Content-Type", "Location", "X-Other", "X-Run", "X-Secret"}
		for want, opts := range map[string][]policy.IdempotencyOption{
			"Content-Language Content-Type Location X-Other X-Run X-Secret": nil,
			"Content-Type Location X-Run":                                   {policy.KeepHeaders("x-run")},
			"Content-Language Content-Type Location X-Other X-Run":          {policy.DropHeaders("x-secret")},
			"Content-Type X-Run":                                            {policy.KeepHeaders("X-Run", "X-Secret"), policy.DropHeaders("X-Secret", "Location")},
		} {
			s := orders(t, answer, opts...)
			for _, replayed := range []string{"", "true"} {
				a := s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "a,b").has("Idempotency-Replayed", replayed)
				var got []string
				for _, name := range all {
					if a.header.Get(name) != "" {
						got = append(got, name)
					}
				}
				if text := strings.Join(got, " "); replayed == "" && len(got) != len(all) || replayed != "" && text != want {
					t.Errorf("replayed %q: it has %s, want %s", replayed, text, want)
				}
			}
		}
	}},
	{"an operator answers for an attempt that died", func(t *rig) {
		k := newRetained(t)
		s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if err := k.attempt(r).CompleteUnknown(r.Context()); err != nil {
				t.Error(err)
			}
		}, Idempotency{Guard: k.guard, By: byUser})
		s.send("1", "", "X-User", "u", keyHeader, "k")
		s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.OutcomeUnknown)
		found := httpmw.Answer(http.StatusCreated, http.Header{
			"Content-Type": {"text/csv"}, "x-run": {"1", "2"}, "Set-Cookie": {"a=b"}, "Date": {"then"},
		}, []byte("a,b"))
		if err := k.guard.Resolve(t.Context(), k.record(), guard.Happened(found), "on-call", "receipt found"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a := s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "a,b").has("Idempotency-Replayed", "true")
			a.has("Content-Type", "text/csv").has("Set-Cookie", "")
			if runs := strings.Join(a.header["X-Run"], " "); runs != "1 2" || a.header.Get("Date") == "then" {
				t.Errorf("the header is %v", a.header)
			}
		}
		s.send("1", "other", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
	}},
}
