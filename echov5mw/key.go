// Package echov5mw has what the echo v5 middleware of all policies share: functions that return the
// key or the scope of a request, and the options of every middleware. The middleware are its
// subpackages. For echo v4 there is echomw.
//
// A middleware that refuses a request returns an error to the application's HTTPErrorHandler, whose
// answer it is: echo's own makes it a problem (RFC 9457) of type application/problem+json, and one
// of the application's finds what was refused, and why, by [DenialOf]. Its status is what
// echo.StatusCode says of it. Its text says nothing of the error behind the denial, which is not
// for clients: a log finds that in the Err of [DenialOf], and errors.Is finds store.ErrUnavailable
// when the store is. The header fields of the denial (Retry-After, RateLimit, Link) are set
// already.
package echov5mw

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request: what it is limited by.
//
// If the client should have sent what it looks for and did not, it returns policy.ErrNoKey, or an
// empty key: the request is refused with status 400. If the application should have provided it, it
// returns an error that matches policy.ErrNotProvided and says what is missing: the request is
// refused with status 500, and the first one of a middleware is logged (policy.Logger). Any other
// error is status 500 too. Neither policy.FailOpen nor policy.RunUnprotected lets such a request
// pass.
type KeyFunc func(c *echo.Context) (string, error)

// ByHeader keys by the value of a request header field: one that your own proxy sets, and removes
// from what clients send, or one by which a client divides what it owns, joined to its identity:
// Join(ByContext(…), ByHeader(…)) in front of exclusive.
//
// Clients choose what they send. A limit by a header protects from none of them: with a fresh value
// for every request, 1,000 of 1,000 pass a limit of 3 an hour. A scope by a header gives a client's
// answers to every client that sends its value. For both, use what authentication has verified
// ([ByContext]), or the address ([ByClientIP]). Several fields of the name count as none.
func ByHeader(name string) KeyFunc { return ofRequest(nethttp.ByHeader(name)) }

// ByParam keys by a parameter of the route, such as id in /carts/:id. Echo does not decode a
// parameter if the path has escapes that it need not have, unless its router has been told to
// (echo.RouterConfig); here /carts/a%2Db and /carts/a-b are one key with every setting.
//
// A route without the parameter is policy.ErrNotProvided. A request that matches no route has no
// parameter either, and is refused with status 400. Where it shall
// be answered with 404, add the middleware to routes, not to the Echo or to a Group.
func ByParam(name string) KeyFunc { return httpmw.ByParam(adapter.Echo{}, "echov5mw", name) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Echo's own RealIP is not used, since by default it trusts any client's X-Forwarded-For.
func ByClientIP(r clientip.Resolver) KeyFunc { return ofRequest(nethttp.ByClientIP(r)) }

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". Requests that
// match no route share the key of their method, and so do all requests in middleware that is added
// with Pre, before they are routed.
func ByRoute() KeyFunc { return httpmw.ByRoute(adapter.Echo{}) }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Set(key, value), or into the request's own context: a string, an integer or a
// fmt.Stringer. A value that is not there, the zero value of its type (a nil pointer, 0) and an
// empty text are policy.ErrNotProvided: the middleware that provides it must run before, and refuse
// requests for which it has none.
func ByContext(key any) KeyFunc { return httpmw.ByContext(adapter.Echo{}, "echov5mw", key) }

// Global gives every request the same key.
func Global() KeyFunc { return httpmw.Global[*echo.Context] }

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// The parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("echov5mw", parts) }

// FirstOf keys by the first of several keys that the request has, such as the user, or else the
// client's address: FirstOf(ByContext("user"), ByClientIP(clientip.Direct())). The position is part
// of the key, so that a client which chooses the value of one cannot pass for another. Never put a
// key that the client chooses first: a client that sends a fresh one each time never reaches the
// next. FirstOf skips what was not sent and what the application did not provide; any other error
// ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("echov5mw", choices) }

// DenialOf returns the denial in an error that a middleware of this module returned, for an
// application's HTTPErrorHandler; false if it is another error.
func DenialOf(err error) (policy.Denial, bool) { return httpmw.DenialOf(err) }

func ofRequest(key nethttp.KeyFunc) KeyFunc { return httpmw.ByRequest(adapter.Echo{}, key) }
