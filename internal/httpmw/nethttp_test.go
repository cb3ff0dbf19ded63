package httpmw

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// pair is a request and its response, the context of netHTTP.
type pair struct {
	w http.ResponseWriter
	r *http.Request
}

// netHTTP is an Adapter of net/http.
type netHTTP struct{}

func (netHTTP) Hooks(name string, s setting.Settings) Hooks[pair] { return HooksOf[pair](name, s) }
func (netHTTP) Request(c pair) *http.Request                      { return c.r }
func (netHTTP) WithRequest(c pair, r *http.Request) pair          { return pair{c.w, r} }
func (netHTTP) Header(c pair) http.Header                         { return c.w.Header() }
func (netHTTP) Writer(c pair) http.ResponseWriter                 { return c.w }
func (netHTTP) Capture(c pair, w *Capture) (pair, func(bool))     { return pair{w, c.r}, func(bool) {} }
func (netHTTP) Observe(c pair, _ *Observer) (pair, func())        { return c, func() {} }
func (netHTTP) Current(pair, *http.Request) bool                  { return true }
func (netHTTP) End(pair) bool                                     { return true }
func (netHTTP) Log(pair, *telemetry.Repeated, error)              {}

func (netHTTP) Refuse(c pair, d policy.Denial) (int, error) {
	c.w.WriteHeader(d.Status())
	_, _ = c.w.Write(Body(d))
	return d.Status(), nil
}

// byUser is the scope of requests that say who sends them. Others have none.
type byUser struct{}

func (byUser) IsZero() bool              { return false }
func (byUser) Of(c pair) (string, error) { return c.r.Header.Get("X-User"), nil }
