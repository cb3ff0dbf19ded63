// Package clientctx carries the context of a request's client for work that outlives the
// connection.
package clientctx

import (
	"context"
	"sync"
)

// client ends a context when the client of a request leaves.
type client struct {
	request context.Context

	mu       sync.Mutex
	ctx      context.Context // nil before the first call of context
	stop     func() bool     // watching the request
	answered bool
}

type key struct{}

// Detach returns a context that outlives request: only request's own deadline ends it. [Context]
// finds the client's context in it. After release the client's context does not end any more: the
// end of an answered request does not mean that its client has left.
func Detach(request context.Context) (ctx context.Context, release func()) {
	c := &client{request: request}
	ctx = context.WithValue(context.WithoutCancel(request), key{}, c)
	deadline, ok := request.Deadline()
	if !ok {
		return ctx, c.release
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	return ctx, func() {
		c.release()
		cancel()
	}
}

// Context returns a context that ends when the client of ctx's request leaves. It is ctx itself if
// ctx is not detached, or never ends, as for work that is to outlive the request.
func Context(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	if c, ok := ctx.Value(key{}).(*client); ok {
		return c.context()
	}
	return ctx
}

// Left reports whether the client has left, or ctx is over. It is exact at once; the end of
// [Context] may be a moment later.
func Left(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	c, ok := ctx.Value(key{}).(*client)
	if !ok {
		return false
	}
	c.mu.Lock()
	answered := c.answered
	c.mu.Unlock()
	return !answered && Left(c.request)
}

func (c *client) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx != nil:
	case c.answered:
		c.ctx = context.WithoutCancel(c.request)
	default:
		ctx, left := context.WithCancelCause(context.WithoutCancel(c.request))
		outer := Context(c.request)
		c.ctx, c.stop = ctx, context.AfterFunc(outer, func() { left(context.Cause(outer)) })
	}
	return c.ctx
}

func (c *client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = true
	if c.stop != nil {
		c.stop()
	}
}
