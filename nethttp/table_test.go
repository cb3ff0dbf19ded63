package nethttp_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

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

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func TestTableOnStores(t *testing.T) { mwtest.RunOnServers(t, framework{}) }

func BenchmarkRateLimit(b *testing.B) { mwtest.Benchmark(b, framework{}) }

// framework is a mwtest.Framework on http.ServeMux.
type framework struct{}

func (framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	served := http.Handler(handler)
	for _, m := range slices.Backward(middleware) {
		served = cells.Build(m)(served)
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+mwtest.Path+"{id}", recovering(served))
	mux.Handle("GET "+mwtest.Path+"{id}", recovering(served))
	return mwtest.WithUser(mux)
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

// cells are the middleware of nethttp.
var cells = mwtest.Cells[func(http.Handler) http.Handler, nethttp.KeyFunc, nethttp.ScopeFunc]{
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
