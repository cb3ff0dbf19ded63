// Package echov5mw has the common parts of the echo v5 middleware of all policies: functions that
// return the key or the scope of a request, and the options of every middleware. The middleware are
// its subpackages. For echo v4 there is echomw.
//
// A middleware that refuses a request returns an error to the application's HTTPErrorHandler, which
// answers with it. Echo's own handler makes a problem (RFC 9457) of type application/problem+json.
// A handler of the application's finds the denial, with its reason, by [DenialOf]. The error's
// status is that of echo.StatusCode. Its text has nothing of the error behind the denial, which is
// not for clients: for logs, the Err of [DenialOf] has that. errors.Is matches store.ErrUnavailable
// if the store is unavailable. The header fields of the denial (Retry-After, RateLimit, Link) are
// set already.
package echov5mw

import (
	"net/netip"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request, by which the middleware limits, locks or checks it.
// [nethttp.KeyFunc] documents its errors, and how it may read the body.
type KeyFunc func(c *echo.Context) (string, error)

// ByHeader keys by the value of a request header field. Clients choose the value, so a limit by it
// protects from none of them: see [nethttp.ByHeader].
func ByHeader(name string) KeyFunc { return ofRequest(nethttp.ByHeader(name)) }

// ByParam keys by a parameter of the route, such as id in /carts/:id. Echo does not decode a
// parameter if the path has unnecessary escapes, unless its router is configured to
// (echo.RouterConfig); here /carts/a%2Db and /carts/a-b are one key with every setting.
//
// A route without the parameter is policy.ErrNotProvided. A request that matches no route has no
// parameter either, and is refused with status 400. To answer it with 404, add the middleware to
// routes, not to the Echo or to a Group.
func ByParam(name string) KeyFunc { return httpmw.ByParam(adapter.Echo{}, "echov5mw", name) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Echo's own RealIP is not used, since by default it trusts any client's X-Forwarded-For.
func ByClientIP(r clientip.Resolver) KeyFunc { return ofRequest(nethttp.ByClientIP(r)) }

// ClientIn reports whether a request's client has an address in one of the networks, for [Unless]
// and for middleware that refuses some addresses: see [nethttp.ClientIn].
func ClientIn(r clientip.Resolver, networks ...netip.Prefix) func(c *echo.Context) bool {
	in := r.In(networks...)
	return func(c *echo.Context) bool { return in(c.Request()) }
}

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". Requests that
// match no route share the key of their method, and so do all requests in middleware that is added
// with Pre, before they are routed.
func ByRoute() KeyFunc { return httpmw.ByRoute(adapter.Echo{}) }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Set(key, value), or into the request's own context. [nethttp.ByContext] says which
// values are keys.
func ByContext(key any) KeyFunc { return httpmw.ByContext(adapter.Echo{}, "echov5mw", key) }

// Global gives every request the same key.
func Global() KeyFunc { return httpmw.Global[*echo.Context] }

// Join keys by several keys together, as [nethttp.Join] does.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("echov5mw", parts) }

// FirstOf keys by the first of several keys that the request has, as [nethttp.FirstOf] does:
// FirstOf(ByContext("user"), ByClientIP(clientip.Direct())). Never put a key that the client
// chooses first.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("echov5mw", choices) }

// DenialOf returns the denial in an error that a middleware of this module returned, for an
// application's HTTPErrorHandler; false if it is another error.
func DenialOf(err error) (policy.Denial, bool) { return httpmw.DenialOf(err) }

func ofRequest(key nethttp.KeyFunc) KeyFunc { return httpmw.ByRequest(adapter.Echo{}, key) }
