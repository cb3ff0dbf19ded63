// Package echov5mw has what the echo v5 middleware of all policies share: functions that say by what a
// request is limited, locked or scoped, and which requests a middleware leaves alone. The middleware
// themselves are its subpackages. For echo v4 there is echomw.
//
// A middleware that refuses a request returns an error to the application's HTTPErrorHandler, whose
// answer it is: echo's own makes it a problem (RFC 9457) of type application/problem+json, and one of the
// application's finds what was refused, and why, by [DenialOf]. Its status is what echo.StatusCode says of
// it, and the error behind the denial, such as core.ErrUnavailable when the store is, is found by
// errors.Is. It is not for clients. The header fields of the denial (Retry-After, RateLimit, Link) are set
// already.
package echov5mw

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/echohttp"
	"github.com/lockkeeper/lockkeeper/internal/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request: what it is limited by. It returns policy.ErrNoKey, or an
// empty key, if the request does not carry one, and is then refused with status 400. Any other
// error is the server's: status 500.
type KeyFunc func(c *echo.Context) (string, error)

// ByHeader keys by the value of a request header field. Clients choose what they send: use it only
// for what has been verified, or where a choice gains them nothing. Several fields of the name
// count as none.
func ByHeader(name string) KeyFunc {
	return echohttp.ByRequest[*echo.Context](nethttp.ByHeader(name))
}

// ByParam keys by a parameter of the route, such as id in /carts/:id. Echo hands out parameters as
// they were sent, as a%2Db or a-b; those are one key. It does not matter whether echo's router has been
// told to decode them (echo.RouterConfig).
func ByParam(name string) KeyFunc { return echohttp.ByParam(name, adapter.AsSent) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Echo's own RealIP is not used, since it believes any client's X-Forwarded-For unless it
// has been told otherwise.
func ByClientIP(r clientip.Resolver) KeyFunc {
	return echohttp.ByRequest[*echo.Context](nethttp.ByClientIP(r))
}

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". Requests that
// match no route share the key of their method, and so do all requests in middleware that is added
// with Pre, before they are routed.
func ByRoute() KeyFunc { return echohttp.ByRoute[*echo.Context] }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Set(key, value), or into the request's own context. The value is a string, an
// integer or a fmt.Stringer.
func ByContext(key any) KeyFunc { return echohttp.ByContext[*echo.Context]("echov5mw", key) }

// Global gives every request the same key.
func Global() KeyFunc { return echohttp.Global[*echo.Context] }

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// The parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("echov5mw", parts) }

// FirstOf keys by the first of several keys that the request carries, such as an API key, or else
// the client's address. The position is part of the key, so that a client which chooses the value
// of one cannot pass for another. An error other than policy.ErrNoKey ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("echov5mw", choices) }

// DenialOf returns the denial in an error that a middleware of this module returned, for an
// application's HTTPErrorHandler; false if it is another error.
func DenialOf(err error) (policy.Denial, bool) { return echohttp.DenialOf(err) }
