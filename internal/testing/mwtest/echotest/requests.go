package echotest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// A body without a length that exceeds what echo's own limit lets pass is too large, and not broken
// off.
func bodyLimit[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	application := &recorder[C]{reply: func(c C, err error) { _ = c.JSON(http.StatusTeapot, err.Error()) }}
	h := v.Serve(App[C, M]{
		Route: "/", Handler: unreachable[C](t), OnError: application.handle,
		Use: []M{v.BodyLimit(100), v.Idempotency(must(guard.New(newStore(t), "orders")))},
	})
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(strings.Repeat("x", 101)))) // of unknown length
	r.Header.Set("Idempotency-Key", "k")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if len(application.got) != 1 {
		t.Fatalf("the handler of errors ran %d times: %v", len(application.got), application.got)
	}
	if d, _ := v.DenialOf(application.got[0]); d.Reason != policy.BodyTooLarge {
		t.Errorf("denied as %q: %v", d.Reason, application.got[0])
	}
}

// When a time-out middleware outside has returned before the handler does, echo's context is
// another request's. Nothing here may put back into it what was there.
func recycledContexts[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	store := newStore(t)
	locker := must(lock.New(store, "carts"))
	defer func() { _ = locker.Close() }()
	reports := must(semaphore.New(store, "reports", 1000))
	defer func() { _ = reports.Close() }()
	tokens := must(tokenbucket.New(store, "tokens", tokenbucket.PerDay(1000)))
	estimate := httpmw.Costs(func(C) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 2} })
	for name, middleware := range map[string]M{
		"ratelimit":   v.RateLimit(tokens, v.Global(), estimate, policy.ChargeStatus(http.StatusUnauthorized)),
		"idempotency": v.Idempotency(must(guard.New(store, "orders"))),
		"exclusive":   v.Exclusive(locker, v.Global()),
		"concurrency": v.Concurrency(reports, v.Global()),
	} {
		t.Run(name, func(t *testing.T) {
			var entered, leave, done chan struct{}
			var slow C
			reused := 0
			// other answers while the handler of the request before it returns.
			other := func(c C) error {
				request := c.Request()
				close(leave)
				<-done
				if c.Request() != request {
					t.Errorf("another request has the key %q", c.Request().Header.Get("Idempotency-Key"))
				}
				if c == slow {
					reused++
				}
				return c.String(http.StatusOK, "other")
			}
			timeout := v.Around(func(c C, next func(C) error) error {
				if c.Request().Header.Get("Idempotency-Key") == "" {
					return other(c)
				}
				slow = c
				ctx, cancel := context.WithCancel(c.Request().Context())
				defer cancel()
				c.SetRequest(c.Request().WithContext(ctx))
				go func() {
					defer close(done)
					_ = next(c)
				}()
				select {
				case <-entered:
				case <-done:
					t.Error("the handler has not run")
				}
				return nil
			})
			var log strings.Builder
			h := v.Serve(App[C, M]{Route: "/", Use: []M{timeout, middleware}, Log: &log, Handler: func(c C) error {
				leave := leave
				if r, ok := tokenbucket.FromContext(c.Request().Context()); ok {
					_ = r.Use("tokens", 1)
				}
				close(entered)
				<-leave
				return nil
			}})
			for n := range 100 {
				store.BreakNext(storetest.SettleTokens, storetest.Down, 1)
				store.BreakNext(storetest.SettleOperation, storetest.Down, 1) // which is not for another request's log
				entered, leave, done = make(chan struct{}), make(chan struct{}), make(chan struct{})
				send(h, http.MethodPost, "/", "Idempotency-Key", "k"+strconv.Itoa(n))
				if w := send(h, http.MethodPost, "/"); w.Body.String() != "other" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
			}
			if reused == 0 {
				t.Error("echo has recycled no context")
			}
			if log.Len() > 0 {
				t.Errorf("the log of another request has %s", log.String())
			}
		})
	}
}
