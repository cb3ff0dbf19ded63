package fibermw_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/fenced"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
)

// anyFence accepts all fences.
type anyFence struct{}

func (anyFence) Check(context.Context, string, fence.Token) error { return nil }

// policies are the middleware of every policy.
func policies(t *testing.T, st store.Store, by fibermw.KeyFunc, report fibermw.Option) map[string]fiber.Handler {
	carts, reports := must(lock.New(st, "carts")), must(semaphore.New(st, "reports", 1))
	t.Cleanup(func() { _, _ = carts.Close(), reports.Close() })
	return map[string]fiber.Handler{
		"ratelimit":   ratelimit.New(must(tokenbucket.New(st, "api", tokenbucket.PerHour(1))), by, report),
		"idempotency": idempotency.New(must(guard.New(st, "orders")), fibermw.ScopeBy(by), report),
		"exclusive":   exclusive.New(carts, by, report),
		"concurrency": concurrency.New(reports, by, report),
		"fenced":      fenced.New(anyFence{}, by, report),
	}
}

// A failure of the store, or of a key function, is reported, and a denial is not. Neither is an error
// of fiber's. After the middleware, fiber's context has its former context.
func TestFailuresAreReported(t *testing.T) {
	errKey := errors.New("no directory")
	failing := func(fiber.Ctx) (string, error) { return "", errKey }
	down := storetest.NewFaulty(newStore(t))
	down.Break(storetest.Any, storetest.Down)
	type key struct{}
	for name, c := range map[string]struct {
		st     store.Store
		by     fibermw.KeyFunc
		status int
		want   error
	}{
		"allowed":       {newStore(t), fibermw.Global(), http.StatusCreated, nil},
		"no key":        {newStore(t), fibermw.ByHeader("X-None"), http.StatusBadRequest, nil},
		"not provided":  {newStore(t), fibermw.ByParam("none"), http.StatusInternalServerError, policy.ErrNotProvided},
		"a failing key": {newStore(t), failing, http.StatusInternalServerError, errKey},
		"an outage":     {down, fibermw.Global(), http.StatusServiceUnavailable, store.ErrUnavailable},
	} {
		var reported []error
		report := fibermw.OnError(func(_ fiber.Ctx, err error) { reported = append(reported, err) })
		for policy, m := range policies(t, c.st, c.by, report) {
			if policy == "fenced" && c.st == store.Store(down) {
				continue // its store is another one
			}
			t.Run(policy+", "+name, func(t *testing.T) {
				reported = nil
				app := fiber.New()
				app.Post("/", func(f fiber.Ctx) error {
					before := context.WithValue(f.Context(), key{}, "value")
					f.SetContext(before)
					err := f.Next()
					if err != nil || f.Context() != before {
						t.Errorf("%v, or another context", err)
					}
					if want := c.want; (len(reported) > 0) != (want != nil) || want != nil && !errors.Is(reported[0], want) {
						t.Errorf("errors %v, want %v", reported, want)
					}
					return err
				}, m, func(f fiber.Ctx) error {
					if f.Context().Value(key{}) != "value" {
						t.Error("the handler's context lacks the values of the request's")
					}
					return f.SendStatus(http.StatusCreated)
				})
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
				r.Header.Set("Idempotency-Key", "k")
				r.Header.Set(fence.Header, "1")
				if resp := must(app.Test(r)); resp.StatusCode != c.status {
					t.Error(resp.Status)
				}
			})
		}
	}
}

// A panic passes every middleware unchanged.
func TestPanicsPass(t *testing.T) {
	for name, m := range policies(t, newStore(t), fibermw.Global(), fibermw.OnError(func(fiber.Ctx, error) {})) {
		t.Run(name, func(t *testing.T) {
			var got any
			app := fiber.New()
			app.Post("/", func(c fiber.Ctx) error {
				defer func() { got = recover() }()
				return c.Next()
			}, m, func(fiber.Ctx) error { panic(http.ErrAbortHandler) })
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
			r.Header.Set("Idempotency-Key", "k")
			r.Header.Set(fence.Header, "1")
			_ = must(app.Test(r))
			if got != http.ErrAbortHandler {
				t.Errorf("panicked with %v", got)
			}
		})
	}
}

// Fields of the answer that handlers and other middleware have set stay, one by one.
func TestFieldsOfTheAnswer(t *testing.T) {
	st := newStore(t)
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Set("X-Outer", "outer")
		c.Cookie(&fiber.Cookie{Name: "outer", Value: "1"})
		return c.Next()
	}, ratelimit.New(must(tokenbucket.New(st, "api", tokenbucket.PerHour(10))), fibermw.Global()))
	app.Post("/", idempotency.New(must(guard.New(st, "orders")), fibermw.Unscoped()), func(c fiber.Ctx) error {
		c.Cookie(&fiber.Cookie{Name: "inner", Value: "2"})
		c.Append("X-Multi", "a")
		c.Response().Header.Add("X-Multi", "b")
		return c.Status(http.StatusCreated).JSON(fiber.Map{"id": 1})
	})
	for _, replayed := range []string{"", "true"} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		resp := must(app.Test(r))
		h := resp.Header
		if resp.StatusCode != http.StatusCreated || h.Get("X-Outer") != "outer" || strings.Join(h["X-Multi"], "|") != "a|b" ||
			h.Get("Content-Type") != "application/json; charset=utf-8" || h.Get("RateLimit") == "" || h.Get("Idempotency-Replayed") != replayed {
			t.Errorf("%s %v", resp.Status, h)
		}
		cookies := map[bool]int{true: 2, false: 1} // those of a handler are not replayed
		if len(resp.Cookies()) != cookies[replayed == ""] {
			t.Errorf("cookies %v", resp.Cookies())
		}
	}
}
