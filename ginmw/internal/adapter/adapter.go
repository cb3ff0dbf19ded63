// Package adapter adapts middleware to gin.
package adapter

import (
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Handler returns a middleware in gin's form.
func Handler(m httpmw.Middleware[*gin.Context]) gin.HandlerFunc {
	return func(c *gin.Context) { _ = m(c, next) }
}

// Answer returns a handler in gin's form.
func Answer(h func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) { _ = h(c) }
}

func next(c *gin.Context) error {
	c.Next()
	return nil
}

// Gin is a httpmw.OutsideAdapter and a httpmw.RouteAdapter.
type Gin struct{}

// Hooks implements httpmw.Adapter.
func (Gin) Hooks(name string, s setting.Settings) httpmw.Hooks[*gin.Context] {
	h := httpmw.HooksOf[*gin.Context](name, s)
	if deny := setting.Hook[func(*gin.Context, policy.Denial)](name, s.Deny); deny != nil {
		h.Deny = func(c *gin.Context, d policy.Denial) (int, error) {
			deny(c, d)
			return c.Writer.Status(), nil
		}
	}
	return h
}

// Request implements httpmw.Adapter.
func (Gin) Request(c *gin.Context) *http.Request { return c.Request }

// WithRequest implements httpmw.Adapter.
func (Gin) WithRequest(c *gin.Context, r *http.Request) *gin.Context {
	c.Request = r
	return c
}

// Header implements httpmw.Adapter.
func (Gin) Header(c *gin.Context) http.Header { return c.Writer.Header() }

// Writer implements httpmw.Adapter.
func (Gin) Writer(c *gin.Context) http.ResponseWriter { return hinter{c.Writer} }

// Capture implements httpmw.Adapter.
func (Gin) Capture(c *gin.Context, capture *httpmw.Capture) (captured *gin.Context, restore func(current bool)) {
	original := c.Writer
	capture.Inherit(original.Status())
	w := &replaceable{&writer{original, capture}}
	c.Writer = w
	return c, func(current bool) {
		w.ResponseWriter = original // for code that still has w, if it cannot be taken back
		if current {
			c.Writer = original
		}
	}
}

// Observe implements httpmw.Adapter.
func (Gin) Observe(c *gin.Context, o *httpmw.Observer) (observed *gin.Context, restore func()) {
	w := &observedWriter{ResponseWriter: c.Writer, observer: o}
	o.ResponseWriter = c.Writer
	c.Writer = w
	return c, func() {
		w.begin()
		c.Writer = w.ResponseWriter
	}
}

// Current implements httpmw.Adapter. Gin reuses a context when its request is over.
func (Gin) Current(_ *gin.Context, r *http.Request) bool { return r.Context().Err() == nil }

// End implements httpmw.Adapter. Middleware that refuses a body while it is read, as
// gin-contrib/size does, answers before.
func (Gin) End(c *gin.Context) bool {
	if c.IsAborted() && c.Writer.Written() {
		return false
	}
	c.Abort()
	return true
}

// Refuse implements httpmw.Adapter.
func (Gin) Refuse(c *gin.Context, d policy.Denial) (status int, err error) {
	c.Data(d.Status(), httpmw.ContentType, httpmw.Body(d))
	return c.Writer.Status(), nil
}

// Log implements httpmw.Adapter. An error of c.Error would change the answer, behind middleware
// that renders errors.
func (Gin) Log(c *gin.Context, own *telemetry.Repeated, err error) {
	own.Found(c.Request.Context(), "path", c.FullPath(), "error", err)
}

// Left implements httpmw.OutsideAdapter.
func (Gin) Left(c *gin.Context) (errors, values int) { return len(c.Errors), len(c.Keys) }

// Captures implements httpmw.OutsideAdapter. Engine.HandleContext puts gin's own writer back.
func (Gin) Captures(c *gin.Context) bool {
	return reflect.TypeOf(c.Writer).String() != "*gin.responseWriter"
}

// Path implements httpmw.RouteAdapter.
func (Gin) Path(c *gin.Context) string { return c.FullPath() }

// Routed implements httpmw.RouteAdapter.
func (Gin) Routed(c *gin.Context) bool { return c.FullPath() != "" }

// Param implements httpmw.RouteAdapter.
func (Gin) Param(c *gin.Context, name string) (string, bool) { return c.Params.Get(name) }

// Value implements httpmw.RouteAdapter. Before gin 1.11, the keys of c.Set are strings.
func (Gin) Value(c *gin.Context, key any) (any, bool) {
	switch c := any(c).(type) {
	case interface{ Get(key any) (any, bool) }:
		return c.Get(key)
	case interface{ Get(key string) (any, bool) }:
		if name, ok := key.(string); ok {
			return c.Get(name)
		}
	}
	return nil, false
}
