package echov5mw_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/concurrency"
	"github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/echotest"
)

type app = echotest.App[*echo.Context, echo.MiddlewareFunc]

// serve serves an application, on a router that is as it is configured.
func serve(router echo.RouterConfig) func(app) http.Handler {
	return func(a app) http.Handler {
		e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(router)})
		e.HTTPErrorHandler = echo.DefaultHTTPErrorHandler(true)
		if a.OnError != nil {
			e.HTTPErrorHandler = a.OnError
		}
		if a.Log != nil {
			e.Logger = slog.New(slog.NewTextHandler(a.Log, nil))
		}
		e.Use(a.Use...)
		e.Any(a.Route, a.Handler)
		return e
	}
}

func version(router echo.RouterConfig) echotest.Version[*echo.Context, echov5mw.KeyFunc, echo.MiddlewareFunc] {
	return echotest.Version[*echo.Context, echov5mw.KeyFunc, echo.MiddlewareFunc]{
		Serve: serve(router),
		Before: func(f func(*echo.Context)) echo.MiddlewareFunc {
			return func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error {
					f(c)
					return next(c)
				}
			}
		},
		Around: func(f func(*echo.Context, func(*echo.Context) error) error) echo.MiddlewareFunc {
			return func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error { return f(c, next) }
			}
		},
		BodyLimit: middleware.BodyLimit,
		Gzip: func(least int) echo.MiddlewareFunc {
			return middleware.GzipWithConfig(middleware.GzipConfig{MinLength: least})
		},
		Committed: func(c *echo.Context) bool {
			response, err := echo.UnwrapResponse(c.Response())
			return err == nil && response.Committed
		},
		HTTPError: func(status int, message string) error { return echo.NewHTTPError(status, message) },

		ByParam: echov5mw.ByParam, ByRoute: echov5mw.ByRoute, ByContext: echov5mw.ByContext, Global: echov5mw.Global,
		Join: echov5mw.Join, FirstOf: echov5mw.FirstOf, DenialOf: echov5mw.DenialOf,

		RateLimit: ratelimit.New, Exclusive: exclusive.New, Concurrency: concurrency.New,
		Idempotency: func(g *guard.Guard, opts ...policy.IdempotencyOption) echo.MiddlewareFunc {
			return idempotency.New(g, echov5mw.Unscoped(), opts...)
		},
		OnDeny:  func(f func(*echo.Context, policy.Denial) error) policy.RateLimitOption { return echov5mw.OnDeny(f) },
		OnError: func(f func(*echo.Context, error)) policy.RateLimitOption { return echov5mw.OnError(f) },
	}
}

func TestEcho(t *testing.T) { echotest.Run(t, version(echo.RouterConfig{})) }

// A router that decodes path parameters: the key is decoded once, as the handler's parameter.
func TestParamsThatTheRouterHasDecoded(t *testing.T) {
	for name, router := range map[string]echo.RouterConfig{
		"path":   {UseEscapedPathForMatching: true},
		"values": {UnescapePathParamValues: true},
	} {
		for sent, want := range map[string]string{"a-b": "a-b", "a%2Db": "a-b", "%2D%2541": "-%41", "%2D%2541/x": "-%41"} {
			t.Run(name+" "+sent, func(t *testing.T) {
				called := false
				h := serve(router)(app{Route: "/carts/:id/*", Handler: func(c *echo.Context) error {
					called = true
					if key, err := echov5mw.ByParam("id")(c); key != want || key != c.Param("id") || err != nil {
						t.Errorf("got %q, %v; want %q, and the parameter is %q", key, err, want, c.Param("id"))
					}
					return nil
				}})
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/carts/"+sent+"/", nil))
				if !called {
					t.Error("the handler did not run")
				}
			})
		}
	}
}

// The documentation of errors for echo v5.
func TestStatusCodeOfADenial(t *testing.T) {
	e := echo.New()
	var status int
	e.HTTPErrorHandler = func(_ *echo.Context, err error) { status = echo.StatusCode(err) }
	e.GET("/", func(*echo.Context) error { return nil },
		exclusive.New(must(lock.New(memstore.New(), "carts")), echov5mw.ByHeader("X-None")))
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if status != http.StatusBadRequest {
		t.Errorf("it is %d", status)
	}
}

// A request that matches no route has no parameters. A group with middleware has its own route for
// such requests.
func TestParamWithoutARoute(t *testing.T) {
	e := echo.New()
	var errs []error
	use := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			_, err := echov5mw.ByParam("id")(c)
			errs = append(errs, err)
			return next(c)
		}
	}
	handler := func(*echo.Context) error { return nil }
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

// Middleware outside decides about errors without a status while echo's own error handler is in
// place, however the application has made that.
func TestOwnErrorHandlers(t *testing.T) {
	declined := errors.New("declined")
	for name, handler := range map[string]echo.HTTPErrorHandler{
		"by default": nil, "that hides errors": echo.DefaultHTTPErrorHandler(false), "that shows them": echo.DefaultHTTPErrorHandler(true),
	} {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		limiter, err := tokenbucket.New(st, "logins", tokenbucket.PerHour(1))
		if err != nil {
			t.Fatal(err)
		}
		e := echo.New()
		if handler != nil {
			e.HTTPErrorHandler = handler
		}
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
				if err := next(c); !errors.Is(err, declined) {
					return err
				}
				return c.NoContent(http.StatusUnauthorized)
			}
		})
		e.POST("/", func(*echo.Context) error { return declined },
			ratelimit.New(limiter, echov5mw.Global(), policy.ChargeStatus(http.StatusUnauthorized)))
		for _, want := range []int{http.StatusUnauthorized, http.StatusTooManyRequests} {
			w := httptest.NewRecorder()
			if e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", http.NoBody)); w.Code != want {
				t.Errorf("%s: %d, want %d", name, w.Code, want)
			}
		}
	}
}
