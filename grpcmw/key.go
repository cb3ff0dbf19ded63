// Package grpcmw has what the gRPC interceptors of all policies share: functions that say by what a
// call is limited, locked or scoped, which calls an interceptor leaves alone, and what a refusal
// looks like. The interceptors themselves are in its subpackages.
//
// Each policy has interceptors for unary calls and for streams. [ServerOptions] installs both, in
// the order given, the first outermost:
//
//	grpc.NewServer(grpcmw.ServerOptions(
//		ratelimit.New(limiter, grpcmw.ByClientIP(clientip.Direct())),
//		authentication,
//		idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(userKey{}))),
//		exclusive.New(carts, grpcmw.ByField("cart_id"), policy.Wait(2*time.Second)),
//	)...)
//
// A refusal is a status with details (google.rpc), which [StatusOf] describes.
package grpcmw

import (
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/keys"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// KeyFunc returns the key of a call: what it is limited by. It returns policy.ErrNoKey, or an empty
// key, if the call does not carry one, and is then refused with INVALID_ARGUMENT. Any other error is
// the server's: INTERNAL.
type KeyFunc func(call *Call) (string, error)

// ByMetadata keys by the value of the call's metadata of this name. Clients choose what they send: use
// it only for what has been verified, or where a choice gains them nothing. Several values of the name
// count as none.
func ByMetadata(name string) KeyFunc {
	name = strings.ToLower(name)
	return func(call *Call) (string, error) {
		return keys.Only(metadata.ValueFromIncomingContext(call.ctx, name))
	}
}

// ByPeer keys by the address of the connection's other end: an IPv4 address, or the /64 of an IPv6
// one. Behind a proxy all clients are one; use [ByClientIP] there. A peer without an IP address, such
// as a Unix socket's, is the server's error.
func ByPeer() KeyFunc { return ByClientIP(clientip.Direct()) }

// ByClientIP keys by the client's address: an IPv4 address, or the prefix of an IPv6 one, as resolver
// finds it from the peer's address and, where it trusts proxies, the metadata x-forwarded-for.
func ByClientIP(resolver clientip.Resolver) KeyFunc {
	return func(call *Call) (string, error) {
		var request http.Request
		if p, ok := peer.FromContext(call.ctx); ok && p.Addr != nil {
			request.RemoteAddr = p.Addr.String()
		}
		if values := metadata.ValueFromIncomingContext(call.ctx, "x-forwarded-for"); values != nil {
			request.Header = http.Header{"X-Forwarded-For": values}
		}
		return resolver.Key(&request)
	}
}

// ByMethod keys by the method in full, such as /shop.Shop/Checkout.
func ByMethod() KeyFunc {
	return func(call *Call) (string, error) { return keys.NonEmpty(call.method) }
}

// ByField keys by a field of the request, such as "cart_id" or "order.customer.id": a string, an
// integer, a bool or an enum. An empty string, and a message on the way that is not set, is no key;
// a number that is 0 is one. A path that the request does not have is the server's error, and so is a
// stream of requests.
func ByField(path string) KeyFunc {
	names := strings.Split(path, ".")
	return func(call *Call) (string, error) {
		request, err := call.Request()
		if err != nil {
			return "", err
		}
		message, ok := request.(proto.Message)
		if !ok {
			return "", fmt.Errorf("grpcmw: ByField: the request of %s is a %T, not a protobuf message", call.method, request)
		}
		return field(message.ProtoReflect(), names)
	}
}

func field(message protoreflect.Message, names []string) (string, error) {
	descriptor := message.Descriptor().Fields().ByName(protoreflect.Name(names[0]))
	if descriptor == nil || descriptor.IsList() || descriptor.IsMap() {
		return "", fmt.Errorf("grpcmw: ByField: %s has no single field %q", message.Descriptor().FullName(), names[0])
	}
	value := message.Get(descriptor)
	switch kind := descriptor.Kind(); {
	case len(names) > 1 && kind == protoreflect.MessageKind && !message.Has(descriptor):
		return "", policy.ErrNoKey
	case len(names) > 1 && kind == protoreflect.MessageKind:
		return field(value.Message(), names[1:])
	case len(names) > 1:
		return "", fmt.Errorf("grpcmw: ByField: %s is no message", descriptor.FullName())
	case kind == protoreflect.StringKind:
		return keys.NonEmpty(value.String())
	case kind == protoreflect.EnumKind:
		return fmt.Sprint(value.Enum()), nil
	case kind == protoreflect.BytesKind, kind == protoreflect.FloatKind, kind == protoreflect.DoubleKind,
		kind == protoreflect.MessageKind, kind == protoreflect.GroupKind:
		return "", fmt.Errorf("grpcmw: ByField: %s is a %v, want a string, an integer, a bool or an enum", descriptor.FullName(), kind)
	default:
		return value.String(), nil
	}
}

// ByContext keys by a value that an earlier interceptor, such as authentication, put into the call's
// context under this key. The value is a string, an integer or a fmt.Stringer.
func ByContext(key any) KeyFunc {
	return func(call *Call) (string, error) { return keys.OfValue("grpcmw", call.ctx.Value(key)) }
}

// Global gives every call the same key.
func Global() KeyFunc {
	return func(*Call) (string, error) { return keys.Global, nil }
}

// Join keys by several keys together, such as a tenant and a method. A call needs all of them. The
// parts cannot run into each other: no two lists of keys are joined to the same text.
func Join(parts ...KeyFunc) KeyFunc { return keys.Join("grpcmw", parts) }

// FirstOf keys by the first of several keys that the call carries, such as an API key, or else the
// client's address. The position is part of the key, so that a client which chooses the value of one
// cannot pass for another. An error other than policy.ErrNoKey ends the search.
func FirstOf(choices ...KeyFunc) KeyFunc { return keys.FirstOf("grpcmw", choices) }
