package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var errQueueFull = store.Unavailable(store.Timeout, "redis: too many queued requests")

// urgency is whether a call is made even if the breaker is open.
type urgency int

const (
	ordinary urgency = iota
	// finishing calls end something that was begun: they are always tried.
	finishing
)

// largeBytes is the size from which on a timeout is no evidence against a node: the network may be
// slow.
const largeBytes = 256 << 10

// call runs f, which calls a node, in the caller's goroutine. The context of f ends with the
// caller's, and if there is no connection, or no reply, within the store's timeout.
func call[T any](ctx context.Context, n *node, op operation, u urgency, f func(context.Context) (T, error)) (T, error) {
	timing := n.store.telemetry.Begin(ctx, string(op))
	value, err := callUntraced(ctx, n, 0, 0, u, !op.reads(), f)
	timing.End(ctx, err)
	n.store.logFault(ctx, n, err)
	return value, err
}

// logFault logs errors that do not end by themselves: damage and misconfiguration.
func (s *Store) logFault(ctx context.Context, n *node, err error) {
	switch {
	case err == nil:
	case isDamage(err):
		s.damage.Found(ctx)
	case errors.Is(err, store.ErrMisconfigured):
		if store.CauseOf(err) == store.Authentication {
			n.loaded.Store(false) // load checks whether that has changed
		}
		s.misconfigured.Found(ctx, "cause", string(store.CauseOf(err)), "error", err)
	}
}

// admit admits a call, or returns why not. It returns the report for the result of the call.
func (n *node) admit(ctx context.Context, u urgency) (report, error) {
	r := report{node: n}
	if n.store.closed.Load() {
		return r, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if u == ordinary {
		if n.isDown() {
			return r, n.downError()
		}
		done, err := n.breaker.Allow()
		if err != nil {
			return r, n.downError()
		}
		r.done = done
	}
	return r, nil
}

// callUntraced is call without telemetry. bytes and replyBytes are the sizes of the request and of
// the largest possible reply.
func callUntraced[T any](ctx context.Context, n *node, bytes, replyBytes int, u urgency, writes bool, f func(context.Context) (T, error)) (value T, err error) {
	r, err := n.admit(ctx, u)
	if err != nil {
		return value, err
	}
	s := n.store
	c := s.deadlines.context(ctx, n, s.config.timeout, s.config.timeout+s.timeFor(bytes+replyBytes))
	c.writes, c.large = writes, bytes >= largeBytes
	if value, err = f(c); isTimeout(err) {
		if end, ok := c.Deadline(); ok && !time.Now().Before(end) {
			<-c.Done() // the connection timed out a moment earlier
		}
	}
	s.deadlines.release(c)
	late := err != nil && c.Err() != nil && !isReply(err)
	if late && c.refused != nil {
		err, late = c.refused, false
	}
	n.reportResult(ctx, c, r, err)
	if late {
		if !c.sent.wasWritten() {
			n.warm()
		}
		err = tooLate(c, &c.sent)
	}
	return value, explain(err, c.sent.open())
}

// tooLate returns the error of a call whose context ended before there was a reply.
func tooLate(ctx context.Context, sent *wire) error {
	what := "no connection in time"
	if sent.wasWritten() {
		what = "no reply in time"
	}
	return fmt.Errorf("%s: %w", what, context.Cause(ctx))
}
