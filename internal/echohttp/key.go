package echohttp

import (
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/keys"
)

// ByRequest keys by what is in the net/http request.
func ByRequest[C Context](key func(*http.Request) (string, error)) func(C) (string, error) {
	return func(c C) (string, error) { return key(c.Request()) }
}

// ByParam keys by a parameter of the route, decoded. routed reports whether a request has matched a route:
// one that has not lacks parameters through nobody's mistake. The first name is that of the framework's
// package.
func ByParam[C Context](framework, name string, routed func(C) bool) func(C) (string, error) {
	missing := keys.NotProvided("%s: ByParam: the request's route has no parameter %q", framework, name)
	return func(c C) (string, error) {
		switch value := c.Param(name); {
		case strings.Contains(value, "%"):
			return keys.PathValue(name, c.Param, c.Request().URL, keys.Coloned(c.Path())), nil
		case value == "" && routed(c) && !keys.Coloned(c.Path()).Has(name):
			return "", missing
		default:
			return keys.NonEmpty(value)
		}
	}
}

// ByRoute keys by the request's method and route pattern.
func ByRoute[C Context](c C) (string, error) { return c.Request().Method + " " + c.Path(), nil }

// ByContext keys by a value of echo's context or the request's. The name is that of the framework's
// package.
func ByContext[C Context](name string, key any) func(C) (string, error) {
	of := keys.OfContext(name, key)
	return func(c C) (string, error) {
		var value any
		if k, ok := key.(string); ok {
			value = c.Get(k)
		}
		if value == nil {
			value = c.Request().Context().Value(key)
		}
		return of(value)
	}
}

// Global gives every request the same key.
func Global[C Context](C) (string, error) { return keys.Global, nil }
