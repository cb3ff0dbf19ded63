package nethttp_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/mwtest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func TestTableOfBehaviour(t *testing.T) {
	for name, f := range frameworks {
		t.Run(name, func(t *testing.T) { mwtest.Run(t, f) })
	}
}

func BenchmarkRateLimit(b *testing.B) {
	for name, f := range frameworks {
		b.Run(name, func(b *testing.B) { mwtest.Benchmark(b, f) })
	}
}

// frameworks are net/http's routers.
var frameworks = map[string]framework{
	"ServeMux": {nethttp.ByPathValue, func(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
		m := http.NewServeMux()
		m.Handle("POST "+mwtest.Path+"{id}", wrap(handler, chain))
		m.Handle("GET "+mwtest.Path+"{id}", wrap(handler, chain))
		return m
	}},
	"chi": {nethttp.ByPathValue, func(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
		r := chi.NewRouter()
		r.With(chain...).Method(http.MethodPost, mwtest.Path+"{id}", handler)
		r.With(chain...).Method(http.MethodGet, mwtest.Path+"{id}", handler)
		return r
	}},
	"gorilla": {byVar, func(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler {
		r := mux.NewRouter()
		for _, middleware := range chain {
			r.Use(middleware)
		}
		r.Handle(mwtest.Path+"{id}", handler).Methods(http.MethodPost, http.MethodGet)
		return r
	}},
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

// wrap wraps a handler in a chain, whose first is outermost.
func wrap(handler http.Handler, chain []func(http.Handler) http.Handler) http.Handler {
	for i := len(chain) - 1; i >= 0; i-- {
		handler = chain[i](handler)
	}
	return handler
}

// framework is a mwtest.Framework on net/http and a router.
type framework struct {
	byID  func(name string) nethttp.KeyFunc
	route func(handler http.Handler, chain ...func(http.Handler) http.Handler) http.Handler
}

func (f framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	chain := []func(http.Handler) http.Handler{recovering}
	for _, m := range middleware {
		chain = append(chain, f.build(m))
	}
	return mwtest.WithUser(f.route(handler, chain...))
}

// ServeTraced implements mwtest.Traced.
func (f framework) ServeTraced(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	return otelhttp.NewHandler(f.Serve(handler, middleware...), "things", otelhttp.WithTracerProvider(provider))
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

func (f framework) build(m mwtest.Middleware) func(http.Handler) http.Handler {
	switch m := m.(type) {
	case mwtest.RateLimit:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return ratelimit.New(m.Limiter, f.key(m.By), m.Options...)
	case mwtest.Idempotency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		scope := nethttp.Unscoped()
		if m.By.Kind != mwtest.None {
			scope = nethttp.ScopeBy(f.key(m.By))
		}
		if m.KeyFrom.Kind != mwtest.None {
			m.Options = append(m.Options, idempotency.KeyFrom(f.key(m.KeyFrom)))
		}
		return idempotency.New(m.Guard, scope, m.Options...)
	case mwtest.Exclusive:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return exclusive.New(m.Locker, f.key(m.By), m.Options...)
	case mwtest.Concurrency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return concurrency.New(m.Semaphore, f.key(m.By), m.Options...)
	case mwtest.Fenced:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return fenced.New(m.Checker, f.key(m.By), m.Options...)
	}
	panic("unknown middleware")
}

// hooks returns the options for the hooks.
func hooks(h mwtest.Hooks) (options []nethttp.Option) {
	if h.Skip != nil {
		options = append(options, nethttp.Unless(h.Skip))
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

func (f framework) key(k mwtest.Key) nethttp.KeyFunc {
	switch k.Kind {
	case mwtest.ByHeader:
		return nethttp.ByHeader(k.Name)
	case mwtest.ByID:
		return f.byID(k.Name)
	case mwtest.ByContext:
		return nethttp.ByContext(k.ContextKey())
	case mwtest.ByClientIP:
		return nethttp.ByClientIP(clientip.Direct())
	case mwtest.Global:
		return nethttp.Global()
	case mwtest.InBody:
		return mwtest.EventID
	default:
		return func(*http.Request) (string, error) { return "", k.Err }
	}
}
