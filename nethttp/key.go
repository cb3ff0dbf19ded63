// Package nethttp has what the net/http middleware of all policies share: functions that say by what
// a request is limited, locked or scoped, and which requests a middleware leaves alone. The
// middleware themselves are its subpackages.
//
// A middleware is a func(http.Handler) http.Handler, as http.ServeMux, chi and gorilla/mux take it.
// Where it stands decides what it knows: round a handler that is registered with a mux, the request
// has been routed, and [ByPathValue] and [ByPattern] find what the route says. Round the mux itself,
// no route has been chosen yet, and they find nothing:
//
//	mux.Handle("PUT /carts/{id}", exclusive.New(carts, nethttp.ByPathValue("id"))(updateCart))
//	http.ListenAndServe(addr, ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(mux))
//
// No middleware hides what a ResponseWriter can do: http.ResponseController flushes, sets deadlines
// and hijacks through all of them. All but idempotency hand on the ResponseWriter as it is.
package nethttp

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/internal/keys"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request: what it is limited by. It returns policy.ErrNoKey, or an
// empty key, if the request does not carry one, and is then refused with status 400. Any other
// error is the server's: status 500.
type KeyFunc func(r *http.Request) (string, error)

// ByHeader keys by the value of a request header field. Clients choose what they send: use it only
// for what has been verified, or where a choice gains them nothing. Several fields of the name
// count as none.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) { return keys.Only(r.Header[name]) }
}

// ByCookie keys by the value of a cookie. What is said of [ByHeader] is true of cookies too.
func ByCookie(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		cookies := r.CookiesNamed(name)
		if len(cookies) != 1 {
			return keys.Only(nil)
		}
		return keys.NonEmpty(cookies[0].Value)
	}
}

// ByPathValue keys by a wildcard of the route, such as id in /carts/{id}: what the request's
// PathValue returns. http.ServeMux sets it, and chi does; gorilla/mux does not, where the key is
//
//	func(r *http.Request) (string, error) { return mux.Vars(r)["id"], nil }
//
// Before a request is routed, in middleware round the mux or in chi's Use, there is none, and every
// request is refused with status 400: put the middleware round the handler (in chi, use With).
func ByPathValue(name string) KeyFunc {
	return func(r *http.Request) (string, error) { return keys.NonEmpty(r.PathValue(name)) }
}

// ByPattern keys by the pattern of the route as it was registered, such as "PUT /carts/{id}": what is
// in the request's Pattern. A pattern without a method is one key for all methods. http.ServeMux
// sets it, and chi does, without the method; gorilla/mux does not.
//
// Before a request is routed there is none, and every request is refused with status 400: see
// [ByPathValue].
func ByPattern() KeyFunc {
	return func(r *http.Request) (string, error) { return keys.NonEmpty(r.Pattern) }
}

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as
// resolver finds it.
func ByClientIP(resolver clientip.Resolver) KeyFunc { return resolver.Key }

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// request's context under this key. The value is a string, an integer or a fmt.Stringer.
func ByContext(key any) KeyFunc {
	return func(r *http.Request) (string, error) {
		return keys.OfValue("nethttp", r.Context().Value(key))
	}
}

// Global gives every request the same key.
func Global() KeyFunc {
	return func(*http.Request) (string, error) { return keys.Global, nil }
}

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// The parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("nethttp", parts) }

// FirstOf keys by the first of several keys that the request carries, such as an API key, or else
// the client's address. The position is part of the key, so that a client which chooses the value
// of one cannot pass for another. An error other than policy.ErrNoKey ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("nethttp", choices) }
