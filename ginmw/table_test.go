package ginmw_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	leaktest.Main(m, redistest.Redialing)
}

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func BenchmarkRateLimit(b *testing.B) { mwtest.Benchmark(b, framework{}) }

// framework is a mwtest.Framework on gin.
type framework struct{}

func (framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	return serve(gin.New(), handler, middleware)
}

// ServeTraced implements mwtest.Traced.
func (framework) ServeTraced(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	r := gin.New()
	r.Use(otelgin.Middleware("things", otelgin.WithTracerProvider(provider)))
	return serve(r, handler, middleware)
}

func serve(r *gin.Engine, handler http.HandlerFunc, middleware []mwtest.Middleware) http.Handler {
	r.Use(func(c *gin.Context) {
		defer func() {
			if recover() != nil {
				c.AbortWithStatus(http.StatusInternalServerError)
			}
		}()
		c.Next()
	})
	chain := make([]gin.HandlerFunc, 0, len(middleware)+1)
	for _, m := range middleware {
		chain = append(chain, build(m))
	}
	r.Match([]string{http.MethodPost, http.MethodGet}, mwtest.Path+":id", append(chain, gin.WrapF(handler))...)
	return mwtest.WithUser(r)
}

func build(m mwtest.Middleware) gin.HandlerFunc {
	switch m := m.(type) {
	case mwtest.RateLimit:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return reporting(m.Hooks, ratelimit.New(m.Limiter, key(m.By), m.Options...))
	case mwtest.Idempotency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		scope := ginmw.Unscoped()
		if m.By.Kind != mwtest.None {
			scope = ginmw.ScopeBy(key(m.By))
		}
		if m.KeyFrom.Kind != mwtest.None {
			m.Options = append(m.Options, idempotency.KeyFrom(key(m.KeyFrom)))
		}
		return reporting(m.Hooks, idempotency.New(m.Guard, scope, m.Options...))
	case mwtest.Exclusive:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return reporting(m.Hooks, exclusive.New(m.Locker, key(m.By), m.Options...))
	case mwtest.Concurrency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return reporting(m.Hooks, concurrency.New(m.Semaphore, key(m.By), m.Options...))
	case mwtest.Fenced:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return reporting(m.Hooks, fenced.New(m.Checker, key(m.By), m.Options...))
	}
	panic("unknown middleware")
}

// reporting reports the errors that a middleware records in gin's context.
func reporting(h mwtest.Hooks, m gin.HandlerFunc) gin.HandlerFunc {
	if h.Report == nil {
		return m
	}
	return func(c *gin.Context) {
		m(c)
		for _, e := range c.Errors {
			h.Report(e.Err)
		}
	}
}

// hooks returns the options for the hooks.
func hooks(h mwtest.Hooks) (options []ginmw.Option) {
	if h.Skip != nil {
		options = append(options, ginmw.Unless(func(c *gin.Context) bool { return h.Skip(c.Request) }))
	}
	if h.Deny != nil {
		options = append(options, ginmw.OnDeny(deny(h)))
	}
	return options
}

func deny(h mwtest.Hooks) func(*gin.Context, policy.Denial) {
	return func(c *gin.Context, d policy.Denial) {
		status, body := h.Deny(d)
		c.String(status, "%s", body)
	}
}

func key(k mwtest.Key) ginmw.KeyFunc {
	switch k.Kind {
	case mwtest.ByHeader:
		return ginmw.ByHeader(k.Name)
	case mwtest.ByID:
		return ginmw.ByParam(k.Name)
	case mwtest.ByContext:
		return ginmw.ByContext(k.ContextKey())
	case mwtest.ByClientIP:
		return ginmw.ByClientIP(clientip.Direct())
	case mwtest.Global:
		return ginmw.Global()
	case mwtest.InBody:
		return func(c *gin.Context) (string, error) { return mwtest.EventID(c.Request) }
	default:
		return func(*gin.Context) (string, error) { return "", k.Err }
	}
}
