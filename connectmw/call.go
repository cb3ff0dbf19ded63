package connectmw

import (
	"context"
	"net/http"

	"connectrpc.com/connect"
)

// Call is a call as interceptors see it, before its handler runs.
type Call struct {
	ctx      context.Context
	spec     connect.Spec
	peer     connect.Peer
	header   http.Header
	request  any
	receive  func() (any, error)
	response response // nil for a call without an answer, such as a client's
}

// response is what connect sends with an answer, whether that is a message or an error.
type response interface {
	ResponseHeader() http.Header
	ResponseTrailer() http.Header
}

// NewCall returns a unary call, as a test of a key function needs it.
func NewCall(ctx context.Context, req connect.AnyRequest) *Call {
	c := &Call{ctx: ctx, spec: req.Spec(), peer: req.Peer(), header: req.Header(), request: req.Any()}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && !c.spec.IsClient {
		c.response = info
	}
	return c
}

// NewStreamCall returns the call of a stream, whose request is what receive returns.
func NewStreamCall(ctx context.Context, conn connect.StreamingHandlerConn, receive func() (any, error)) *Call {
	return &Call{
		ctx: ctx, spec: conn.Spec(), peer: conn.Peer(), header: conn.RequestHeader(), receive: receive, response: conn,
	}
}

// NewClientStreamCall returns the call of a client's stream, which has no request, no header and no
// peer before it begins; receive returns the error that says so.
func NewClientStreamCall(ctx context.Context, spec connect.Spec, receive func() (any, error)) *Call {
	return &Call{ctx: ctx, spec: spec, header: http.Header{}, receive: receive}
}

// Context is the call's context, with what earlier interceptors have put there.
func (c *Call) Context() context.Context { return c.ctx }

// Spec describes the method: its procedure, such as /shop.v1.ShopService/Checkout, and its kind.
func (c *Call) Spec() connect.Spec { return c.spec }

// Peer is the other end of the call, and the protocol that it speaks.
func (c *Call) Peer() connect.Peer { return c.peer }

// Header is the request's header, which must not be changed.
func (c *Call) Header() http.Header { return c.header }

// Request returns the request's message, which must not be changed. Of a stream to which the client
// sends one message only, it is that message, which is waited for; that needs the schema of the
// method (connect.WithSchema), which generated code has. A stream of requests has none: the error
// then is the server's, since such a method cannot be keyed by a request.
func (c *Call) Request() (any, error) {
	if c.receive != nil {
		return c.receive()
	}
	return c.request, nil
}

// ResponseHeader is the header of the answer, for a function of [OnDeny] that adds to it. Of a call
// without an answer, such as a client's, it is an empty one, which is dropped.
func (c *Call) ResponseHeader() http.Header {
	if c.response == nil {
		return http.Header{}
	}
	return c.response.ResponseHeader()
}

// ResponseTrailer is the trailer of the answer, as [Call.ResponseHeader] is its header.
func (c *Call) ResponseTrailer() http.Header {
	if c.response == nil {
		return http.Header{}
	}
	return c.response.ResponseTrailer()
}
