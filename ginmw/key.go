// Package ginmw has what the gin middleware of all policies share: functions that say by what a
// request is limited, locked or scoped, and which requests a middleware leaves alone. The
// middleware themselves are its subpackages.
package ginmw

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request: what it is limited by. It returns policy.ErrNoKey, or an
// empty key, if the request does not carry one, and is then refused with status 400. Any other
// error is the server's: status 500.
type KeyFunc func(c *gin.Context) (string, error)

// ByHeader keys by the value of a request header field. Clients choose what they send: use it only
// for what has been verified, or where a choice gains them nothing. Several fields of the name
// count as none.
func ByHeader(name string) KeyFunc {
	return func(c *gin.Context) (string, error) {
		values := c.Request.Header.Values(name)
		if len(values) != 1 {
			return "", policy.ErrNoKey
		}
		return nonEmpty(values[0])
	}
}

// ByParam keys by a parameter of the route, such as id in /carts/:id.
func ByParam(name string) KeyFunc {
	return func(c *gin.Context) (string, error) { return nonEmpty(c.Param(name)) }
}

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as r
// finds it. Gin's own ClientIP is not used, since it believes any client's X-Forwarded-For unless
// it has been told otherwise.
func ByClientIP(r clientip.Resolver) KeyFunc {
	return func(c *gin.Context) (string, error) { return r.Key(c.Request) }
}

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
		switch v := value.(type) {
		case nil:
			return "", policy.ErrNoKey
		case string:
			return nonEmpty(v)
		case fmt.Stringer:
			return nonEmpty(v.String())
		case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
			return fmt.Sprint(v), nil
		default:
			return "", fmt.Errorf("ginmw: ByContext: the value has type %T, want a string, an integer or a fmt.Stringer", value)
		}
	}
}

// Global gives every request the same key.
func Global() KeyFunc {
	return func(*gin.Context) (string, error) { return "global", nil }
}

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// The parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(keys ...KeyFunc) KeyFunc {
	check("Join", keys)
	return func(c *gin.Context) (string, error) {
		var b strings.Builder
		for _, key := range keys {
			part, err := resolve(key, c)
			if err != nil {
				return "", err
			}
			b.WriteString(strconv.Itoa(len(part)))
			b.WriteByte(':')
			b.WriteString(part)
		}
		return b.String(), nil
	}
}

// FirstOf keys by the first of several keys that the request carries, such as an API key, or else
// the client's address. The position is part of the key, so that a client which chooses the value
// of one cannot pass for another. An error other than policy.ErrNoKey ends the search.
func FirstOf(keys ...KeyFunc) KeyFunc {
	check("FirstOf", keys)
	return func(c *gin.Context) (string, error) {
		for i, key := range keys {
			value, err := resolve(key, c)
			if errors.Is(err, policy.ErrNoKey) {
				continue
			}
			if err != nil {
				return "", err
			}
			return strconv.Itoa(i) + ":" + value, nil
		}
		return "", policy.ErrNoKey
	}
}

func check(name string, keys []KeyFunc) {
	if len(keys) == 0 {
		panic("ginmw: " + name + ": no keys")
	}
	for _, key := range keys {
		if key == nil {
			panic("ginmw: " + name + ": nil key")
		}
	}
}

// resolve calls a user's KeyFunc, for which an empty key is none.
func resolve(key KeyFunc, c *gin.Context) (string, error) {
	value, err := key(c)
	if err != nil {
		return "", err
	}
	return nonEmpty(value)
}

func nonEmpty(value string) (string, error) {
	if value == "" {
		return "", policy.ErrNoKey
	}
	return value, nil
}
