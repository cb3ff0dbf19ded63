package mwtest

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// logs checks that a text was logged once, and no other.
func logs(t *rig, j *Journal, text string) {
	t.Helper()
	logged := j.Records(t)
	if len(logged) != 1 || !strings.Contains(logged[0]["msg"].(string), text) || logged[0]["mechanism"] != "idempotency" {
		t.Errorf("logged %v, want once %q", logged, text)
	}
}

// twice is a middleware in two chains that hold it twice: with two keys, and with one.
type twice struct {
	outer, inner Middleware
	both         func(*slog.Logger) Middleware
}

// orderRows are about mistakes in the order of middleware.
var orderRows = []row{
	{"the same guard twice is refused", func(t *rig) {
		var j Journal
		var c counter
		orders := Idempotency{Guard: newGuard(t, newStore(t)), By: byUser, Options: []policy.IdempotencyOption{policy.Logger(j.Logger())}}
		s := serve(t, c.handle, orders, orders)
		for n := range 3 {
			s.send("1", "", "X-User", "u", keyHeader, strconv.Itoa(n)).denies(policy.InternalError)
		}
		c.ran(t, 0)
		logs(t, &j, "twice")
		s.send("1", "", "X-User", "u").is(http.StatusCreated, "run 1") // nothing guards it
	}},
	{"the same limiter or semaphore twice with one key is refused", func(t *rig) {
		st := newStore(t)
		for name, m := range map[string]twice{
			"rate_limit": func() twice {
				l := newLimiter(t, st, tokenbucket.PerMinute(100))
				of := func(by Key, opts ...policy.RateLimitOption) Middleware {
					return RateLimit{Limiter: l, By: by, Options: opts}
				}
				return twice{of(byHeader), of(byID), func(log *slog.Logger) Middleware { return of(byID, policy.Logger(log)) }}
			}(),
			"semaphore": func() twice {
				s := newSemaphore(t, st, 1)
				of := func(by Key, opts ...policy.ConcurrencyOption) Middleware {
					return Concurrency{Semaphore: s, By: by, Options: opts}
				}
				return twice{of(byHeader), of(byID), func(log *slog.Logger) Middleware { return of(byID, policy.Logger(log)) }}
			}(),
		} {
			var c counter
			serve(t, c.handle, m.outer, m.inner).send("1", "", "X-Key", "other").is(http.StatusCreated, "run 1")
			var j Journal
			both := m.both(j.Logger())
			s := serve(t, c.handle, both, both)
			for _, id := range []string{"2", "3"} { // a permit is released behind the answer
				s.send(id, "").denies(policy.InternalError)
			}
			c.ran(t, 1)
			if logged := j.Records(t); len(logged) != 1 || !strings.Contains(logged[0]["msg"].(string), "twice") || logged[0]["mechanism"] != name {
				t.Errorf("%s logged %v", name, logged)
			}
			serve(t, c.handle, both).send("4", "").is(http.StatusCreated, "run 2")
		}
	}},
	{"a shadow twice refuses nothing", func(t *rig) {
		var c counter
		l := RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerMinute(1)), By: byID, Options: []policy.RateLimitOption{policy.Shadow()}}
		s := serve(t, c.handle, l, l)
		for n := range 3 {
			s.send("1", "").is(http.StatusCreated, fmt.Sprint("run ", n+1))
		}
	}},
	{"two guards are logged", func(t *rig) {
		var j Journal
		var c counter
		store := newStore(t)
		log := []policy.IdempotencyOption{policy.Logger(j.Logger())}
		s := serve(t, c.handle,
			Idempotency{Guard: newGuard(t, store), By: byUser, Options: log}, Idempotency{Guard: must(guard.New(store, "payments")), By: byUser, Options: log})
		for n := range 3 {
			for range 2 {
				s.send("1", "", "X-User", "u", keyHeader, strconv.Itoa(n)).is(http.StatusCreated, "run "+strconv.Itoa(n+1))
			}
		}
		logs(t, &j, "two guards")
	}},
	{"a lock in front of idempotency is logged", func(t *rig) {
		inFront(t, Exclusive{Locker: newLocker(t, newStore(t)), By: byID}, "in front of idempotency")
	}},
	{"a permit in front of idempotency is logged", func(t *rig) {
		inFront(t, Concurrency{Semaphore: newSemaphore(t, newStore(t), 10), By: byID}, "in front of idempotency")
	}},
	{"a permit that protects the server stands in front of idempotency", func(t *rig) {
		inFront(t, Concurrency{
			Semaphore: newSemaphore(t, newStore(t), 10), By: byID, Options: []policy.ConcurrencyOption{policy.Overload()},
		})
	}},
	{"a request within the process is independent", func(t *rig) {
		var j Journal
		var c counter
		store := newStore(t)
		log := policy.Logger(j.Logger())
		var all http.Handler
		all = t.framework.Serve(func(w http.ResponseWriter, r *http.Request) {
			if _, inner, ok := strings.Cut(r.Header.Get("X-Send"), " "); ok { // an ID, and a key
				id, key, _ := strings.Cut(inner, " ")
				sub := httptest.NewRequestWithContext(r.Context(), http.MethodPost, Path+id, nil)
				sub.Header = http.Header{"X-User": {"u"}, "X-Key": {"sub"}, keyHeader: {key}}
				if key == "" {
					sub.Header.Del(keyHeader)
				}
				all.ServeHTTP(w, sub)
				return
			}
			c.handle(w, r)
		},
			Idempotency{Guard: newGuard(t, store), By: byUser, Options: []policy.IdempotencyOption{log}},
			Exclusive{Locker: newLocker(t, store), By: byHeader, Options: []policy.ExclusiveOption{log}},
			Concurrency{Semaphore: newSemaphore(t, store, 10), By: byHeader, Options: []policy.ConcurrencyOption{log}})
		listening := httptest.NewServer(all)
		t.Cleanup(listening.Close)
		s := server{t, listening}
		for n, send := range []string{"to 2 other", "to 1 another", "to 1 ", "to 2 "} {
			s.send("1", "", "X-User", "u", "X-Key", "a", keyHeader, "k"+strconv.Itoa(n), "X-Send", send).is(http.StatusCreated, "run "+strconv.Itoa(n+1))
		}
		if logged := j.Records(t); len(logged) > 0 {
			t.Errorf("logged %v", logged)
		}
	}},
}

// inFront tests a middleware in front of idempotency: it works, and the log has this line once, or none.
func inFront(t *rig, m Middleware, line ...string) {
	t.Helper()
	var j Journal
	var c counter
	s := serve(t, c.handle, m,
		Idempotency{Guard: newGuard(t, newStore(t)), By: byUser, Options: []policy.IdempotencyOption{policy.Logger(j.Logger())}})
	for n := range 3 {
		for range 2 {
			s.send("1", "", "X-User", "u", keyHeader, strconv.Itoa(n)).is(http.StatusCreated, "run "+strconv.Itoa(n+1))
		}
	}
	if len(line) > 0 {
		logs(t, &j, line[0])
	} else if logged := j.Records(t); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
}
