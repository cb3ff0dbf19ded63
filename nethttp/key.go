// Package nethttp has the common parts of the net/http middleware of all policies: functions that
// return the key or the scope of a request, and the options of every middleware. The middleware are
// its subpackages.
//
// A middleware is a func(http.Handler) http.Handler, as http.ServeMux, chi and gorilla/mux take it.
// Round a handler that is registered with a mux, the request has been routed, and [ByPathValue] and
// [ByPattern] find the values of the route. Round the mux itself, no route has been chosen yet, and
// they find nothing:
//
//	mux.Handle("PUT /carts/{id}", exclusive.New(carts, nethttp.ByPathValue("id"))(updateCart))
//	http.ListenAndServe(addr, ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(mux))
//
// No middleware hides the abilities of a ResponseWriter: http.ResponseController flushes, sets
// deadlines and hijacks through all of them. All but idempotency pass the ResponseWriter on as it
// is.
package nethttp

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a request, by which the middleware limits, locks or checks it.
//
// If the client should have sent the key and did not, KeyFunc returns policy.ErrNoKey, or an empty
// key: the request is refused with status 400. If the application should have provided it, KeyFunc
// returns an error that matches policy.ErrNotProvided and names the missing value: the request is
// refused with status 500, and the first one of a middleware is logged (policy.Logger). Any other
// error is status 500 too. Neither policy.FailOpen nor policy.RunUnprotected lets such a request
// pass.
//
// A KeyFunc may read the body of the request, of which it gets a copy of up to policy.MaxBody. It
// returns the error of a read, or wraps it, and the request is refused with 413, 400 or 503. The
// same holds for the functions of ScopeBy, [Unless], ratelimit.Costs and concurrency.Tiers.
type KeyFunc func(r *http.Request) (string, error)

// ByHeader keys by the value of a request header field. Suitable fields are one that your own proxy
// sets, and removes from requests of clients; and one by which a client divides its own resources,
// joined to its identity: Join(ByContext(…), ByHeader(…)) in front of exclusive.
//
// Clients choose the value. A limit by a header protects from none of them: with a fresh value for
// every request, 1,000 of 1,000 pass a limit of 3 an hour. A scope by a header gives a client's
// answers to every client that sends its value. For both, use the identity that authentication has
// verified ([ByContext]), or the address ([ByClientIP]). Several fields of the name count as none.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) { return keys.Only(r.Header[name]) }
}

// ByCookie keys by the value of a cookie. The client chooses it like a header field: the
// limitations of [ByHeader] hold for cookies too. Several cookies of the name count as none.
func ByCookie(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		cookies := r.CookiesNamed(name)
		if len(cookies) != 1 {
			return keys.Only(nil)
		}
		return keys.NonEmpty(cookies[0].Value)
	}
}

// ByPathValue keys by a wildcard of the route, such as id in /carts/{id}: the request's PathValue,
// decoded. http.ServeMux decodes it; chi does not if a path has unnecessary escapes. Here /carts/42
// and /carts/4%32 are one key with both. gorilla/mux sets no PathValue. There the key is
//
//	func(r *http.Request) (string, error) { return mux.Vars(r)["id"], nil }
//
// There is no wildcard before a request is routed, in middleware round the mux or in chi's Use, nor
// in a route whose pattern lacks it. That is policy.ErrNotProvided, for every request: put the
// middleware round the handler (in chi, use With).
func ByPathValue(name string) KeyFunc {
	missing := keys.NotProvided("nethttp: ByPathValue: the request's route has no wildcard %q; "+
		"the middleware must be round the handler of such a route, not round the mux", name)
	return func(r *http.Request) (string, error) {
		switch value := r.PathValue(name); {
		case strings.Contains(value, "%"):
			return keys.PathValue(name, r.PathValue, r.URL, keys.Braced(r.Pattern)), nil
		case value == "" && !keys.Braced(r.Pattern).Has(name):
			return "", missing
		default:
			return keys.NonEmpty(value)
		}
	}
}

// ByPattern keys by the pattern of the route as it was registered, such as "PUT /carts/{id}", from
// the request's Pattern. A pattern without a method is one key for all methods. http.ServeMux sets
// it, and chi does, without the method; gorilla/mux does not.
//
// Before a request is routed it has no pattern: see [ByPathValue].
func ByPattern() KeyFunc {
	missing := keys.NotProvided("nethttp: ByPattern: the request has no route; the middleware must be round a handler, not round the mux")
	return func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", missing
		}
		return r.Pattern, nil
	}
}

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as
// resolver finds it, or "unix" for all clients of a Unix socket together. A request with no
// address, as when a middleware has overwritten its RemoteAddr, is policy.ErrNotProvided.
func ByClientIP(resolver clientip.Resolver) KeyFunc {
	return func(r *http.Request) (string, error) {
		key, err := resolver.Key(r)
		if err != nil {
			return "", fmt.Errorf("%w: nethttp: ByClientIP: %w", policy.ErrNotProvided, err)
		}
		return key, nil
	}
}

// ClientIn reports whether a request's client has an address in one of the networks, as resolver
// finds it: [clientip.Resolver.In]. With [Unless], clients of these networks pass a middleware:
//
//	office, err := clientip.ParseNetworks("198.51.100.0/24", "2001:db8:7::/48")
//	…
//	ratelimit.New(limiter, byUser, nethttp.Unless(nethttp.ClientIn(clientip.Direct(), office...)))
//
// To refuse a list of clients, write a middleware with an if that answers with status 403, in front
// of all others: see the example. List the /64 of a client with IPv6, which can change its address
// within that. A client whose address is not known, such as one of a Unix socket, is in no network.
// ClientIn panics if a network is invalid.
func ClientIn(resolver clientip.Resolver, networks ...netip.Prefix) func(r *http.Request) bool {
	return resolver.In(networks...)
}

// ByContext keys by a value that an earlier middleware, such as authentication, put into the
// request's context under this key: a string, an integer or a fmt.Stringer. A missing value, the
// zero value of its type (a nil pointer, 0) and an empty text are policy.ErrNotProvided: the
// middleware that provides the value must run before, and refuse requests without one.
func ByContext(key any) KeyFunc {
	of := keys.OfContext("nethttp", key)
	return func(r *http.Request) (string, error) { return of(r.Context().Value(key)) }
}

// Global gives every request the same key.
func Global() KeyFunc {
	return func(*http.Request) (string, error) { return keys.Global, nil }
}

// Join keys by several keys together, such as a tenant and a route. A request needs all of them.
// Different lists of keys never join to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("nethttp", parts) }

// FirstOf keys by the first of several keys that the request has, such as the user, or else the
// client's address: FirstOf(ByContext(userKey{}), ByClientIP(clientip.Direct())). The position is
// part of the key, so that a client that chooses the value of one cannot pass for another. Never
// put a key that the client chooses first: a client that sends a fresh one each time never reaches
// the next. FirstOf skips keys that the client did not send or the application did not provide; any
// other error ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("nethttp", choices) }
