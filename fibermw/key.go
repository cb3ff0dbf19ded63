// Package fibermw has the common parts of the fiber v3 middleware of all policies: functions that
// return the key or the scope of a request, and the options of every middleware. The middleware are
// its subpackages.
//
// Handlers pass c.Context() on, and to the FromContext of lock, semaphore, guard and tokenbucket,
// and not c itself, which has none of the values of that context.
//
// Fiber stands on fasthttp, so that some of the behaviour of other frameworks is not to be had: see
// docs/guides/frameworks.md in the repository. Keys may be strings of fiber's own, which change
// after the request: the middleware copies them.
package fibermw

import (
	"net/netip"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request, by which the middleware limits, locks or checks it.
// [nethttp.KeyFunc] documents its errors, and how it may read the body.
type KeyFunc func(c fiber.Ctx) (string, error)

// ByHeader keys by the value of a request header field. Clients choose the value, so a limit by it
// protects from none of them: see [nethttp.ByHeader].
func ByHeader(name string) KeyFunc { return ofRequest(nethttp.ByHeader(name)) }

// ByParam keys by a parameter of the route, such as id in /carts/:id, decoded: /carts/42 and
// /carts/4%32 are one key. A route without the parameter is policy.ErrNotProvided, and so is
// middleware that was added with Use, unless its own path has the parameter.
func ByParam(name string) KeyFunc { return httpmw.ByParam(adapter.Fiber{}, "fibermw", name) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Fiber's own IP is not used, which has the header of any client if Config.ProxyHeader is
// set without a list of trusted proxies.
func ByClientIP(r clientip.Resolver) KeyFunc { return ofRequest(nethttp.ByClientIP(r)) }

// ClientIn reports whether a request's client has an address in one of the networks, for [Unless]
// and for middleware that refuses some addresses: see [nethttp.ClientIn].
func ClientIn(r clientip.Resolver, networks ...netip.Prefix) func(c fiber.Ctx) bool {
	in := r.In(networks...)
	return func(c fiber.Ctx) bool { return in(adapter.Fiber{}.Request(c)) }
}

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". In middleware
// that was added with Use the pattern is that of Use, such as "/".
func ByRoute() KeyFunc { return httpmw.ByRoute(adapter.Fiber{}) }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Locals(key, value), or into the request's own context. [nethttp.ByContext] says which
// values are keys.
func ByContext(key any) KeyFunc { return httpmw.ByContext(adapter.Fiber{}, "fibermw", key) }

// Global gives every request the same key.
func Global() KeyFunc { return httpmw.Global[fiber.Ctx] }

// Join keys by several keys together, as [nethttp.Join] does.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("fibermw", parts) }

// FirstOf keys by the first of several keys that the request has, as [nethttp.FirstOf] does:
// FirstOf(ByContext("user"), ByClientIP(clientip.Direct())). Never put a key that the client
// chooses first.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("fibermw", choices) }

func ofRequest(key nethttp.KeyFunc) KeyFunc { return httpmw.ByRequest(adapter.Fiber{}, key) }
