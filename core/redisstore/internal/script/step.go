package script

import (
	"context"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Batched steps are a pipeline: each is a script call of its own, and may be sent twice.

// maxSteps is the maximum work of a pipeline, since other requests wait for it. A step counts as
// one, and as one more for each stepBytes of its arguments.
const (
	maxSteps  = maxPipeline
	stepBytes = 4 << 10
)

// stepsInFlight is the number of calls in flight from which on steps are batched. It is larger than
// batch.MinInFlight, since a step in a pipeline costs the server as much as a single one.
const stepsInFlight = 4

// Step is one run of a script that may be sent twice.
type Step struct {
	Call
	Operation
	Urgency
	// Begins is set if the step begins something that a server must not lose: see
	// Config.CheckServer.
	Begins bool
	// Grants is set if replicas may have to confirm the step.
	Grants bool
	// ReplySize is the maximum size of data in the reply in bytes.
	ReplySize int
}

// Reply is the reply to a step.
type Reply struct {
	Value any
	Sent  time.Time // at or before the sending
	Acks  int       // of replicas
}

// Run runs a step alone, or in a batch if enough calls are in flight. It returns the results of
// read for the reply, or the error of the step.
func Run[T any](ctx context.Context, c *Client, st Step, read func(Reply) (T, error)) (value T, err error) {
	n := c.nodes.of(ctx, st.Keys[0])
	timing := c.telemetry.Begin(ctx, st.Name)
	r, _ := c.spareSteps.Get().(*stepRequest)
	if r == nil {
		r = new(stepRequest)
	}
	r.Step, r.size = st, sizeOf(st.Args)
	if n.runsAlone(&st) {
		n.runAlone(ctx, r)
		err = r.Failed()
	} else {
		err = n.steps.Do(ctx, r, st.Urgency)
	}
	if err == nil {
		value, err = read(r.reply)
		r.Step, r.reply = Step{}, Reply{}
		c.spareSteps.Put(r) // after an error, it may still be in a batch
	}
	timing.End(ctx, err)
	n.LogFault(ctx, err)
	return value, err
}

// stepRequest is a step that may be batched.
type stepRequest struct {
	batch.Queued
	Step
	size  int // of its arguments in bytes
	reply Reply
}

// Work implements batch.Request.
func (r *stepRequest) Work() int { return 1 + r.size/stepBytes }

// newSteps returns the batcher of a node's steps. The timeout applies to a sent pipeline. A step is
// queued for up to three times the timeout while the server replies to others: in a burst on a
// working server, a late reply is better than none. While the server does not reply, a step that
// was queued for half of the timeout is not sent any more.
func (n *Node) newSteps() *batch.Batcher[*stepRequest] {
	c := batching(n, maxSteps, n.sendSteps)
	c.Few = max(c.Few, min(stepsInFlight, c.Most))
	c.Silence, c.Limit = n.owner.config.Timeout, 3*n.owner.config.Timeout
	return batch.New(c)
}

// runsAlone reports whether a step must not be batched.
func (n *Node) runsAlone(st *Step) bool {
	return st.Begins && !n.checked.Load() || n.awaitsReplicas(st)
}

// awaitsReplicas reports whether replicas have to confirm a step.
func (n *Node) awaitsReplicas(st *Step) bool { return st.Grants && n.owner.config.Acks > 0 }

// runAlone runs one step, and reports whether the server has replied.
func (n *Node) runAlone(ctx context.Context, r *stepRequest) (replied bool) {
	a := attempt{node: n, urgency: r.Urgency, writes: !r.Reads, anyOutcome: r.anyOutcome(), bytes: r.size, replyBytes: r.ReplySize}
	err := a.begin(ctx)
	if err == nil {
		if n.awaitsReplicas(&r.Step) {
			a.context.waits = n.owner.config.AckTimeout
		}
		r.reply, err = n.evalStep(a.context, &r.Step)
		replied = err == nil || redisfault.IsReply(err)
		err = a.finish(err)
	}
	r.Finish(err)
	return replied
}

// evalStep runs a step, once it has checked the server if the step Begins something, and counts the
// replicas that have confirmed the step if it Grants something.
func (n *Node) evalStep(c *callContext, st *Step) (reply Reply, err error) {
	if st.Begins {
		if err := n.Check(c); err != nil {
			return reply, err
		}
	}
	reply.Sent = time.Now()
	if n.awaitsReplicas(st) {
		var tries retries // once: WAIT covers the writes of its own connection only
		for {
			reply.Value, reply.Acks, err = n.evalAcked(c, st.Call)
			if err == nil || !n.again(c, &tries, err, true) {
				break
			}
		}
	} else {
		reply.Value, err = n.eval(c, false, st.Call)
	}
	return reply, err
}

// sendSteps runs a batch of steps, and reports whether the server has replied.
func (n *Node) sendSteps(ctx context.Context, batch []*stepRequest) (replied bool) {
	if len(batch) == 1 {
		return n.runAlone(ctx, batch[0])
	}
	a := attempt{urgency: Finishing}
	calls := make([]Call, len(batch))
	for i, r := range batch {
		calls[i] = r.Call
		a.bytes += r.size
		a.replyBytes += r.ReplySize
		a.writes = a.writes || !r.Reads
		a.urgency = min(a.urgency, r.Urgency)
	}
	results, err := n.evalTogether(ctx, false, a, calls)
	if results == nil {
		return n.failSteps(ctx, batch, a.urgency, err)
	}
	for i, r := range batch {
		r.reply = Reply{Value: results[i].Reply, Sent: r.SentAt()}
		r.Finish(results[i].Err)
		replied = replied || r.Failed() == nil || redisfault.IsReply(r.Failed())
	}
	return replied
}

// failSteps ends a batch of which nothing was sent. If the open breaker was the reason, it sends
// the steps that are more urgent than u. It reports whether the server has replied to these.
func (n *Node) failSteps(ctx context.Context, batch []*stepRequest, u Urgency, err error) (replied bool) {
	for _, r := range batch {
		r.Finish(err)
	}
	if breaker.Refused(err) {
		left := slices.DeleteFunc(slices.Clone(batch), func(r *stepRequest) bool { return r.Urgency <= u })
		if len(left) > 0 {
			return n.sendSteps(ctx, left)
		}
	}
	return false
}

// sizeOf returns the bytes of the texts among arguments. Numbers are short.
func sizeOf(args []any) (size int) {
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			size += len(arg)
		case *string:
			size += len(*arg)
		case []byte:
			size += len(arg)
		}
	}
	return size
}
