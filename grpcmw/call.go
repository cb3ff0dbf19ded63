package grpcmw

import "context"

// Call is a call as interceptors see it, before its handler runs.
type Call struct {
	ctx     context.Context
	method  string
	request any
	receive func() (any, error)
}

// NewCall returns a unary call, as a test of a key function needs it. The method is in full, such
// as /shop.Shop/Checkout.
func NewCall(ctx context.Context, fullMethod string, request any) *Call {
	return &Call{ctx: ctx, method: fullMethod, request: request}
}

// NewStreamCall returns the call of a stream, whose request is what receive returns.
func NewStreamCall(ctx context.Context, fullMethod string, receive func() (any, error)) *Call {
	return &Call{ctx: ctx, method: fullMethod, receive: receive}
}

// Context is the call's context, in which are its metadata, its peer, and what earlier interceptors
// have put there.
func (c *Call) Context() context.Context { return c.ctx }

// FullMethod is the method in full, such as /shop.Shop/Checkout.
func (c *Call) FullMethod() string { return c.method }

// Request returns the request's message, which must not be changed. Of a stream to which the client
// sends one message only, it is that message, which is waited for. A stream of requests has none:
// the error then is the server's, since such a method cannot be keyed by a request.
func (c *Call) Request() (any, error) {
	if c.receive != nil {
		return c.receive()
	}
	return c.request, nil
}
