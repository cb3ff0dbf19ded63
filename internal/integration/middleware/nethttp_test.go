package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func TestTableOfBehaviourOfRouters(t *testing.T) {
	for name, f := range routers {
		t.Run(name, func(t *testing.T) { mwtest.Run(t, f) })
	}
}

func BenchmarkRateLimitOfRouters(b *testing.B) {
	for name, f := range routers {
		b.Run(name, func(b *testing.B) { mwtest.Benchmark(b, f) })
	}
}

// routers are routers of net/http. Package nethttp runs the table on ServeMux.
var routers = map[string]router{
	"chi":     onChi,
	"gorilla": onGorilla,
}

var (
	onServeMux = router{nethttp.ByPathValue, routeServeMux}
	onChi      = router{nethttp.ByPathValue, routeChi}
	onGorilla  = router{byVar, routeGorilla}
)

func routeChi(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.With(chain...).Method(http.MethodPost, mwtest.Path+"{id}", handler)
	r.With(chain...).Method(http.MethodGet, mwtest.Path+"{id}", handler)
	return r
}

func routeGorilla(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
	r := mux.NewRouter()
	for _, middleware := range chain {
		r.Use(middleware)
	}
	r.Handle(mwtest.Path+"{id}", handler).Methods(http.MethodPost, http.MethodGet)
	return r
}

func routeServeMux(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
	for _, middleware := range slices.Backward(chain) {
		handler = middleware(handler)
	}
	m := http.NewServeMux()
	m.Handle("POST "+mwtest.Path+"{id}", handler)
	m.Handle("GET "+mwtest.Path+"{id}", handler)
	return m
}

// byVar is the example for gorilla/mux in the documentation of ByPathValue.
func byVar(name string) nethttp.KeyFunc {
	return func(r *http.Request) (string, error) {
		value, ok := mux.Vars(r)[name]
		if !ok {
			return "", fmt.Errorf("%w: no variable %q", policy.ErrNotProvided, name)
		}
		return value, nil
	}
}

// router is a mwtest.Framework on net/http and a router.
type router struct {
	byID  func(name string) nethttp.KeyFunc
	route func(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler
}

func (r router) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	cells := netHTTP
	cells.ByParam = r.byID
	chain := []func(http.Handler) http.Handler{recovering}
	for _, m := range middleware {
		chain = append(chain, cells.Build(m))
	}
	return mwtest.WithUser(r.route(handler, chain...))
}

func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// netHTTP are the middleware of nethttp.
var netHTTP = mwtest.Cells[func(http.Handler) http.Handler, nethttp.KeyFunc, nethttp.ScopeFunc]{
	RateLimit: ratelimit.New, Idempotency: idempotency.New, Exclusive: exclusive.New, Concurrency: concurrency.New, Fenced: fenced.New,
	KeyFrom: idempotency.KeyFrom, ByHeader: nethttp.ByHeader, ByParam: nethttp.ByPathValue, ByContext: nethttp.ByContext,
	ByClientIP: nethttp.ByClientIP, Global: nethttp.Global, ScopeBy: nethttp.ScopeBy, Unscoped: nethttp.Unscoped,
	ByRequest: func(key func(*http.Request) (string, error)) nethttp.KeyFunc { return key },
	Costs:     ratelimit.Costs,
	Tiers:     concurrency.Tiers,
	Usage: func(l *tokenbucket.Limiter, key nethttp.KeyFunc, hooks []setting.HTTPOption) func(http.Handler) http.Handler {
		usage := ratelimit.Usage(l, key, mwtest.Convert[nethttp.Option](hooks)...)
		return func(http.Handler) http.Handler { return usage }
	},
	Set: func(name, field string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx := context.WithValue(r.Context(), name, r.Header.Get(field)) //nolint:staticcheck // as frameworks name their values
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}
	},
	Options: options,
}

// options returns the options for hooks.
func options(h mwtest.Hooks) (options []setting.HTTPOption) {
	if h.Skip != nil {
		options = append(options, nethttp.Unless(h.Skip))
	}
	if h.Networks != nil {
		options = append(options, nethttp.Unless(nethttp.ClientIn(clientip.Direct(), h.Networks...)))
	}
	if h.Deny != nil {
		options = append(options, nethttp.OnDeny(deny(h)))
	}
	if h.Report != nil {
		options = append(options, nethttp.OnError(func(_ *http.Request, err error) { h.Report(err) }))
	}
	return options
}

func deny(h mwtest.Hooks) func(http.ResponseWriter, *http.Request, policy.Denial) {
	return func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
		status, body := h.Deny(d)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// The result of a key function depends on whether the middleware wraps the router, before it has
// chosen a route, or the handler.
func TestKeysBeforeAndAfterRouting(t *testing.T) {
	type found struct{ id, pattern string }
	var outside, inside found
	look := func(at *found) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				at.id, _ = nethttp.ByPathValue("id")(r)
				at.pattern, _ = nethttp.ByPattern()(r)
				next.ServeHTTP(w, r)
			})
		}
	}
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, c := range map[string]struct {
		router http.Handler
		inside found
	}{
		"ServeMux": {func() http.Handler {
			m := http.NewServeMux()
			m.Handle("GET /carts/{id}", look(&inside)(handler))
			return look(&outside)(m)
		}(), found{"42", "GET /carts/{id}"}},
		"ServeMux, any method": {func() http.Handler {
			m := http.NewServeMux()
			m.Handle("/carts/{id}", look(&inside)(handler))
			return look(&outside)(m)
		}(), found{"42", "/carts/{id}"}},
		"chi": {func() http.Handler {
			r := chi.NewRouter()
			r.Use(look(&outside))
			r.With(look(&inside)).Get("/carts/{id}", handler)
			return r
		}(), found{"42", "/carts/{id}"}},
		"gorilla": {func() http.Handler {
			r := mux.NewRouter()
			r.Use(look(&inside))
			r.Handle("/carts/{id}", handler)
			return look(&outside)(r)
		}(), found{}},
	} {
		t.Run(name, func(t *testing.T) {
			outside, inside = found{"not", "called"}, found{"not", "called"}
			c.router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/carts/42", nil))
			if outside != (found{}) {
				t.Errorf("round the router: %+v, want nothing", outside)
			}
			if inside != c.inside {
				t.Errorf("round the handler: %+v, want %+v", inside, c.inside)
			}
		})
	}
}

// A custom key function, for a route variable of gorilla/mux.
func Example_gorillaMux() {
	byCart := nethttp.KeyFunc(func(r *http.Request) (string, error) { return mux.Vars(r)["id"], nil })

	routes := mux.NewRouter()
	routes.HandleFunc("/carts/{id}", func(_ http.ResponseWriter, r *http.Request) { fmt.Println(byCart(r)) })
	routes.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/carts/42", nil))
	// Output: 42 <nil>
}
