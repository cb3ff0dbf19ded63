package mwtest

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// logbook keeps the log of middleware.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how often a text was logged.
func (l *logbook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (l *logbook) option() policy.Option {
	return policy.Logger(slog.New(slog.NewTextHandler(l, nil)))
}

// open has a middleware of each policy that fails open, on a store with a fault.
var open = map[string]func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware{
	"ratelimit": func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware {
		st := newStore(t)
		st.Break(storetest.TakeTokens, fault)
		return RateLimit{
			Limiter: newLimiter(t, st, apiPlan), By: byHeader,
			Options: []policy.RateLimitOption{policy.FailOpen(opts...), log},
		}
	},
	"idempotency": func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware {
		st := newStore(t)
		st.Break(storetest.BeginOperation, fault)
		return Idempotency{
			Guard: newGuard(t, st), By: byUser,
			Options: []policy.IdempotencyOption{policy.RunUnprotected(opts...), log},
		}
	},
	"exclusive": func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware {
		st := newStore(t)
		st.Break(storetest.AcquireLease, fault)
		return Exclusive{
			Locker: newLocker(t, st), By: byID,
			Options: []policy.ExclusiveOption{policy.RunUnprotected(opts...), log},
		}
	},
	"concurrency": func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware {
		st := newStore(t)
		st.Break(storetest.AcquireLease, fault)
		return Concurrency{
			Semaphore: newSemaphore(t, st, 1), By: byID,
			Options: []policy.ConcurrencyOption{policy.FailOpen(opts...), log},
		}
	},
	"fenced": func(t *rig, fault storetest.Fault, log policy.Option, opts ...policy.OpenOption) Middleware {
		c := newChecker(t)
		c.fail(map[storetest.Fault]error{
			storetest.Down: store.ErrUnavailable, storetest.Full: store.ErrFull, storetest.Misconfigured: store.ErrMisconfigured,
		}[fault])
		return Fenced{
			Checker: c, By: byID,
			Options: []policy.FencedOption{policy.RunUnprotected(opts...), log},
		}
	},
}

// sendComplete sends a request with everything that any middleware requires.
func (s server) sendComplete() answer {
	return s.send("1", "", "X-Key", "a", "X-User", "u", keyHeader, "k", fence.Header, "1")
}

const passes = "requests bypass the store"

// outageRows are about the policies for outages of the store.
var outageRows = []row{
	{"a full store and a misconfigured one are not down", func(t *rig) {
		for name, build := range open {
			for _, fault := range []storetest.Fault{storetest.Full, storetest.Misconfigured} {
				var (
					c   counter
					log logbook
				)
				s := serve(t, c.handle, build(t, fault, log.option()))
				for range 3 {
					s.sendComplete().denies(policy.ReducedCapacity)
				}
				if c.ran(t, 0); log.count(passes) > 0 {
					t.Errorf("%s, fault %d: %s", name, fault, log.text.String())
				}
			}
		}
	}},
	{"a misconfigured store lets requests pass if configured", func(t *rig) {
		for name, build := range open {
			var (
				c   counter
				log logbook
			)
			s := serve(t, c.handle, build(t, storetest.Misconfigured, log.option(), policy.EvenMisconfigured()))
			for range 3 {
				s.sendComplete()
			}
			if c.ran(t, 3); log.count(passes) != 1 {
				t.Errorf("%s: %s", name, log.text.String())
			}
			full := serve(t, c.handle, build(t, storetest.Full, log.option(), policy.EvenMisconfigured()))
			full.sendComplete().denies(policy.ReducedCapacity)
			c.ran(t, 3)
		}
	}},
	{"bypasses of the store are logged once", func(t *rig) {
		for name, build := range open {
			var (
				c   counter
				log logbook
			)
			s := serve(t, c.handle, build(t, storetest.Down, log.option()))
			for range 3 {
				if a := s.sendComplete(); a.status >= http.StatusBadRequest {
					t.Errorf("%s: %d %s", name, a.status, a.body)
				}
			}
			if c.ran(t, 3); log.count(passes) != 1 || log.count("cause=_OTHER") != 1 {
				t.Errorf("%s: %s", name, log.text.String())
			}
		}
	}},
}
