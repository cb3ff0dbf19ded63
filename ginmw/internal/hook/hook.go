// Package hook applies, in gin, what every policy can be told in gin's types.
package hook

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Hooks are the functions in gin's types that a middleware was given.
type Hooks struct {
	skip func(*gin.Context) bool
	deny func(*gin.Context, policy.Denial)
}

// Of returns the hooks among a middleware's settings. It panics if one of them was made for another
// framework.
func Of(name string, s setting.Common) Hooks {
	setting.Hook[func(*gin.Context, error)](name, s.Report) // there is no such option for gin
	return Hooks{
		skip: setting.Hook[func(*gin.Context) bool](name, s.Skip),
		deny: setting.Hook[func(*gin.Context, policy.Denial)](name, s.Deny),
	}
}

// Skips reports whether the middleware leaves this request alone.
func (h Hooks) Skips(c *gin.Context) bool { return h.skip != nil && h.skip(c) }

// Deny answers with a denial and ends the chain. A failure of the store, or of a key function, is
// reported to gin as the request's error; a mere denial is none.
func (h Hooks) Deny(c *gin.Context, d policy.Denial) {
	if d.Err != nil && d.Status() >= 500 {
		_ = c.Error(d.Err)
	}
	note := httpdenial.Mark(c.Request.Context(), c.Writer.Header())
	c.Abort()
	if h.deny != nil {
		h.deny(c, d)
	} else {
		c.Data(d.Status(), httpdenial.ContentType, httpdenial.Body(d))
	}
	note.Refused(c.Writer.Status(), nil)
}

// Exchange returns the request of c, and its answer, as a httphold.Exchange.
func (h Hooks) Exchange(c *gin.Context, key func(*gin.Context) (string, error)) *Exchange {
	return &Exchange{c, c.Request, key, h}
}

// Exchange is a request and its answer in a middleware's hands.
//
// A time-out middleware outside may return while the handler still runs. Gin then gives the context to
// another request, so after the handler an Exchange uses the context only while [Exchange.Current]. That
// leaves the moment between the look and the use, which only a middleware that waits for its chain can
// close.
type Exchange struct {
	c       *gin.Context
	request *http.Request // as it came
	key     func(*gin.Context) (string, error)
	hooks   Hooks
}

// Current reports whether gin's context is still this request's: the request's own context is not over.
func (x *Exchange) Current() bool { return x.request.Context().Err() == nil }

// Key returns the request's key.
func (x *Exchange) Key() (string, error) { return x.key(x.c) }

// Run has the handlers that come after the middleware answer the request.
func (x *Exchange) Run(r *http.Request) {
	x.c.Request = r
	defer func() {
		if x.Current() {
			x.c.Request = x.request
		}
	}()
	x.c.Next()
}

// Deny answers with a denial and ends the chain.
func (x *Exchange) Deny(d policy.Denial) { x.hooks.Deny(x.c, d) }

// Report tells gin of an error that the client is not told of, unless the request's context is over.
func (x *Exchange) Report(err error) {
	if x.Current() {
		_ = x.c.Error(err)
	}
}
