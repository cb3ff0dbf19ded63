package grpcmw

import "google.golang.org/grpc"

// Interceptors are one policy, or something else that stands in its order, for both kinds of calls.
// Either may be nil for what does not concern that kind.
type Interceptors struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

// ServerOptions returns options that install interceptors for unary calls and for streams, the
// first outermost. The order that makes sense is: limit by address, authentication and
// authorisation, limit by user, idempotency, exclusive, concurrency, fenced; tracing is no
// interceptor in gRPC, and result before all of them. It panics if one of the Interceptors is
// empty.
func ServerOptions(chain ...Interceptors) []grpc.ServerOption {
	var unary []grpc.UnaryServerInterceptor
	var stream []grpc.StreamServerInterceptor
	for _, i := range chain {
		if i.Unary == nil && i.Stream == nil {
			panic("grpcmw: ServerOptions: interceptors that are none")
		}
		if i.Unary != nil {
			unary = append(unary, i.Unary)
		}
		if i.Stream != nil {
			stream = append(stream, i.Stream)
		}
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...)}
}
