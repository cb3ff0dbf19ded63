package echohttp

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/keys"
)

// ByRequest keys by what is in the net/http request.
func ByRequest[C Context](key func(*http.Request) (string, error)) func(C) (string, error) {
	return func(c C) (string, error) { return key(c.Request()) }
}

// ByParam keys by a parameter of the route. Echo may take it from the path as it was sent, in which
// there are several spellings of one character; they are one key. The function says whether it did.
func ByParam[C Context](name string, asSent func(C) bool) func(C) (string, error) {
	return func(c C) (string, error) {
		value := c.Param(name)
		if strings.Contains(value, "%") && asSent(c) {
			if decoded, err := url.PathUnescape(value); err == nil {
				value = decoded
			}
		}
		return keys.NonEmpty(value)
	}
}

// ByRoute keys by the request's method and route pattern.
func ByRoute[C Context](c C) (string, error) { return c.Request().Method + " " + c.Path(), nil }

// ByContext keys by a value of echo's context or the request's. The name is that of the framework's
// package.
func ByContext[C Context](name string, key any) func(C) (string, error) {
	return func(c C) (string, error) {
		var value any
		if k, ok := key.(string); ok {
			value = c.Get(k)
		}
		if value == nil {
			value = c.Request().Context().Value(key)
		}
		return keys.OfValue(name, value)
	}
}

// Global gives every request the same key.
func Global[C Context](C) (string, error) { return keys.Global, nil }
