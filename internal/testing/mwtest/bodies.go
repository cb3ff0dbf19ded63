package mwtest

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// eventBody returns a body of at least this size, of which EventID returns the event.
func eventBody(event string, size int) string {
	return fmt.Sprintf(`{"event":%q,"pad":%q}`, event, strings.Repeat("x", size))
}

// answerBody is a handler that answers with the request's body.
func answerBody(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	_, _ = w.Write(body)
}

// readsBody is a function of a request that reads all of its body.
func readsBody(r *http.Request) string {
	event, _ := EventID(r)
	return event
}

// readers are middleware with functions that read bodies.
func readers(t *rig) map[string][]Middleware {
	st := newStore(t)
	limiter := newLimiter(t, st, tokenbucket.PerMinute(1000))
	inBody := Key{Kind: InBody}
	readers := map[string][]Middleware{
		"the key of a limit": {RateLimit{Limiter: limiter, By: inBody}},
		"costs": {RateLimit{Limiter: limiter, By: byHeader, Costs: func(r *http.Request) tokenbucket.Cost {
			return tokenbucket.Cost{"api": int64(len(readsBody(r)))}
		}}},
		"the scope of a guard": {Idempotency{Guard: newGuard(t, st, guard.WithMaxResult(4<<20)), By: inBody}},
		"the key of a lock":    {Exclusive{Locker: newLocker(t, st), By: inBody}},
		"the tier of a permit": {Concurrency{Semaphore: newSemaphore(t, st, 10), By: byID, Tiers: func(r *http.Request) policy.Tier {
			return policy.Tier(len(readsBody(r)) % 2)
		}}},
		"the key of a permit": {Concurrency{Semaphore: newSemaphore(t, st, 10), By: inBody}},
		"the key of a fence":  {Fenced{Checker: newChecker(t), By: inBody, Options: []policy.FencedOption{policy.AllowUnfenced()}}},
		"Unless": {RateLimit{Limiter: newLimiter(t, st, tokenbucket.PerMinute(1000)), By: byHeader, Hooks: Hooks{Skip: func(r *http.Request) bool {
			return readsBody(r) == "skipped"
		}}}},
	}
	var all []Middleware
	for _, m := range readers {
		all = append(all, m...)
	}
	readers["all of them"] = all
	return readers
}

// bodyRows are about functions that read a request's body before its handler does.
var bodyRows = []row{
	{"a function that reads the body leaves it to the handler", func(t *rig) {
		for name, middleware := range readers(t) {
			s := serve(t, answerBody, middleware...)
			for i, size := range []int{0, 10 << 10, 500 << 10} {
				body := eventBody(fmt.Sprint("event", i), size)
				a := s.send("1", body, "X-Key", "k", keyHeader, fmt.Sprintf("%d-%d", len(name), i))
				if a.status != http.StatusOK || a.body != body {
					t.Errorf("%s: %d with %d bytes of %d", name, a.status, len(a.body), len(body))
				}
			}
		}
	}},
	{"a body that a key function cannot read whole is refused", func(t *rig) {
		body := eventBody("e", 1<<20)
		for name, middleware := range readers(t) {
			s := serve(t, answerBody, middleware...)
			a := s.send("1", body, "X-Key", "k")
			switch name {
			case "costs", "Unless", "the tier of a permit", "the scope of a guard", "the key of a fence": // which do without it, or are not asked
				if a.status != http.StatusOK || a.body != body {
					t.Errorf("%s: %d with %d bytes of %d", name, a.status, len(a.body), len(body))
				}
			default:
				a.denies(policy.BodyTooLarge)
			}
		}
	}},
	{"the bodies of two requests differ although the scope has been read from them", func(t *rig) {
		s := serve(t, answerBody, Idempotency{Guard: newGuard(t, newStore(t)), By: Key{Kind: InBody}})
		s.send("1", eventBody("e", 1), keyHeader, "k").is(http.StatusOK, eventBody("e", 1))
		s.send("1", eventBody("e", 2), keyHeader, "k").denies(policy.KeyReused)
		s.send("1", eventBody("other", 2), keyHeader, "k").is(http.StatusOK, eventBody("other", 2))
	}},
	{"key and scope are read from one body", func(t *rig) {
		s := serve(t, answerBody, Idempotency{Guard: newGuard(t, newStore(t)), By: Key{Kind: InBody}, KeyFrom: Key{Kind: InBody}})
		for _, replayed := range []string{"", "true"} {
			s.send("1", eventBody("e", 1)).is(http.StatusOK, eventBody("e", 1)).has("Idempotency-Replayed", replayed)
		}
	}},
}
