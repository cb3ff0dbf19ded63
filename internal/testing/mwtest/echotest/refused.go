package echotest

import (
	"errors"
	"net/http"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A guard does not keep refusals behind it, however the application answers the error, and keeps an
// answer that replaces one.
func refusedBehindGuard[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	declined := errors.New("declined")
	returning := v.OnDeny(func(C, policy.Denial) error { return declined })
	conflict := v.HTTPError(http.StatusConflict, "charged, but not shipped")
	for name, c := range map[string]struct {
		options []policy.RateLimitOption
		around  func(c C, next func(C) error) error
		status  int // the application's for every error; zero for the denial's
		want    int
		kept    bool
	}{
		"returned":                 {want: http.StatusTooManyRequests},
		"answered otherwise":       {status: http.StatusTeapot, want: http.StatusTeapot},
		"a hook's error":           {options: []policy.RateLimitOption{returning}, status: http.StatusTeapot, want: http.StatusTeapot},
		"wrapped":                  {status: http.StatusTeapot, want: http.StatusTeapot, around: func(c C, next func(C) error) error { return errors.Join(errors.New("wrapped"), next(c)) }},
		"answered by another":      {want: http.StatusTooManyRequests, around: func(c C, next func(C) error) error { return answer(c, v, next(c), 0) }},
		"swallowed":                {want: http.StatusCreated, kept: true, around: func(c C, next func(C) error) error { return swallow(t, c, next) }},
		"a hook's, and swallowed":  {options: []policy.RateLimitOption{returning}, want: http.StatusCreated, kept: true, around: func(c C, next func(C) error) error { return swallow(t, c, next) }},
		"swallowed for another":    {status: http.StatusConflict, want: http.StatusConflict, kept: true, around: func(c C, next func(C) error) error { _ = next(c); return conflict }},
		"swallowed, then returned": {want: http.StatusCreated, kept: true, around: func(c C, next func(C) error) error { err := next(c); _ = c.String(http.StatusCreated, ""); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := must(tokenbucket.New(newStore(t), "limit", tokenbucket.PerHour(1)))
			_ = must(limiter.Allow(t.Context(), "global"))
			use := []M{v.Idempotency(must(guard.New(newStore(t), "outer"))), v.Idempotency(must(guard.New(newStore(t), "inner")))}
			effects := 0
			if c.around != nil {
				use = append(use, v.Around(func(e C, next func(C) error) error {
					effects++
					return c.around(e, next)
				}))
			}
			runs := 0
			h := v.Serve(App[C, M]{
				Route: "/", Use: append(use, v.RateLimit(limiter, v.Global(), c.options...)),
				Handler: func(C) error { runs++; return nil },
				OnError: func(e C, err error) { _ = answer(e, v, err, c.status) },
			})
			for n := range 3 {
				w := send(h, http.MethodPost, "/", "Idempotency-Key", "k")
				if w.Code != c.want || (w.Header().Get("Idempotency-Replayed") != "") != (c.kept && n > 0) {
					t.Errorf("time %d: %d %v", n, w.Code, w.Header())
				}
				if mark := w.Header().Get("Lockkeeper-Refusal"); mark != "" {
					t.Errorf("the client gets %q", mark)
				}
			}
			if c.kept && effects != 1 {
				t.Errorf("%d effects", effects)
			}
			if err := limiter.Reset(t.Context(), "global"); err != nil {
				t.Fatal(err)
			}
			send(h, http.MethodPost, "/", "Idempotency-Key", "k")
			if (runs == 0) != c.kept {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

// answer answers an error, unless an answer was begun.
func answer[C Context, K ~func(C) (string, error), M any](c C, v Version[C, K, M], err error, status int) error {
	if d, ok := v.DenialOf(err); ok && status == 0 {
		status = d.Status()
	}
	if err != nil && !v.Committed(c) {
		return c.String(status, "answered")
	}
	return nil
}

func swallow[C Context](t *testing.T, c C, next func(C) error) error {
	if next(c) == nil {
		t.Error("it is not refused")
	}
	return c.String(http.StatusCreated, "charged")
}
