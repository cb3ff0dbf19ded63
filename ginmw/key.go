// Package ginmw has what the gin middleware of all policies share: functions that say by what a
// request is limited, locked or scoped, and which requests a middleware leaves alone. The
// middleware themselves are its subpackages.
package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/internal/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request: what it is limited by. It returns policy.ErrNoKey, or an
// empty key, if the request does not carry one, and is then refused with status 400. Any other
// error is the server's: status 500.
type KeyFunc func(c *gin.Context) (string, error)

// ByHeader keys by the value of a request header field. Clients choose what they send: use it only
// for what has been verified, or where a choice gains them nothing. Several fields of the name
// count as none.
func ByHeader(name string) KeyFunc { return ofRequest(nethttp.ByHeader(name)) }

// ByParam keys by a parameter of the route, such as id in /carts/:id.
func ByParam(name string) KeyFunc {
	return func(c *gin.Context) (string, error) { return keys.NonEmpty(c.Param(name)) }
}

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Gin's own ClientIP is not used, since it believes any client's X-Forwarded-For unless
// it has been told otherwise.
func ByClientIP(r clientip.Resolver) KeyFunc { return ofRequest(nethttp.ByClientIP(r)) }

// ByRoute keys by the request's method and route pattern, such as "PUT /carts/:id". Requests that
// match no route share the key of their method.
func ByRoute() KeyFunc {
	return func(c *gin.Context) (string, error) { return c.Request.Method + " " + c.FullPath(), nil }
}

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// context with c.Set(key, value), or into the request's own context. The value is a string, an
// integer or a fmt.Stringer.
func ByContext(key any) KeyFunc {
	return func(c *gin.Context) (string, error) {
		value, ok := c.Get(key)
		if !ok {
			value = c.Request.Context().Value(key)
		}
		return keys.OfValue("ginmw", value)
	}
}

// Global gives every request the same key.
func Global() KeyFunc {
	return func(*gin.Context) (string, error) { return keys.Global, nil }
}

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// The parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("ginmw", parts) }

// FirstOf keys by the first of several keys that the request carries, such as an API key, or else
// the client's address. The position is part of the key, so that a client which chooses the value
// of one cannot pass for another. An error other than policy.ErrNoKey ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("ginmw", choices) }

func ofRequest(key nethttp.KeyFunc) KeyFunc {
	return func(c *gin.Context) (string, error) { return key(c.Request) }
}
