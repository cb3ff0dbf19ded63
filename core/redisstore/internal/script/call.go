package script

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Operation is the purpose of a call.
type Operation struct {
	Name string // in telemetry
	// Reads is set if the call only reads, so that its success does not prove that writes work.
	Reads bool
	// AnyOutcome is set if it does not matter whether the call has run, as for one that only reads:
	// its errors are never unconfirmed.
	AnyOutcome bool
}

func (op *Operation) anyOutcome() bool { return op.Reads || op.AnyOutcome }

// route finds the servers of a Cluster.
var route = Operation{Name: "route", Reads: true}

// Urgency determines whether a call is made although the breaker is open.
type Urgency = batch.Urgency

const (
	// Ordinary calls fail at once while the breaker is open.
	Ordinary = batch.Ordinary
	// Reading calls change nothing. They are also made if the breaker is open because the server
	// takes no writes.
	Reading = batch.Reading
	// Finishing calls, such as releases, end something. They are always tried.
	Finishing = batch.Finishing
)

// largeBytes is the size from which on a missing reply does not make the breaker doubt a node: the
// network may be slow.
const largeBytes = 256 << 10

// Command is a call that runs no script.
type Command struct {
	Operation
	Urgency
	Bytes int // of the reply, if it may be large
}

// Do runs f, which sends a command to a node, in the caller's goroutine. The context of f ends with
// the caller's, and if there is no connection, or no reply, within the timeout.
func Do[T any](ctx context.Context, n *Node, cmd Command, f func(context.Context) (T, error)) (T, error) {
	timing := n.owner.telemetry.Begin(ctx, cmd.Name)
	a := attempt{node: n, urgency: cmd.Urgency, bytes: cmd.Bytes, writes: !cmd.Reads, anyOutcome: cmd.anyOutcome()}
	err := a.begin(ctx)
	var value T
	if err == nil {
		value, err = f(a.context)
		err = a.finish(err)
	}
	timing.End(ctx, err)
	n.LogFault(ctx, err)
	return value, err
}

// EvalOnce runs a script that must not run twice on a node. It is repeated only if it has certainly
// not run. read reads the reply.
func EvalOnce[T any](ctx context.Context, n *Node, op Operation, u Urgency, call Call, read func(any) (T, error)) (value T, err error) {
	timing := n.owner.telemetry.Begin(ctx, op.Name)
	a := attempt{node: n, urgency: u, writes: u != Reading}
	if err = a.begin(ctx); err == nil {
		var reply any
		reply, err = n.eval(a.context, true, call)
		if err = a.finish(err); err == nil {
			value, err = read(reply)
		}
	}
	timing.End(ctx, err)
	n.LogFault(ctx, err)
	return value, err
}

// attempt is a call of a node: its admission, its deadline, and the verdict for the breaker.
type attempt struct {
	node    *Node
	urgency Urgency
	writes  bool // it may write
	// anyOutcome is that of its Operation.
	anyOutcome bool
	// bytes is the size of the request, replyBytes that of the largest possible reply.
	bytes, replyBytes int

	admitted breaker.Call
	context  *callContext
}

// begin admits the call, or returns the reason not to. The call then uses a.context, and ends with
// finish.
func (a *attempt) begin(ctx context.Context) error {
	n := a.node
	if n.owner.closed.Load() {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.urgency != Finishing {
		admitted, err := n.breaker.Allow(a.urgency == Reading)
		if err != nil {
			return err
		}
		a.admitted = admitted
	}
	timeout := n.owner.config.Timeout
	a.context = n.owner.deadlines.context(ctx, n, timeout, timeout+n.owner.timeFor(a.bytes+a.replyBytes))
	a.context.reads.Store(a.urgency == Reading)
	a.context.writes, a.context.large = a.writes, a.bytes >= largeBytes
	return nil
}

// finish ends the call, reports its result to the breaker, and returns its error for the caller.
func (a *attempt) finish(err error) error {
	n, c := a.node, a.context
	if err != nil && c.Err() == nil && isTimeout(err) {
		if end, ok := c.Deadline(); ok && !time.Now().Before(end) {
			<-c.Done() // the connection timed out a moment earlier
		}
	}
	n.owner.deadlines.release(c)
	late := err != nil && c.Err() != nil && !redisfault.IsReply(err)
	if late && c.refused != nil {
		err, late = c.refused, false
	}
	n.reportResult(c, a.admitted, err)
	if late {
		if !c.sent.wasWritten() {
			n.warm()
		}
		err = tooLate(c, &c.sent)
	}
	return n.Explain(err, c.sent.open() && !a.anyOutcome)
}

// tooLate returns the error of a call whose context ended before there was a reply.
func tooLate(ctx context.Context, sent *inFlight) error {
	what := "no connection in time"
	if sent.wasWritten() {
		what = "no reply in time"
	}
	return fmt.Errorf("%s: %w", what, context.Cause(ctx))
}

// Failed returns the error of one decision in the reply to a call as an error of a store.
func (n *Node) Failed(ctx context.Context, err error) error {
	if breaker.IsFailure(verdict(err)) {
		n.breaker.Doubt(time.Now())
	}
	err = n.Explain(err, false)
	n.LogFault(ctx, err)
	return err
}

// LogDamage logs records that a script has found damaged.
func (c *Client) LogDamage(ctx context.Context, attributes ...any) {
	c.damage.Found(ctx, attributes...)
}

// LogFault logs errors that do not end by themselves: damage and misconfiguration.
func (n *Node) LogFault(ctx context.Context, err error) {
	switch {
	case err == nil:
	case isDamage(err):
		n.owner.damage.Found(ctx)
	case errors.Is(err, store.ErrMisconfigured):
		if store.CauseOf(err) == store.Authentication {
			n.loaded.Store(false) // load checks whether that has changed
		}
		n.owner.misconfigured.Found(ctx, "cause", string(store.CauseOf(err)), "error", err)
	}
}
