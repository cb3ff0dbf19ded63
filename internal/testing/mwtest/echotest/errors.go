package echotest

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// secret is in internal errors, and must not be in answers.
const secret = "do-not-reveal"

// refusal is a request that a middleware refuses, and why.
type refusal[M any] struct {
	middleware M
	header     []string
	reason     policy.Reason
	err        error // what errors.Is finds; nil for nothing
}

// refusals are requests that each of the middleware refuses.
func refusals[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) map[string]refusal[M] {
	up, down := newStore(t), newStore(t)
	down.Break(storetest.Any, storetest.Down)
	limiter := func(st store.Store) *tokenbucket.Limiter {
		return must(tokenbucket.New(st, "limit", tokenbucket.PerHour(1)))
	}
	orders := func(st store.Store) *guard.Guard { return must(guard.New(st, "orders")) }
	carts := func(st store.Store) *lock.Locker { return must(lock.New(st, "carts")) }
	reports := func(st store.Store) *semaphore.Semaphore { return must(semaphore.New(st, "reports", 1)) }

	empty, held, full := limiter(up), carts(up), reports(up)
	must(empty.Allow(t.Context(), "global"))
	lease, permit := must(held.Lock(t.Context(), "global")), must(full.Acquire(t.Context(), "global"))
	t.Cleanup(func() { _, _ = lease.Unlock(t.Context()), permit.Release(t.Context()) })
	errKey := errors.New(secret)
	failing := K(func(C) (string, error) { return "", errKey })
	unsent := K(func(C) (string, error) { return "", policy.ErrNoKey })
	withKey := []string{"Idempotency-Key", "k"}
	return map[string]refusal[M]{
		"over the limit":        {v.RateLimit(empty, v.Global()), nil, policy.QuotaExceeded, nil},
		"no idempotency key":    {v.Idempotency(orders(up), policy.Required()), nil, policy.KeyMissing, nil},
		"locked":                {v.Exclusive(held, v.Global()), nil, policy.Locked, nil},
		"too many at once":      {v.Concurrency(full, v.Global()), nil, policy.TooManyAtOnce, nil},
		"no key":                {v.RateLimit(empty, unsent), nil, policy.KeyMissing, policy.ErrNoKey},
		"a key that fails":      {v.Exclusive(held, failing), nil, policy.InternalError, errKey},
		"no limit in an outage": {v.RateLimit(limiter(down), v.Global()), nil, policy.ReducedCapacity, store.ErrUnavailable},
		"no guard in an outage": {v.Idempotency(orders(down)), withKey, policy.ReducedCapacity, store.ErrUnavailable},
		"no lock in an outage":  {v.Exclusive(carts(down), v.Global()), nil, policy.ReducedCapacity, store.ErrUnavailable},
		"no room in an outage":  {v.Concurrency(reports(down), v.Global()), nil, policy.ReducedCapacity, store.ErrUnavailable},
	}
}

// unreachable is a handler that must not run.
func unreachable[C Context](t *testing.T) func(C) error {
	return func(C) error {
		t.Error("the handler ran")
		return nil
	}
}

// recorder is an HTTPErrorHandler that records its errors, and answers with their text.
type recorder[C Context] struct {
	got   []error
	reply func(C, error)
}

func (r *recorder[C]) handle(c C, err error) {
	r.got = append(r.got, err)
	r.reply(c, err)
}

// The application's handler gets a denial, once, with everything it needs.
func denials[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for name, refused := range refusals(t, v) {
		t.Run(name, func(t *testing.T) {
			application := &recorder[C]{reply: func(c C, err error) {
				d, _ := v.DenialOf(err)
				_ = c.String(d.Status(), "denied: "+string(d.Reason))
			}}
			w := send(v.Serve(App[C, M]{
				Route: "/", Handler: unreachable[C](t), Use: []M{refused.middleware}, OnError: application.handle,
			}), http.MethodPost, "/", refused.header...)

			if len(application.got) != 1 {
				t.Fatalf("the handler of errors ran %d times: %v", len(application.got), application.got)
			}
			err := application.got[0]
			d, ok := v.DenialOf(err)
			if !ok || d.Reason != refused.reason {
				t.Errorf("the denial is %+v, %v, want %s", d, ok, refused.reason)
			}
			if wrapped, _ := v.DenialOf(fmt.Errorf("wrapped: %w", err)); wrapped.Reason != refused.reason {
				t.Errorf("wrapped, the denial is %+v", wrapped)
			}
			if refused.err != nil && !errors.Is(err, refused.err) {
				t.Errorf("%v is not %v", err, refused.err)
			}
			if d.Err != nil { // a handler may show the text of an error, and of one that wraps it
				text := fmt.Errorf("wrapped: %w", err).Error()
				if strings.Contains(text, d.Err.Error()) || strings.Contains(text, "storetest") {
					t.Errorf("the text reveals the error behind the denial: %s", text)
				}
			}
			if got := errors.Is(err, store.ErrUnavailable); got != (refused.reason == policy.ReducedCapacity) {
				t.Errorf("that %v is an outage: %v", err, got)
			}
			if want := "denied: " + string(refused.reason); w.Code != d.Status() || w.Body.String() != want {
				t.Errorf("%d %q, want %q", w.Code, w.Body, want)
			}
			if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
				t.Errorf("the application's answer is called %q", got)
			}
			if retry := w.Header().Get("Retry-After"); (retry == "") != (d.RetryAfter == 0) {
				t.Errorf("Retry-After is %q, of %v", retry, d.RetryAfter)
			}
		})
	}
	t.Run("another error is no denial", func(t *testing.T) {
		if d, ok := v.DenialOf(v.HTTPError(http.StatusTooManyRequests, "slow down")); ok {
			t.Errorf("%+v", d)
		}
	})
}

// Echo's own handler answers with a problem, and does not reveal internal errors, even if it is set
// to show errors.
func defaultHandler[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for name, refused := range refusals(t, v) {
		h := v.Serve(App[C, M]{Route: "/", Handler: unreachable[C](t), Use: []M{refused.middleware}})
		want := policy.Denial{Reason: refused.reason}
		t.Run(name, func(t *testing.T) {
			w := send(h, http.MethodPost, "/", refused.header...)
			if w.Code != want.Status() || !strings.Contains(w.Body.String(), want.Type()) {
				t.Errorf("%d %s, want %s", w.Code, w.Body, refused.reason)
			}
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("a problem of type %q", got)
			}
			if refused.err != nil && (strings.Contains(w.Body.String(), refused.err.Error()) || strings.Contains(w.Body.String(), "storetest")) {
				t.Errorf("the body reveals the error: %s", w.Body)
			}
		})
		t.Run(name+", HEAD", func(t *testing.T) {
			if refused.reason == policy.KeyMissing || len(refused.header) > 0 {
				t.Skip("a guard lets HEAD pass")
			}
			w := send(h, http.MethodHead, "/")
			if w.Code != want.Status() || w.Body.Len() > 0 || w.Header().Get("Content-Type") != "" {
				t.Errorf("%d %s as %q, want no body", w.Code, w.Body, w.Header().Get("Content-Type"))
			}
		})
	}
}

// The application answers an error of the handler, once, whatever middleware is before it. A guard
// keeps that answer.
func errorsOfHandlers[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	st := newStore(t)
	limit := v.RateLimit(must(tokenbucket.New(st, "limit", tokenbucket.PerHour(100))), v.Global())
	once := v.Idempotency(must(guard.New(st, "orders")))
	oneAtATime := v.Exclusive(must(lock.New(st, "carts")), v.Global())
	charged := must(tokenbucket.New(st, "charged", tokenbucket.PerDay(10)))
	byStatus := v.RateLimit(charged, v.Global(), policy.ChargeStatus(http.StatusPaymentRequired))
	aFew := v.Concurrency(must(semaphore.New(st, "reports", 10)), v.Global())
	for name, c := range map[string]struct {
		use  []M
		runs int // of two requests
	}{
		"ratelimit":   {use: []M{limit}, runs: 2},
		"by status":   {use: []M{byStatus}, runs: 2},
		"idempotency": {use: []M{once}, runs: 1},
		"exclusive":   {use: []M{oneAtATime}, runs: 2},
		"concurrency": {use: []M{aFew}, runs: 2},
		"all":         {use: []M{limit, once, oneAtATime, aFew}, runs: 1},
		"two guards":  {use: []M{once, v.Idempotency(must(guard.New(st, "inner")))}, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			application := &recorder[C]{reply: func(c C, err error) { _ = c.JSON(http.StatusPaymentRequired, err.Error()) }}
			declined := errors.New("declined")
			h := v.Serve(App[C, M]{Route: "/", Handler: func(C) error { return declined }, Use: c.use, OnError: application.handle})
			for n := range 2 {
				w := send(h, http.MethodPost, "/", "Idempotency-Key", strconv.Quote(name))
				if w.Code != http.StatusPaymentRequired || w.Body.String() != "\"declined\"\n" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
				if got := w.Header().Get("Idempotency-Replayed"); (got != "") != (n == 1 && c.runs == 1) {
					t.Errorf("request %d is replayed: %q", n+1, got)
				}
			}
			if len(application.got) != c.runs {
				t.Errorf("the handler of errors ran %d times, want %d", len(application.got), c.runs)
			}
			for _, err := range application.got {
				if !errors.Is(err, declined) {
					t.Errorf("it got %v", err)
				}
			}
		})
	}
	if d := must(charged.Peek(t.Context(), "global")); d.Limits()[0].Remaining != 8 {
		t.Errorf("%+v: the status of an error's answer is not charged", d.Limits())
	}
	t.Run("after an answer", func(t *testing.T) {
		h := v.Serve(App[C, M]{Route: "/", Use: []M{once}, Handler: func(c C) error {
			_ = c.String(http.StatusCreated, "done")
			return errors.New(secret)
		}})
		for range 2 {
			if w := send(h, http.MethodPost, "/", "Idempotency-Key", "after"); w.Code != http.StatusCreated || w.Body.String() != "done" {
				t.Errorf("%d %q, want what the handler answered", w.Code, w.Body)
			}
		}
	})
}

// Echo's Gzip keeps the answer back until its body is long enough, or has ended. The status is known
// before.
func compressed[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for name, body := range map[string]string{"short": "wrong", "long": strings.Repeat("wrong ", 1000)} {
		t.Run(name, func(t *testing.T) {
			limiter := must(tokenbucket.New(newStore(t), "login", tokenbucket.PerDay(3)))
			use := []M{v.Gzip(1000), v.RateLimit(limiter, v.Global(), policy.ChargeStatus(http.StatusUnauthorized))}
			for _, status := range []int{http.StatusUnauthorized, http.StatusOK, http.StatusUnauthorized, http.StatusUnauthorized} {
				h := v.Serve(App[C, M]{Route: "/", Use: use, Handler: func(c C) error { return c.String(status, body) }})
				if w := send(h, http.MethodPost, "/", "Accept-Encoding", "gzip"); w.Code != status || (w.Header().Get("Content-Encoding") == "gzip") != (name == "long") {
					t.Errorf("%d %v", w.Code, w.Header())
				}
			}
			if n := must(limiter.Peek(t.Context(), "global")).Limits()[0].Remaining; n != 0 {
				t.Errorf("%d tokens are left after three failures", n)
			}
		})
	}
}

// An application may answer with the problem in another body, which is then not called a
// problem.
func ownHandler[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for name, refused := range refusals(t, v) {
		t.Run(name, func(t *testing.T) {
			w := send(v.Serve(App[C, M]{Route: "/", Handler: unreachable[C](t), Use: []M{refused.middleware}, OnError: func(c C, err error) {
				d, _ := v.DenialOf(err)
				_ = c.JSON(http.StatusTeapot, map[string]any{"denial": d})
			}}), http.MethodPost, "/", refused.header...)
			want := policy.Denial{Reason: refused.reason}
			if w.Code != http.StatusTeapot || !strings.Contains(w.Body.String(), want.Type()) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "application/json") {
				t.Errorf("it is called %q", got)
			}
		})
	}
}

// An error that is not returned goes to OnError, or else to the application's log, and not to its
// handler of errors.
func notReturned[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	failing := K(func(C) (string, error) { return "", errors.New(secret) })
	limiter := must(tokenbucket.New(newStore(t), "limit", tokenbucket.PerHour(1)))
	deny := v.OnDeny(func(c C, d policy.Denial) error { return c.String(d.Status(), "denied") })
	var reported []error
	for name, c := range map[string]struct {
		options []policy.RateLimitOption
		reports int
	}{
		"log":     {[]policy.RateLimitOption{deny}, 0},
		"OnError": {[]policy.RateLimitOption{deny, v.OnError(func(_ C, err error) { reported = append(reported, err) })}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			reported = nil
			w := send(v.Serve(App[C, M]{
				Route: "/", Handler: unreachable[C](t), Use: []M{v.RateLimit(limiter, failing, c.options...)}, Log: &log,
				OnError: func(_ C, err error) { t.Errorf("the handler of errors got %v", err) },
			}), http.MethodGet, "/")
			if w.Code != http.StatusInternalServerError || w.Body.String() != "denied" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if len(reported) != c.reports || strings.Contains(log.String(), secret) != (c.reports == 0) {
				t.Errorf("OnError got %v, and the log %q", reported, &log)
			}
		})
	}
}
