package httpguard

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
)

// netHTTP is an Exchange on net/http.
type netHTTP struct {
	w    http.ResponseWriter
	next http.Handler
	key  func(*http.Request) (string, error)
}

func (x *netHTTP) Key(r *http.Request) (string, error) { return x.key(r) }
func (x *netHTTP) StatusOf(error) int                  { return 0 }

func (x *netHTTP) Scope() (string, error)          { return "everybody", nil }
func (x *netHTTP) Pass(r *http.Request)            { x.next.ServeHTTP(x.w, r) }
func (x *netHTTP) Run(c *Capture, r *http.Request) { x.next.ServeHTTP(c, r) }
func (x *netHTTP) DefaultStatus() int              { return http.StatusOK }
func (x *netHTTP) End()                            {}
func (x *netHTTP) Deny(d policy.Denial)            { httpdenial.Write(x.w, d) }
func (x *netHTTP) Report(error)                    {}
