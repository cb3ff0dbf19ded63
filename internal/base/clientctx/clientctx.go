// Package clientctx carries the context of a request's client for work that outlives the connection.
package clientctx

import (
	"context"
	"sync"
)

// client ends a context when the client of a request leaves.
type client struct {
	request context.Context

	mu       sync.Mutex
	ctx      context.Context // nil until it is asked for
	stop     func() bool     // watching the request
	answered bool
}

type key struct{}

// Detach returns a context that request's end does not end, but the request's own deadline does, and in
// which [Context] finds what ends when the client leaves. Once release is called nothing ends that any
// more: the end of a request that was answered is not its client's leaving.
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

// Context returns the context that ends when the client leaves whose request ctx belongs to: ctx itself
// if it is not detached, or never ends, as that of work which is to outlive the request.
func Context(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	if c, ok := ctx.Value(key{}).(*client); ok {
		return c.context()
	}
	return ctx
}

// Left reports whether the client has left, or ctx is over. It knows at once; the end of [Context] takes
// a moment to be seen.
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
