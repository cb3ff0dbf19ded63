// Package connectmw has what the interceptors of all policies for connect-go share: functions that
// return the key or the scope of a call, the options of every interceptor, and what a refusal looks
// like. The interceptors are its subpackages.
//
// Each policy has an interceptor for unary calls and streams of handlers, whether their clients
// speak Connect, gRPC or gRPC-Web. The first is the outermost:
//
//	shopv1connect.NewShopServiceHandler(shop, connect.WithInterceptors(
//		ratelimit.New(limiter, connectmw.ByClientIP(clientip.Direct())),
//		authentication,
//		idempotency.New(orders, connectmw.ScopeBy(connectmw.ByContext(userKey{}))),
//		exclusive.New(carts, connectmw.ByField("cart_id"), policy.Wait(2*time.Second)),
//	))
//
// The order that makes sense is: tracing, limit by address, authentication and authorisation, limit
// by user, idempotency, exclusive, concurrency, fenced. An interceptor of handlers that is given to
// a client fails each of its calls, and so does one of clients that is given to a handler.
//
// Connect has received a request, and decompressed it, before interceptors see a unary call: bound
// that with connect.WithReadMaxBytes, and limit by address in front of the handler, with package
// nethttp, where the memory for requests matters.
//
// A refusal is a *connect.Error with details (google.rpc), which [ErrorOf] describes.
package connectmw

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a call: what it is limited by.
//
// If the client should have sent what it looks for and did not, it returns policy.ErrNoKey, or an
// empty key: the call is refused with invalid_argument. If the application should have provided it,
// it returns an error that matches policy.ErrNotProvided and says what is missing: the call is
// refused with internal, and the first one of an interceptor is logged (policy.Logger). Any other
// error is internal too. Neither policy.FailOpen nor policy.RunUnprotected lets such a call pass.
type KeyFunc func(call *Call) (string, error)

// ByHeader keys by the value of a request header field. Clients choose what they send:
// [nethttp.ByHeader] says what such a key is good for, and that it protects from no client. Several
// values of the name count as none.
func ByHeader(name string) KeyFunc {
	return func(call *Call) (string, error) { return keys.Only(call.header.Values(name)) }
}

// ByPeer keys by the address of the connection's other end: an IPv4 address, the /64 of an IPv6
// one, or "unix" for all clients of a Unix socket together. Behind a proxy all clients are one; use
// [ByClientIP] there. A peer on another transport, which has no address, is policy.ErrNotProvided.
func ByPeer() KeyFunc { return ByClientIP(clientip.Direct()) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as
// resolver finds it. All else is as with [ByPeer].
func ByClientIP(resolver clientip.Resolver) KeyFunc {
	key := nethttp.ByClientIP(resolver)
	return func(call *Call) (string, error) { return key(requestOf(call)) }
}

// ClientIn reports whether a call's client has an address in one of the networks, as resolver finds
// it, for [Unless] and for interceptors that refuse some addresses: see [nethttp.ClientIn].
func ClientIn(resolver clientip.Resolver, networks ...netip.Prefix) func(call *Call) bool {
	in := resolver.In(networks...)
	return func(call *Call) bool { return in(requestOf(call)) }
}

// requestOf returns a request with what resolvers look at. The context has the server's address, by
// which they know a Unix socket.
func requestOf(call *Call) *http.Request {
	return (&http.Request{RemoteAddr: call.peer.Addr, Header: call.header}).WithContext(call.ctx)
}

// ByProcedure keys by the method in full, such as /shop.v1.ShopService/Checkout.
func ByProcedure() KeyFunc {
	return func(call *Call) (string, error) { return keys.NonEmpty(call.spec.Procedure) }
}

// ByField keys by a field of the request, such as "cart_id" or "order.customer.id": a string, an
// integer, a bool or an enum. An empty string, and a message on the way that is not set, is no key;
// a number that is 0 is one. A path that the request's type does not have is policy.ErrNotProvided,
// and so is the request of a method to which clients stream requests.
func ByField(path string) KeyFunc {
	names := strings.Split(path, ".")
	return func(call *Call) (string, error) {
		request, err := call.Request()
		if err != nil {
			return "", err
		}
		message, ok := request.(proto.Message)
		if !ok {
			return "", keys.NotProvided("connectmw: ByField: the request of %s is a %T, not a protobuf message", call.spec.Procedure, request)
		}
		return field(message.ProtoReflect(), names)
	}
}

func field(message protoreflect.Message, names []string) (string, error) {
	descriptor := message.Descriptor().Fields().ByName(protoreflect.Name(names[0]))
	if descriptor == nil || descriptor.IsList() || descriptor.IsMap() {
		return "", keys.NotProvided("connectmw: ByField: %s has no single field %q", message.Descriptor().FullName(), names[0])
	}
	value := message.Get(descriptor)
	switch kind := descriptor.Kind(); {
	case len(names) > 1 && kind == protoreflect.MessageKind && !message.Has(descriptor):
		return "", policy.ErrNoKey
	case len(names) > 1 && kind == protoreflect.MessageKind:
		return field(value.Message(), names[1:])
	case len(names) > 1:
		return "", keys.NotProvided("connectmw: ByField: %s is no message", descriptor.FullName())
	case kind == protoreflect.StringKind:
		return keys.NonEmpty(value.String())
	case kind == protoreflect.EnumKind:
		return fmt.Sprint(value.Enum()), nil
	case kind == protoreflect.BytesKind, kind == protoreflect.FloatKind, kind == protoreflect.DoubleKind,
		kind == protoreflect.MessageKind, kind == protoreflect.GroupKind:
		return "", keys.Unusable("connectmw: ByField: %s is a %v, want a string, an integer, a bool or an enum", descriptor.FullName(), kind)
	default:
		return value.String(), nil
	}
}

// ByContext keys by a value that an earlier interceptor, such as authentication, put into the
// call's context under this key. [nethttp.ByContext] says which values are keys.
func ByContext(key any) KeyFunc {
	of := keys.OfContext("connectmw", key)
	return func(call *Call) (string, error) { return of(call.ctx.Value(key)) }
}

// Global gives every call the same key.
func Global() KeyFunc {
	return func(*Call) (string, error) { return keys.Global, nil }
}

// Join keys by several keys together, as [nethttp.Join] does.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("connectmw", parts) }

// FirstOf keys by the first of several keys that the call has, as [nethttp.FirstOf] does:
// FirstOf(ByContext(userKey{}), ByPeer()). Never put a key that the client chooses first.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("connectmw", choices) }
