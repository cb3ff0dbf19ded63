package ginmw_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	leaktest.Main(m, redistest.Redialing)
}

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func TestTableOnStores(t *testing.T) { mwtest.RunWaits(t, framework{}) }

func BenchmarkRateLimit(b *testing.B) { mwtest.Benchmark(b, framework{}) }

// framework is a mwtest.Framework on gin.
type framework struct{}

func (framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	r := gin.New()
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
		chain = append(chain, cells.Build(m))
	}
	r.Match([]string{http.MethodPost, http.MethodGet}, mwtest.Path+":id", append(chain, gin.WrapF(handler))...)
	return mwtest.WithUser(r)
}

// cells are the middleware of ginmw.
var cells = mwtest.Cells[gin.HandlerFunc, ginmw.KeyFunc, ginmw.ScopeFunc]{
	RateLimit: ratelimit.New, Idempotency: idempotency.New, Exclusive: exclusive.New, Concurrency: concurrency.New, Fenced: fenced.New,
	KeyFrom: idempotency.KeyFrom, ByHeader: ginmw.ByHeader, ByParam: ginmw.ByParam, ByContext: ginmw.ByContext,
	ByClientIP: ginmw.ByClientIP, Global: ginmw.Global, ScopeBy: ginmw.ScopeBy, Unscoped: ginmw.Unscoped,
	ByRequest: func(key func(*http.Request) (string, error)) ginmw.KeyFunc {
		return func(c *gin.Context) (string, error) { return key(c.Request) }
	},
	Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
		return concurrency.Tiers(func(c *gin.Context) policy.Tier { return tier(c.Request) })
	},
	Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
		return ratelimit.Costs(func(c *gin.Context) tokenbucket.Cost { return estimate(c.Request) })
	},
	Usage: func(l *tokenbucket.Limiter, key ginmw.KeyFunc, hooks []setting.HTTPOption) gin.HandlerFunc {
		usage := ratelimit.Usage(l, key, mwtest.Convert[ginmw.Option](hooks)...)
		return func(c *gin.Context) {
			usage(c)
			c.Abort()
		}
	},
	Set: func(name, field string) gin.HandlerFunc {
		return func(c *gin.Context) { c.Set(name, c.GetHeader(field)) }
	},
	Options: options,
}

// options returns the options for hooks.
func options(h mwtest.Hooks) (options []setting.HTTPOption) {
	if h.Skip != nil {
		options = append(options, ginmw.Unless(func(c *gin.Context) bool { return h.Skip(c.Request) }))
	}
	if h.Networks != nil {
		options = append(options, ginmw.Unless(ginmw.ClientIn(clientip.Direct(), h.Networks...)))
	}
	if h.Deny != nil {
		options = append(options, ginmw.OnDeny(deny(h)))
	}
	if h.Report != nil {
		options = append(options, ginmw.OnError(func(_ *gin.Context, err error) { h.Report(err) }))
	}
	return options
}

func deny(h mwtest.Hooks) func(*gin.Context, policy.Denial) {
	return func(c *gin.Context, d policy.Denial) {
		status, body := h.Deny(d)
		c.String(status, "%s", body)
	}
}
