package fibermw_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/fenced"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, redistest.Redialing,
		"github.com/valyala/fasthttp.updateServerDate.func1",                   // one of the process
		"github.com/valyala/fasthttp.(*inMemoryCacheManager).handleCleanCache", // one of an app that sends files
	)
}

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func TestTableOnStores(t *testing.T) { mwtest.RunWaits(t, framework{}) }

func BenchmarkRateLimit(b *testing.B) { mwtest.Benchmark(b, framework{}) }

// framework is a mwtest.Framework on fiber v3.
type framework struct{}

// Serve implements mwtest.Framework. The server of net/http stands for that of fasthttp: it gives
// the app a RequestCtx that another request has had before.
func (framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) (err error) {
		defer func() {
			if recover() != nil {
				err = fiber.ErrInternalServerError
			}
		}()
		c.SetContext(c.RequestCtx().UserValue(frontKey{}).(context.Context))
		return c.Next()
	})
	var chain []any
	for _, m := range middleware {
		chain = append(chain, cells.Build(m))
	}
	chain = append(chain, served(handler))
	app.Add([]string{http.MethodPost, http.MethodGet}, mwtest.Path+":id", chain[0], chain[1:]...)
	return mwtest.WithUser(front(app.Handler()))
}

// dates makes each answer have another date, which is fasthttp's own.
var dates atomic.Int64

type frontKey struct{}

// framed are the fields that fasthttp makes of the body, whatever a handler has set.
var framed = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

var contexts = sync.Pool{New: func() any { return new(fasthttp.RequestCtx) }}

// front serves requests of net/http as fasthttp does: with the values of their context, and with
// its deadline, but not with its end.
func front(h fasthttp.RequestHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithoutCancel(r.Context())
		if deadline, ok := r.Context().Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		var req fasthttp.Request
		req.Header.SetMethod(r.Method)
		req.SetRequestURI(r.URL.RequestURI())
		for name, values := range r.Header {
			for _, value := range values {
				req.Header.Add(name, value)
			}
		}
		req.Header.SetHost(r.Host)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		req.SetBody(body)
		req.Header.SetContentLength(int(r.ContentLength))
		addr, _ := net.ResolveTCPAddr("tcp", r.RemoteAddr)
		c := contexts.Get().(*fasthttp.RequestCtx)
		defer func() {
			c.ResetUserValues()
			c.Response.Reset()
			contexts.Put(c)
		}()
		c.Init(&req, addr, nil)
		c.SetUserValue(frontKey{}, ctx)
		h(c)
		c.Response.Header.SetNoDefaultContentType(true)
		for name, value := range c.Response.Header.All() {
			if name := string(name); !framed[name] {
				w.Header().Add(name, string(value))
			}
		}
		w.Header().Set("Date", time.Unix(dates.Add(1), 0).UTC().Format(http.TimeFormat))
		w.WriteHeader(c.Response.StatusCode())
		_, _ = w.Write(c.Response.Body())
	})
}

// served returns a handler of net/http as one of fiber, which has its answer when it returns.
func served(handler http.HandlerFunc) fiber.Handler {
	return func(c fiber.Ctx) error {
		w := &response{header: http.Header{}}
		for name, value := range c.Response().Header.All() {
			w.header.Add(string(name), string(value))
		}
		before := w.header.Clone()
		handler(w, adapter.Fiber{}.Request(c))
		if w.status != 0 {
			c.Status(w.status)
		}
		for name := range before {
			c.Response().Header.Del(name)
		}
		for name, values := range w.header {
			if framed[name] || strings.HasPrefix(name, http.TrailerPrefix) {
				continue
			}
			for _, value := range values {
				c.Response().Header.Add(name, value)
			}
		}
		if w.body.Len() > 0 {
			c.Response().SetBody(w.body.Bytes())
		}
		return nil
	}
}

type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if w.status == 0 && (status < 100 || status >= 200) { // fasthttp sends no informational answers
		w.status = status
	}
}

func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// cells are the middleware of fibermw.
var cells = mwtest.Cells[fiber.Handler, fibermw.KeyFunc, fibermw.ScopeFunc]{
	RateLimit: ratelimit.New, Idempotency: idempotency.New, Exclusive: exclusive.New, Concurrency: concurrency.New, Fenced: fenced.New,
	KeyFrom: idempotency.KeyFrom, ByHeader: fibermw.ByHeader, ByParam: fibermw.ByParam, ByContext: fibermw.ByContext,
	ByClientIP: fibermw.ByClientIP, Global: fibermw.Global, ScopeBy: fibermw.ScopeBy, Unscoped: fibermw.Unscoped,
	ByRequest: func(key func(*http.Request) (string, error)) fibermw.KeyFunc {
		return func(c fiber.Ctx) (string, error) { return key(request(c)) }
	},
	Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
		return concurrency.Tiers(func(c fiber.Ctx) policy.Tier { return tier(request(c)) })
	},
	Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
		return ratelimit.Costs(func(c fiber.Ctx) tokenbucket.Cost { return estimate(request(c)) })
	},
	Usage: func(l *tokenbucket.Limiter, key fibermw.KeyFunc, hooks []setting.HTTPOption) fiber.Handler {
		usage := ratelimit.Usage(l, key, mwtest.Convert[fibermw.Option](hooks)...)
		return usage
	},
	Set: func(name, field string) fiber.Handler {
		return func(c fiber.Ctx) error {
			c.Locals(name, c.Get(field))
			return c.Next()
		}
	},
	Options: options,
}

func request(c fiber.Ctx) *http.Request { return adapter.Fiber{}.Request(c) }

// options returns the options for hooks.
func options(h mwtest.Hooks) (options []setting.HTTPOption) {
	if h.Skip != nil {
		options = append(options, fibermw.Unless(func(c fiber.Ctx) bool { return h.Skip(request(c)) }))
	}
	if h.Networks != nil {
		options = append(options, fibermw.Unless(fibermw.ClientIn(clientip.Direct(), h.Networks...)))
	}
	if h.Deny != nil {
		options = append(options, fibermw.OnDeny(deny(h)))
	}
	if h.Report != nil {
		options = append(options, fibermw.OnError(func(_ fiber.Ctx, err error) { h.Report(err) }))
	}
	return options
}

func deny(h mwtest.Hooks) func(fiber.Ctx, policy.Denial) error {
	return func(c fiber.Ctx, d policy.Denial) error {
		status, body := h.Deny(d)
		return c.Status(status).SendString(body)
	}
}
