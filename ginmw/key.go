// Package ginmw has the common parts of the gin middleware of all policies: functions that return
// the key or the scope of a request, and the options of every middleware. The middleware are its
// subpackages.
//
// Handlers pass c.Request.Context() on, and to the FromContext of lock, semaphore, guard and
// tokenbucket, and not c itself. Unless Engine.ContextWithFallback is set, a *gin.Context has none
// of its request's values and never ends: FromContext finds nothing in it, Lock does not find the
// request's own lease and waits for itself, and nothing stops when the client leaves or the lease
// is lost.
package ginmw

import (
	"net/netip"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/ginmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request, by which the middleware limits, locks or checks it.
// [nethttp.KeyFunc] documents its errors, and how it may read the body.
type KeyFunc func(c *gin.Context) (string, error)

// ByHeader keys by the value of a request header field. Clients choose the value, so a limit by it
// protects from none of them: see [nethttp.ByHeader].
func ByHeader(name string) KeyFunc { return ofRequest(nethttp.ByHeader(name)) }

// ByParam keys by a parameter of the route, such as id in /carts/:id, decoded also where gin does
// not decode it (UseRawPath or UseEscapedPath without UnescapePathValues): /carts/42 and
// /carts/4%32 are one key.
//
// A route without the parameter is policy.ErrNotProvided. A request that matches no route has no
// parameter either. It does not pass, since NoRoute may have a handler: it is refused with status
// 400. To answer it with 404, add the middleware to routes, not to the engine.
func ByParam(name string) KeyFunc { return httpmw.ByParam(adapter.Gin{}, "ginmw", name) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Gin's own ClientIP is not used, since by default it trusts any client's
// X-Forwarded-For.
func ByClientIP(r clientip.Resolver) KeyFunc { return ofRequest(nethttp.ByClientIP(r)) }

// ClientIn reports whether a request's client has an address in one of the networks, for [Unless]
// and for middleware that refuses some addresses: see [nethttp.ClientIn].
func ClientIn(r clientip.Resolver, networks ...netip.Prefix) func(c *gin.Context) bool {
	in := r.In(networks...)
	return func(c *gin.Context) bool { return in(c.Request) }
}

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". Requests that
// match no route share the key of their method.
func ByRoute() KeyFunc { return httpmw.ByRoute(adapter.Gin{}) }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Set(key, value), or into the request's own context. [nethttp.ByContext] says which
// values are keys.
func ByContext(key any) KeyFunc { return httpmw.ByContext(adapter.Gin{}, "ginmw", key) }

// Global gives every request the same key.
func Global() KeyFunc { return httpmw.Global[*gin.Context] }

// Join keys by several keys together, as [nethttp.Join] does.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("ginmw", parts) }

// FirstOf keys by the first of several keys that the request has, as [nethttp.FirstOf] does:
// FirstOf(ByContext("user"), ByClientIP(clientip.Direct())). Never put a key that the client
// chooses first.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("ginmw", choices) }

func ofRequest(key nethttp.KeyFunc) KeyFunc { return httpmw.ByRequest(adapter.Gin{}, key) }
