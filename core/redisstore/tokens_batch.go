package redisstore

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxDecisions bounds the work of one call to a fraction of a millisecond, since other clients of
// the server wait for it. A decision about one bucket takes a server 2 to 5 µs and counts one; with
// several buckets, each counts two.
const maxDecisions = 128

// decision is a batched decision.
type decision struct {
	turn
	lane     *lane[*decision]
	charges  []store.Charge
	keys     []string
	reply    store.TakeReply
	deadline deadline
}

func (d *decision) work() int {
	if len(d.keys) == 1 {
		return 1
	}
	return 2 * len(d.keys)
}

func (d *decision) expire() { d.lane.expire(d) }

// newDecisions returns the lane of a node's decisions.
func (s *Store) newDecisions(n *node) *lane[*decision] {
	take := s.takeMany
	if s.nodes.cluster != nil {
		take = s.takeEach
	}
	l := newLane(s, func(l *lane[*decision], batch []*decision) { take(n, l, batch) })
	l.maxWork = maxDecisions
	return l
}

// takeTogether makes a decision in a batch. It returns when the decision is made, when it was not
// sent within the store's timeout, or when ctx ends.
func (s *Store) takeTogether(ctx context.Context, n *node, charges []store.Charge, keys []string) (store.TakeReply, error) {
	if n.isDown() {
		return store.TakeReply{}, n.downError()
	}
	l := n.decisions
	d, _ := s.spareDecisions.Get().(*decision)
	if d == nil {
		d = &decision{turn: turn{ended: make(chan struct{}, 1)}}
	}
	d.charges, d.keys, d.lane, d.state = charges, append(d.keys[:0], keys...), l, turnWaits
	d.deadline.of, d.since = d, time.Now()
	s.deadlines.begin(&d.deadline, s.config.timeout)
	if !l.add(d) {
		s.deadlines.end(&d.deadline)
		return store.TakeReply{}, errQueueFull
	}
	select {
	case <-d.ended:
	case <-ctx.Done():
		if l.leave(d, context.Cause(ctx)) {
			s.deadlines.end(&d.deadline)
			return store.TakeReply{}, d.err
		}
		<-d.ended // both at once: the reply counts
	}
	s.deadlines.end(&d.deadline)
	reply, err := d.reply, d.err
	if isDamage(err) { // of this caller's buckets: the call itself succeeded
		s.damage.Found(ctx)
	}
	if err == nil { // otherwise the client may still read it
		d.reply, d.charges = store.TakeReply{}, nil
		s.spareDecisions.Put(d)
	}
	return reply, err
}

// takeMany makes the decisions of a batch in one call of the script, and ends them.
func (s *Store) takeMany(n *node, l *lane[*decision], batch []*decision) {
	keys, args := batchArgs(batch)
	replies, err := call(context.Background(), n, opTakeTokens, ordinary, func(ctx context.Context) ([]any, error) {
		s.telemetry.Batch(ctx, len(batch))
		reply, err := s.eval(ctx, true, takeTokens, keys, args...)
		if err != nil {
			return nil, err
		}
		return readDecisions(reply, len(batch))
	})
	l.answer(batch, err == nil, results(replies, err))
}

// batchArgs returns the keys and the arguments of the script for a batch. Decisions whose charges
// are the same slice, as those of a limiter are, share a plan.
func batchArgs(batch []*decision) (keys []string, args []any) {
	type plan struct {
		charges *store.Charge
		n       int
	}
	plans := make(map[plan]int)
	args = append(args, 0)
	numbers := make([]any, len(batch))
	for i, d := range batch {
		keys = append(keys, d.keys...)
		p := plan{&d.charges[0], len(d.charges)}
		if plans[p] == 0 {
			plans[p] = len(plans) + 1
			args = appendPlan(args, d.charges)
		}
		numbers[i] = plans[p]
	}
	args[0] = len(plans)
	if len(plans) > 1 {
		args = append(args, numbers...)
	}
	return keys, args
}

// results returns a function that gives decision i of a batch its reply, and returns its error.
func results(replies []any, err error) func(int, *decision) error {
	return func(i int, d *decision) (failed error) {
		if err != nil {
			return err
		}
		d.reply, failed = readDecision(replies[i], len(d.keys))
		return failed
	}
}

// keyCall is a call of the script with all decisions of a batch about one key.
type keyCall struct {
	batch   []*decision
	keys    []string
	args    []any
	replies []any
	err     error
}

// takeEach makes the decisions of a batch in one pipeline, and ends them: in a Cluster, a script
// has keys of one slot only. A call that fails fails the decisions of its key alone.
func (s *Store) takeEach(n *node, l *lane[*decision], batch []*decision) {
	calls := callsByKey(batch)
	_, err := call(context.Background(), n, opTakeTokens, ordinary, func(ctx context.Context) (struct{}, error) {
		s.telemetry.Batch(ctx, len(batch))
		return struct{}{}, s.takePipelined(ctx, calls)
	})
	for i := range calls {
		c := &calls[i]
		if c.replies == nil && c.err == nil { // no call was made
			c.err = err
		}
		l.answer(c.batch, c.err == nil, results(c.replies, c.err))
	}
}

func callsByKey(batch []*decision) []keyCall {
	var calls []keyCall
	at := make(map[string]int, len(batch))
	for _, d := range batch {
		i, known := at[d.keys[0]]
		if !known {
			i = len(calls)
			at[d.keys[0]] = i
			calls = append(calls, keyCall{})
		}
		calls[i].batch = append(calls[i].batch, d)
	}
	for i := range calls {
		calls[i].keys, calls[i].args = batchArgs(calls[i].batch)
	}
	return calls
}

// takePipelined makes calls in one pipeline. It returns an error, beside those of the calls, if
// there was no reply.
func (s *Store) takePipelined(ctx context.Context, calls []keyCall) (failed error) {
	scripts := make([]scriptCall, len(calls))
	for i, c := range calls {
		scripts[i] = scriptCall{takeTokens, c.keys, c.args}
	}
	for i, e := range s.evalEach(ctx, true, scripts) {
		c := &calls[i]
		if e.err == nil {
			c.replies, e.err = readDecisions(e.reply, len(c.batch))
		} else if !isReply(e.err) {
			failed = e.err
		}
		c.err = explain(e.err, e.open)
	}
	return failed
}
