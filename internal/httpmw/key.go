package httpmw

import (
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// RouteAdapter gives key functions their view of a request, in a framework with routes of its own.
type RouteAdapter[C any] interface {
	Request(c C) *http.Request
	// Path returns the pattern of the route.
	Path(c C) string
	// Routed reports whether the request has matched a route.
	Routed(c C) bool
	// Param returns the value of a parameter. It returns false if the route has no such parameter.
	Param(c C, name string) (string, bool)
	// Value returns a value of the framework's own context. It returns false if there is none.
	Value(c C, key any) (any, bool)
}

// ByRequest keys by a function of the net/http request.
func ByRequest[C any](a RouteAdapter[C], key func(*http.Request) (string, error)) func(C) (string, error) {
	return func(c C) (string, error) { return key(a.Request(c)) }
}

// ByParam keys by a parameter of the route, decoded. If a request without a route lacks it, that is
// no mistake of the application. framework is the name of the framework's package.
func ByParam[C any](a RouteAdapter[C], framework, name string) func(C) (string, error) {
	missing := keys.NotProvided("%s: ByParam: the request's route has no parameter %q", framework, name)
	return func(c C) (string, error) {
		switch value, ok := a.Param(c, name); {
		case strings.Contains(value, "%"):
			param := func(name string) string {
				value, _ := a.Param(c, name)
				return value
			}
			return keys.PathValue(name, param, a.Request(c).URL, keys.Coloned(a.Path(c))), nil
		case !ok && a.Routed(c):
			return "", missing
		default:
			return keys.NonEmpty(value)
		}
	}
}

// ByRoute keys by the request's method and route pattern.
func ByRoute[C any](a RouteAdapter[C]) func(C) (string, error) {
	return func(c C) (string, error) { return a.Request(c).Method + " " + a.Path(c), nil }
}

// ByContext keys by a value of the framework's context or the request's. name is the framework's
// package.
func ByContext[C any](a RouteAdapter[C], name string, key any) func(C) (string, error) {
	of := keys.OfContext(name, key)
	return func(c C) (string, error) {
		value, ok := a.Value(c, key)
		if !ok {
			value = a.Request(c).Context().Value(key)
		}
		return of(value)
	}
}

// Global gives every request the same key.
func Global[C any](C) (string, error) { return keys.Global, nil }
