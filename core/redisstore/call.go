package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var errStuck = store.Unavailable(store.Timeout, "redis: too many requests wait for their turn")

// urgency says whether a call is made though the breaker is open.
type urgency int

const (
	ordinary urgency = iota
	// finishing calls end what was begun: they are always tried.
	finishing
)

// largeBytes is from what size on silence says nothing of a node: the network may be slow.
const largeBytes = 256 << 10

// call runs f, which talks to a node, in the caller's goroutine. The context of f ends with the caller's, and
// when there is no connection, or no reply, within the store's deadline.
func call[T any](ctx context.Context, n *node, op operation, u urgency, f func(context.Context) (T, error)) (T, error) {
	told := n.store.telemetry.Begin(ctx, string(op))
	value, err := callUntold(ctx, n, 0, 0, u, !op.reads(), f)
	told.End(ctx, err)
	n.store.logFault(ctx, n, err)
	return value, err
}

// logFault logs what an error says of the server that time does not mend.
func (s *Store) logFault(ctx context.Context, n *node, err error) {
	switch {
	case err == nil:
	case isDamage(err):
		s.damage.Found(ctx)
	case errors.Is(err, store.ErrMisconfigured):
		if store.CauseOf(err) == store.Authentication {
			n.loaded.Store(false) // load finds out when that is mended
		}
		s.misconfigured.Found(ctx, "cause", string(store.CauseOf(err)), "error", err)
	}
}

// admit lets a call pass, or returns why not. It returns where to report the result of the call.
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

// callUntold is call without telemetry, for a call that may write, or not: of so many bytes, and as many more that
// the reply may have.
func callUntold[T any](ctx context.Context, n *node, bytes, replyBytes int, u urgency, writes bool, f func(context.Context) (T, error)) (value T, err error) {
	r, err := n.admit(ctx, u)
	if err != nil {
		return value, err
	}
	s := n.store
	c := s.deadlines.context(ctx, n, s.config.timeout, s.config.timeout+s.timeFor(bytes+replyBytes))
	c.writes, c.large = writes, bytes >= largeBytes
	if value, err = f(c); isTimeout(err) {
		if end, ok := c.Deadline(); ok && !time.Now().Before(end) {
			<-c.Done() // the connection has noticed a moment earlier
		}
	}
	s.deadlines.giveBack(c)
	late := err != nil && c.Err() != nil && !isReply(err)
	if late && c.refused != nil {
		err, late = c.refused, false
	}
	n.tell(ctx, c, r, err)
	if late {
		if !c.sent.wasWritten() {
			n.warm()
		}
		err = tooLate(c, &c.sent)
	}
	return value, explain(err, c.sent.open())
}

// tooLate is the error of a call whose context ended before there was a reply.
func tooLate(ctx context.Context, sent *wire) error {
	what := "no connection in time"
	if sent.wasWritten() {
		what = "no reply in time"
	}
	return fmt.Errorf("%s: %w", what, context.Cause(ctx))
}
