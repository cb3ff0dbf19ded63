package echotest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

var errDeclined = errors.New("declined")

// rendered answers an error of a handler's; own is for all others.
func rendered[C Context](c C, err error, own func() error) error {
	if errors.Is(err, errDeclined) {
		return c.String(http.StatusPaymentRequired, "declined")
	}
	return own()
}

// Renders is middleware that renders errors that handlers return.
func Renders[C Context, K ~func(C) (string, error), M any](v Version[C, K, M]) M {
	return v.Around(func(c C, next func(C) error) error {
		err := next(c)
		return rendered(c, err, func() error { return err })
	})
}

// Ends are what ends a request as only a handler of echo's can, and more of its own kind: see
// mwtest.Natively.
func Ends[C Context, K ~func(C) (string, error), M any](v Version[C, K, M], more map[string]func(C) error) map[string]any {
	ends := map[string]func(C) error{
		"an error":               func(C) error { return errDeclined },
		"an error with a status": func(C) error { return v.HTTPError(http.StatusPaymentRequired, "declined") },
		"an error behind an answer": func(c C) error {
			_ = c.String(http.StatusOK, "done")
			return errDeclined
		},
		"an answer": func(c C) error { return c.String(http.StatusCreated, "done") },
		"the context's error": func(c C) error {
			<-c.Request().Context().Done()
			return c.Request().Context().Err()
		},
		"JSON that cannot be encoded": func(c C) error { return c.JSON(http.StatusOK, func() {}) },
	}
	maps.Copy(ends, more)
	all := make(map[string]any, len(ends))
	for name, end := range ends {
		all[name] = v.Around(func(c C, _ func(C) error) error { return end(c) })
	}
	return all
}

// chargedStatuses tests that an error in which echo's own error handler finds no status is left to
// middleware outside while that handler is in place: its status is not known, and charged. An error
// handler of the application's is called.
func chargedStatuses[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	declined := func(C) error { return errDeclined }
	wrapped := func(C) error {
		return fmt.Errorf("%w: %w", errDeclined, v.HTTPError(http.StatusPaymentRequired, "declined"))
	}
	for name, app := range map[string]App[C, M]{
		"middleware":                       {Handler: declined, Use: []M{Renders(v)}},
		"middleware, and a wrapped status": {Handler: wrapped, Use: []M{Renders(v)}},
		"an error handler": {Handler: declined, OnError: func(c C, err error) {
			_ = rendered(c, err, func() error { return c.String(http.StatusTooManyRequests, "") })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := must(tokenbucket.New(newStore(t), "logins", tokenbucket.PerHour(5)))
			app.Route = "/"
			app.Use = append(app.Use, v.RateLimit(limiter, v.Global(), policy.ChargeStatus(http.StatusPaymentRequired)))
			h, answers := v.Serve(app), map[int]int{}
			for range 50 {
				answers[send(h, http.MethodPost, "/").Code]++
			}
			if answers[http.StatusPaymentRequired] != 5 || answers[http.StatusTooManyRequests] != 45 {
				t.Errorf("%v", answers)
			}
		})
	}
}

// samples tests that an error that a handler returns is a failure to an adaptive capacity, unless
// its status is known and none of the server's.
func samples[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for name, c := range map[string]struct {
		err    error
		worked bool
	}{
		"no status":            {errDeclined, false},
		"the server's status":  {v.HTTPError(http.StatusBadGateway, "down"), false},
		"the client's status":  {v.HTTPError(http.StatusConflict, "again"), true},
		"none after an answer": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, target := range []time.Duration{time.Hour, time.Nanosecond} {
				change := tiertest.Adapts(t, target, func(sem *semaphore.Semaphore) func() {
					app := App[C, M]{Route: "/:id", Handler: func(C) error { return c.err }}
					app.Use = append(app.Use, v.Concurrency(sem, v.ByParam("id")))
					h := v.Serve(app)
					return func() { send(h, http.MethodPost, "/1") }
				})
				if target == time.Hour && change > 0 != c.worked || target < time.Hour && change >= 0 {
					t.Errorf("with a target of %v the capacity changes by %d", target, change)
				}
			}
		})
	}
}
