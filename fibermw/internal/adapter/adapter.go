// Package adapter adapts middleware to fiber v3.
//
// The generic middleware knows requests and answers of net/http. Fiber has those of fasthttp, whose
// buffers another request gets when this one is over. So the adapter makes a request of net/http of
// copies, once for each request, and keeps a header of net/http in step with the answer's.
package adapter

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Handler returns a middleware in fiber's form.
func Handler(m httpmw.Middleware[fiber.Ctx]) fiber.Handler {
	return Answer(func(c fiber.Ctx) error { return m(c, next) })
}

// Answer returns a handler that answers by the methods of [Fiber].
func Answer(h func(fiber.Ctx) error) fiber.Handler {
	return func(c fiber.Ctx) error {
		b := bridgeOf(c)
		err := h(c)
		if !c.IsAbandoned() {
			b.push()
		}
		return err
	}
}

// next calls the rest of the chain.
func next(c fiber.Ctx) error {
	b := bridgeOf(c)
	b.push()
	sink := b.sink
	b.sink = nil // the middleware behind have their own
	err := c.Next()
	b.sink = sink
	if err == nil {
		b.answered()
	}
	return err
}

// Copied returns a key function whose keys stay as they are: keys that a function takes from
// fiber's context change when another request gets its buffers.
func Copied(key func(fiber.Ctx) (string, error)) func(fiber.Ctx) (string, error) {
	if key == nil {
		return nil
	}
	return func(c fiber.Ctx) (string, error) {
		k, err := key(c)
		return strings.Clone(k), err
	}
}

// Fiber is a httpmw.ErrorAdapter and a httpmw.RouteAdapter.
type Fiber struct{}

// Hooks implements httpmw.Adapter.
func (Fiber) Hooks(name string, s setting.Settings) httpmw.Hooks[fiber.Ctx] {
	h := httpmw.HooksOf[fiber.Ctx](name, s)
	h.Key = Copied(h.Key)
	if deny := setting.Hook[func(fiber.Ctx, policy.Denial) error](name, s.Deny); deny != nil {
		h.Deny = func(c fiber.Ctx, d policy.Denial) (int, error) {
			b := bridgeOf(c)
			b.push()
			err := deny(c, d)
			if err != nil {
				return statusOf(err), err
			}
			return c.Response().StatusCode(), nil
		}
	}
	return h
}

// Request implements httpmw.Adapter. The request has the context that c has at the time.
func (Fiber) Request(c fiber.Ctx) *http.Request {
	b := bridgeOf(c)
	if ctx := contextOf(c); ctx != b.request.Context() {
		b.request = b.request.WithContext(ctx)
	}
	return b.request
}

// contextOf returns the context of c, which can be compared.
func contextOf(c fiber.Ctx) context.Context {
	ctx := c.Context()
	if reflect.TypeOf(ctx).Kind() != reflect.Pointer && ctx != context.Background() {
		ctx = &pinned{ctx}
		c.SetContext(ctx)
	}
	return ctx
}

// pinned is a context of a type that may not be comparable.
type pinned struct{ context.Context }

// WithRequest implements httpmw.Adapter. Handlers find the request's context in c.Context, and its
// body in c, also after it has been read: see streamed.
func (Fiber) WithRequest(c fiber.Ctx, r *http.Request) fiber.Ctx {
	bridgeOf(c).request = r
	c.SetContext(r.Context())
	return c
}

// Header implements httpmw.Adapter.
func (Fiber) Header(c fiber.Ctx) http.Header { return bridgeOf(c).fields() }

// Writer implements httpmw.Adapter.
func (Fiber) Writer(c fiber.Ctx) http.ResponseWriter { return (*writer)(bridgeOf(c)) }

// Capture implements httpmw.Adapter. Fasthttp sends no answer before its handler has returned, so
// the capture gets it when it is complete, and the answer is again as it was before.
func (Fiber) Capture(c fiber.Ctx, w *httpmw.Capture) (captured fiber.Ctx, restore func(current bool)) {
	b := bridgeOf(c)
	before, outside := newSnapshot(c.Response()), contextOf(c)
	outer, answered := b.sink, false
	b.sink = func() {
		answered = true
		b.captured(outside, w, before)
	}
	return c, func(current bool) {
		if current && !answered { // the handler has panicked, or given up
			b.restore(before)
		}
		b.sink = outer
		before.release()
	}
}

// Observe implements httpmw.Adapter.
func (Fiber) Observe(c fiber.Ctx, o *httpmw.Observer) (observed fiber.Ctx, restore func()) {
	b := bridgeOf(c)
	o.ResponseWriter = (*writer)(b)
	outer, status := b.sink, c.Response().StatusCode()
	b.sink = func() {
		switch {
		case b.late():
			o.Stream(c.Response().StatusCode())
		case !silent(c.Response(), status):
			o.Begin(c.Response().StatusCode())
		}
	}
	return c, func() { b.sink = outer }
}

// Current implements httpmw.Adapter. No other request gets a context that fiber's timeout middleware
// has abandoned, but its answer has been sent.
func (Fiber) Current(c fiber.Ctx, _ *http.Request) bool { return !c.IsAbandoned() }

// End implements httpmw.Adapter: a handler that is not called does not run. Fasthttp would take what
// has not been read of a streamed body for the next request.
func (Fiber) End(c fiber.Ctx) bool {
	if c.Request().IsBodyStream() {
		c.RequestCtx().SetConnectionClose()
	}
	return true
}

// Refuse implements httpmw.Adapter.
func (f Fiber) Refuse(c fiber.Ctx, d policy.Denial) (status int, err error) {
	c.Response().ResetBody()
	httpmw.WriteProblem(f.Writer(c), d)
	return d.Status(), nil
}

// Log implements httpmw.Adapter.
func (Fiber) Log(c fiber.Ctx, own *telemetry.Repeated, err error) {
	own.Found(c.Context(), "error", err)
}

// Render implements httpmw.ErrorAdapter.
func (Fiber) Render(c fiber.Ctx, err error) {
	b := bridgeOf(c)
	b.push()
	if failed := c.App().ErrorHandler(c, err); failed != nil {
		_ = c.SendStatus(http.StatusInternalServerError) // as fiber does
	}
	b.answered()
}

// Renders implements httpmw.ErrorAdapter. Fiber's own error handler answers 500 to an error without
// a status, so an application that keeps it may have middleware for its errors.
func (Fiber) Renders(c fiber.Ctx, err error) bool {
	own := reflect.ValueOf(fiber.DefaultErrorHandler).Pointer()
	return statusOf(err) != 0 || reflect.ValueOf(c.App().Config().ErrorHandler).Pointer() != own
}

// Denied implements httpmw.ErrorAdapter: refusals are answers, and no errors.
func (Fiber) Denied(policy.Denial) error { return nil }

// StatusOf implements httpmw.ErrorAdapter.
func (Fiber) StatusOf(err error) int { return statusOf(err) }

func statusOf(err error) int {
	var e *fiber.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// Path implements httpmw.RouteAdapter.
func (Fiber) Path(c fiber.Ctx) string { return strings.Clone(c.FullPath()) }

// Routed implements httpmw.RouteAdapter: middleware that is added with Use has a route of its own.
func (Fiber) Routed(fiber.Ctx) bool { return true }

// Param implements httpmw.RouteAdapter.
func (Fiber) Param(c fiber.Ctx, name string) (string, bool) {
	value := strings.Clone(c.Params(name))
	return value, value != "" || slices.Contains(c.Route().Params, name)
}

// Value implements httpmw.RouteAdapter.
func (Fiber) Value(c fiber.Ctx, key any) (any, bool) {
	name, ok := key.(string)
	if !ok {
		return nil, false
	}
	value := c.Locals(name)
	return value, value != nil
}
