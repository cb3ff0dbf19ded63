package redisstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Batched steps of locks, semaphores and guards are a pipeline: each is a script call of its own,
// and each may be sent twice.

// maxSteps bounds a pipeline, since other requests wait for it: a step counts one, plus one for
// each stepBytes of its arguments.
const (
	maxSteps  = maxBatch
	stepBytes = 4 << 10
)

// stepTakers is the number of calls in flight from which on steps are batched. It is larger than
// that of decisions, since a step in a pipeline costs the server as much as a single one.
const stepTakers = 4

// step is one run of a script for a caller.
type step struct {
	scriptCall
	op      operation
	urgency urgency
	// begins is set if the step begins something that must not be evicted.
	begins bool
	// grants is set if the step may grant a lock or a permit: the store needs its inbox then, and
	// replicas may have to confirm the grant.
	grants bool
	// replySize is the maximum size of data in the reply in bytes.
	replySize int
}

// stepReply is the reply to a step.
type stepReply struct {
	value any
	sent  time.Time // at or before the sending
	acks  int       // of replicas
}

// run runs a step alone, or in a batch if enough calls are in flight, and reads the reply.
func run[T any](ctx context.Context, s *Store, st step, read func(stepReply) (T, error)) (value T, err error) {
	n := s.nodes.of(ctx, st.keys[0])
	l := s.laneOf(n, &st)
	together := l != nil && !l.begin()
	if l != nil && !together {
		defer l.end()
	}
	timing := s.telemetry.Begin(ctx, string(st.op))
	switch {
	case together:
		var reply stepReply
		if reply, err = s.goTogether(ctx, n, &st); err == nil {
			value, err = read(reply)
		}
	default:
		value, err = callUntraced(ctx, n, sizeOf(st.args), st.replySize, st.urgency, !st.op.reads(), func(ctx context.Context) (T, error) {
			return runAlone(ctx, s, n, l, &st, read)
		})
	}
	timing.End(ctx, err)
	s.logFault(ctx, n, err)
	return value, err
}

// laneOf returns the lane of a step; nil if it has to run alone.
func (s *Store) laneOf(n *node, st *step) *lane[*companion] {
	if st.begins && !n.safe.Load() || st.grants && s.config.acks > 0 {
		return nil
	}
	return n.steps
}

func runAlone[T any](ctx context.Context, s *Store, n *node, l *lane[*companion], st *step, read func(stepReply) (T, error)) (value T, err error) {
	if st.begins {
		if err := n.checkEviction(ctx); err != nil {
			return value, err
		}
	}
	reply := stepReply{sent: time.Now()}
	if st.grants {
		s.listen()
		reply.value, reply.acks, err = s.evalAcked(ctx, st.script, st.keys, st.args...)
	} else {
		reply.value, err = s.eval(ctx, false, st.script, st.keys, st.args...)
	}
	if l != nil && (err == nil || isReply(err)) {
		l.hear()
	}
	if err != nil {
		return value, err
	}
	s.nodes.recordMap()
	return read(reply)
}

// companion is a step in a shared pipeline.
type companion struct {
	turn
	call    scriptCall
	urgency urgency
	writes  bool
	// size is that of its arguments, replySize the maximum of data in the reply, in bytes.
	size, replySize int
	reply           any
}

func (c *companion) work() int { return 1 + c.size/stepBytes }

// timeFor returns the additional timeout of a call with this many bytes: the timeout for each MiB.
func (s *Store) timeFor(bytes int) time.Duration {
	if bytes < stepBytes {
		return 0
	}
	return time.Duration(float64(s.config.timeout) * float64(bytes) / (1 << 20))
}

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

// newSteps returns the lane of a node's steps. The store's timeout applies to a sent pipeline. A
// step is queued for up to three times that while Redis is replying, and is not sent after half of
// it if Redis does not reply: in a burst on a working server, a late reply is better than none.
func (s *Store) newSteps(n *node) *lane[*companion] {
	l := newLane(s, func(l *lane[*companion], batch []*companion) { s.runEach(n, l, batch) })
	l.maxWork, l.few = maxSteps, min(stepTakers, l.most)
	l.silence, l.limit = s.config.timeout, 3*s.config.timeout
	return l
}

// goTogether runs a step in a shared pipeline.
func (s *Store) goTogether(ctx context.Context, n *node, st *step) (stepReply, error) {
	switch {
	case s.closed.Load():
		return stepReply{}, store.ErrClosed
	case ctx.Err() != nil:
		return stepReply{}, ctx.Err()
	case st.urgency == ordinary && n.isDown():
		return stepReply{}, n.downError()
	}
	l := n.steps
	if st.grants {
		s.listen()
	}
	c, _ := s.spareSteps.Get().(*companion)
	if c == nil {
		c = &companion{turn: turn{ended: make(chan struct{}, 1)}}
	}
	c.call, c.urgency, c.writes = st.scriptCall, st.urgency, !st.op.reads()
	c.size, c.replySize = sizeOf(st.args), st.replySize
	c.state, c.since, c.sent = turnWaits, time.Now(), time.Time{}
	if !l.add(c) {
		return stepReply{}, errQueueFull
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		if l.leave(c, context.Cause(ctx)) {
			n.recordMiss()
			return stepReply{}, c.err
		}
		<-c.ended // both at once: the reply counts
	}
	if c.sent.IsZero() {
		n.recordMiss() // it was never sent
	}
	reply, err := stepReply{value: c.reply, sent: c.sent}, c.err
	c.call, c.reply = scriptCall{}, nil
	s.spareSteps.Put(c)
	return reply, err
}

// runEach runs the scripts of a batch in one pipeline.
func (s *Store) runEach(n *node, l *lane[*companion], batch []*companion) {
	u := finishing
	if slices.ContainsFunc(batch, isOrdinary) {
		u = ordinary
	}
	replies, err := s.pipe(n, u, batch)
	if u == ordinary && errors.Is(err, errDown) { // nothing was sent; finishing steps still may be
		finish := slices.DeleteFunc(slices.Clone(batch), isOrdinary)
		if batch = slices.DeleteFunc(batch, func(c *companion) bool { return !isOrdinary(c) }); len(finish) > 0 {
			defer s.runEach(n, l, finish)
		}
	}
	heard := slices.ContainsFunc(replies, func(e evaluated) bool { return e.err == nil || isReply(e.err) })
	l.answer(batch, heard, func(i int, c *companion) error {
		if replies == nil { // the same error for all
			return err
		}
		c.reply = replies[i].reply
		return explain(replies[i].err, replies[i].open)
	})
}

func isOrdinary(c *companion) bool { return c.urgency == ordinary }

// pipe runs the scripts of a batch. It is one call for the breaker, which has failed unless the
// server has replied to all of them.
func (s *Store) pipe(n *node, u urgency, batch []*companion) ([]evaluated, error) {
	calls := make([]scriptCall, len(batch))
	bytes, replyBytes, writes := 0, 0, false
	for i, c := range batch {
		calls[i] = c.call
		bytes += c.size
		replyBytes += c.replySize
		writes = writes || c.writes
	}
	return callUntraced(context.Background(), n, bytes, replyBytes, u, writes, func(ctx context.Context) (replies []evaluated, failed error) {
		s.telemetry.Batch(ctx, len(batch))
		replies = s.evalEach(ctx, false, calls)
		for i := range replies {
			e := &replies[i]
			if e.err == nil || isReply(e.err) && !didNotRun(e.err) {
				continue
			}
			failed = e.err
			if ctx.Err() != nil && !isReply(e.err) {
				e.err = tooLate(ctx, wireOf(ctx))
			}
		}
		return replies, failed
	})
}
