package echomw_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/concurrency"
	"github.com/lockkeeper/lockkeeper/echomw/exclusive"
	"github.com/lockkeeper/lockkeeper/echomw/idempotency"
	"github.com/lockkeeper/lockkeeper/echomw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/echotest"
)

// serve returns the handler of an application.
func serve(a echotest.App[echo.Context, echo.MiddlewareFunc]) http.Handler {
	e := echo.New()
	e.Debug = true
	if a.OnError != nil {
		e.HTTPErrorHandler = func(err error, c echo.Context) { a.OnError(c, err) }
	}
	if a.Log != nil {
		e.Logger.SetOutput(a.Log)
	}
	e.Use(a.Use...)
	e.Any(a.Route, a.Handler)
	return e
}

func TestEcho(t *testing.T) { echotest.Run(t, version()) }

func version() echotest.Version[echo.Context, echomw.KeyFunc, echo.MiddlewareFunc] {
	return echotest.Version[echo.Context, echomw.KeyFunc, echo.MiddlewareFunc]{
		Serve: serve,
		Before: func(f func(echo.Context)) echo.MiddlewareFunc {
			return func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					f(c)
					return next(c)
				}
			}
		},
		Around: func(f func(echo.Context, func(echo.Context) error) error) echo.MiddlewareFunc {
			return func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { return f(c, next) }
			}
		},
		BodyLimit: func(bytes int64) echo.MiddlewareFunc { return middleware.BodyLimit(strconv.FormatInt(bytes, 10)) },
		Gzip: func(least int) echo.MiddlewareFunc {
			return middleware.GzipWithConfig(middleware.GzipConfig{MinLength: least})
		},
		Committed: func(c echo.Context) bool { return c.Response().Committed },
		HTTPError: func(status int, message string) error { return echo.NewHTTPError(status, message) },

		ByParam: echomw.ByParam, ByRoute: echomw.ByRoute, ByContext: echomw.ByContext, Global: echomw.Global,
		Join: echomw.Join, FirstOf: echomw.FirstOf, DenialOf: echomw.DenialOf,

		RateLimit: ratelimit.New, Exclusive: exclusive.New, Concurrency: concurrency.New,
		Idempotency: func(g *guard.Guard, opts ...policy.IdempotencyOption) echo.MiddlewareFunc {
			return idempotency.New(g, echomw.Unscoped(), opts...)
		},
		OnDeny:  func(f func(echo.Context, policy.Denial) error) policy.RateLimitOption { return echomw.OnDeny(f) },
		OnError: func(f func(echo.Context, error)) policy.RateLimitOption { return echomw.OnError(f) },
	}
}

// As documented for echo v4, an application that does not know this module answers with a problem
// too.
func TestDenialIsAnHTTPError(t *testing.T) {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		var httpError *echo.HTTPError
		if errors.As(err, &httpError) {
			_ = c.JSON(httpError.Code, httpError.Message)
		}
	}
	e.GET("/", func(echo.Context) error { return nil },
		exclusive.New(must(lock.New(memstore.New(), "carts")), echomw.ByHeader("X-None")))
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	want := string(must(policy.Denial{Reason: policy.KeyMissing}.MarshalJSON()))
	if w.Code != http.StatusBadRequest || w.Header().Get("Content-Type") != "application/problem+json" || !jsonEqual(w.Body.Bytes(), want) {
		t.Errorf("%d %s as %q", w.Code, w.Body, w.Header().Get("Content-Type"))
	}
}

// jsonEqual compares JSON without its indentation.
func jsonEqual(got []byte, want string) bool {
	var compact bytes.Buffer
	return json.Compact(&compact, got) == nil && compact.String() == want
}

// A request that matches no route has no parameters. A group with middleware has its own route for
// such requests.
func TestParamWithoutARoute(t *testing.T) {
	e := echo.New()
	var errs []error
	use := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			_, err := echomw.ByParam("id")(c)
			errs = append(errs, err)
			return next(c)
		}
	}
	handler := func(echo.Context) error { return nil }
	g := e.Group("/api")
	g.Use(use)
	g.GET("/carts/:id", handler)
	g.GET("/users/:user", handler)
	g.GET("/files/*", handler)
	all := e.Group("/all/:id", use)
	all.GET("/items", handler)
	for _, c := range []struct {
		method, path string
		want         error
	}{
		{http.MethodGet, "/api/carts/42", nil}, {http.MethodGet, "/api/elsewhere", policy.ErrNoKey}, {http.MethodGet, "/api", policy.ErrNoKey},
		{http.MethodPost, "/api/carts/42", policy.ErrNoKey}, {http.MethodGet, "/api/users/7", policy.ErrNotProvided},
		{http.MethodGet, "/api/files/7", policy.ErrNotProvided}, {http.MethodGet, "/all/7/items", nil},
	} {
		errs = nil
		e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil))
		if len(errs) != 1 || !errors.Is(errs[0], c.want) {
			t.Errorf("%s %s: %v, want %v", c.method, c.path, errs, c.want)
		}
	}
}
