// Package adapter is how interceptors work in connect.
package adapter

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"connectrpc.com/connect"
)

// Server is the connect.Interceptor of a policy for handlers.
type Server struct {
	// Package is the package of the policy, for errors.
	Package string
	Unary   func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error)
	Stream  func(ctx context.Context, conn connect.StreamingHandlerConn, next connect.StreamingHandlerFunc) error
}

// WrapUnary implements connect.Interceptor.
func (s *Server) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if req.Spec().IsClient {
			return nil, misplaced(s.Package, "handlers", "client")
		}
		return s.Unary(ctx, req, next)
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (s *Server) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error { return s.Stream(ctx, conn, next) }
}

// WrapStreamingClient implements connect.Interceptor.
func (s *Server) WrapStreamingClient(connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(_ context.Context, spec connect.Spec) connect.StreamingClientConn {
		return NewFailed(spec, misplaced(s.Package, "handlers", "client"))
	}
}

// Client is the connect.Interceptor of a policy for clients. Stream may be nil: then streams pass.
type Client struct {
	// Package is the package of the policy, for errors.
	Package string
	Unary   func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error)
	Stream  func(ctx context.Context, spec connect.Spec, next connect.StreamingClientFunc) connect.StreamingClientConn
}

// WrapUnary implements connect.Interceptor.
func (c *Client) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if !req.Spec().IsClient {
			return nil, misplaced(c.Package, "clients", "handler")
		}
		return c.Unary(ctx, req, next)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (c *Client) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	if c.Stream == nil {
		return next
	}
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return c.Stream(ctx, spec, next)
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (c *Client) WrapStreamingHandler(connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(context.Context, connect.StreamingHandlerConn) error {
		return misplaced(c.Package, "clients", "handler")
	}
}

// misplaced is the error of every call on the side that an interceptor is not for. Connect does not
// say which side it is when a client or a handler is made.
func misplaced(name, of, given string) error {
	return connect.NewError(connect.CodeInternal, fmt.Errorf("connectmw/%s: an interceptor of %s was given to a %s", name, of, given))
}

// Address returns an address that all interceptors of a call see: that of the request's header.
func Address(header http.Header) uintptr { return reflect.ValueOf(header).Pointer() }

// failed is a client's stream that was not begun.
type failed struct {
	spec                     connect.Spec
	err                      error
	request, header, trailer http.Header
}

// NewFailed returns a stream that fails with this error.
func NewFailed(spec connect.Spec, err error) connect.StreamingClientConn {
	return &failed{spec, err, http.Header{}, http.Header{}, http.Header{}}
}

func (f *failed) Spec() connect.Spec           { return f.spec }
func (*failed) Peer() connect.Peer             { return connect.Peer{} }
func (f *failed) Send(any) error               { return f.err }
func (f *failed) RequestHeader() http.Header   { return f.request }
func (*failed) CloseRequest() error            { return nil }
func (f *failed) Receive(any) error            { return f.err }
func (f *failed) ResponseHeader() http.Header  { return f.header }
func (f *failed) ResponseTrailer() http.Header { return f.trailer }
func (*failed) CloseResponse() error           { return nil }
