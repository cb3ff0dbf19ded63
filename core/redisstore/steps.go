package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// Steps of locks, semaphores and guards that go together are a pipeline: each is a call of a script for
// itself, and each may be sent twice.

// maxSteps bounds a pipeline, since others wait for it: a step counts one, and as much for each stepBytes
// of its arguments.
const (
	maxSteps  = maxBatch
	stepBytes = 4 << 10
)

// stepTakers is how many pipelines are under way before steps are collected: each step costs the server the
// same in one as by itself, so that less is won by waiting than for decisions.
const stepTakers = 4

// step is one run of a script for a caller.
type step struct {
	scriptCall
	op      operation
	urgency urgency
	// begins is set if the step begins what may not be begun on a server that may evict it.
	begins bool
	// grants is set if the step may grant what others have to wait for: the store has to hear when they may
	// have it, and replicas may have to confirm it.
	grants bool
}

// stepReply is what a step was answered.
type stepReply struct {
	value any
	sent  time.Time // or before
	acks  int       // from replicas
}

// run runs a step by itself, or together with others if enough are under way, and reads the reply.
func run[T any](ctx context.Context, s *Store, st step, read func(stepReply) (T, error)) (value T, err error) {
	l := s.laneOf(ctx, &st)
	together := l != nil && !l.begin()
	if l != nil && !together {
		defer l.end()
	}
	told := s.telemetry.Begin(ctx, string(st.op))
	switch {
	case together:
		var reply stepReply
		if reply, err = s.goTogether(ctx, l, &st); err == nil {
			value, err = read(reply)
		}
	case s.keepsDeadlines:
		value, err = callHere(ctx, s, st.urgency, func(ctx context.Context) (T, error) { return runAlone(ctx, s, l, &st, read) })
	default:
		elsewhere := st // or st itself would cost memory
		value, err = callElsewhere(ctx, s, st.urgency, func(ctx context.Context) (T, error) { return runAlone(ctx, s, l, &elsewhere, read) })
	}
	told.End(ctx, err)
	if isDamage(err) {
		s.damage.Found(ctx)
	}
	return value, err
}

// laneOf returns where a step may go with others; nil if it has to go alone.
func (s *Store) laneOf(ctx context.Context, st *step) *lane[*companion] {
	if st.begins && !s.safe.Load() || st.grants && s.config.acks > 0 {
		return nil
	}
	return s.steps.of(ctx, st.keys[0])
}

func runAlone[T any](ctx context.Context, s *Store, l *lane[*companion], st *step, read func(stepReply) (T, error)) (value T, err error) {
	if st.begins {
		if err := s.checkEviction(ctx); err != nil {
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
	if !s.mapped.Load() {
		s.mapped.Store(true)
	}
	return read(reply)
}

// companion is a step that goes with others.
type companion struct {
	turn
	call    scriptCall
	urgency urgency
	size    int // of its arguments, in bytes
	reply   any
}

func (c *companion) work() int { return 1 + c.size/stepBytes }

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

// newSteps returns the lanes of steps. The store's deadline is for a pipeline that is sent. A step waits for
// its turn for three times as long while Redis answers others, and is not sent any more after half of it if
// Redis answers nobody: in a burst of steps, on a server that works, late is better than never.
func newSteps(s *Store) *lanes[*companion] {
	return newLanes(s, s.runEach, func(l *lane[*companion]) {
		l.maxWork, l.few = maxSteps, min(stepTakers, l.most)
		l.silence, l.limit = s.config.timeout, 3*s.config.timeout
	})
}

// goTogether has a step go with others.
func (s *Store) goTogether(ctx context.Context, l *lane[*companion], st *step) (stepReply, error) {
	switch {
	case s.closed.Load():
		return stepReply{}, outage.ErrClosed
	case ctx.Err() != nil:
		return stepReply{}, ctx.Err()
	case st.urgency == ordinary && s.breaker.State() != gobreaker.StateClosed:
		return stepReply{}, errDown
	}
	if st.grants {
		s.listen()
	}
	c, _ := s.spareSteps.Get().(*companion)
	if c == nil {
		c = &companion{turn: turn{ended: make(chan struct{}, 1)}}
	}
	c.call, c.urgency, c.size = st.scriptCall, st.urgency, sizeOf(st.args)
	c.state, c.since, c.sent = turnWaits, time.Now(), time.Time{}
	if !l.add(c) {
		return stepReply{}, errStuck
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		if l.leave(c, context.Cause(ctx)) {
			s.suspect()
			return stepReply{}, c.err
		}
		<-c.ended // both at once: the answer counts
	}
	if c.sent.IsZero() {
		s.suspect() // it never had its turn
	}
	reply, err := stepReply{value: c.reply, sent: c.sent}, c.err
	c.call, c.reply = scriptCall{}, nil
	s.spareSteps.Put(c)
	return reply, err
}

// runEach runs the scripts of a batch in one pipeline.
func (s *Store) runEach(l *lane[*companion], batch []*companion) {
	u := finishing
	if slices.ContainsFunc(batch, isOrdinary) {
		u = ordinary
	}
	replies, err := s.pipe(u, batch)
	if u == ordinary && (errors.Is(err, errStuck) || errors.Is(err, errDown)) { // nothing was sent, and what finishes may be
		finish := slices.DeleteFunc(slices.Clone(batch), isOrdinary)
		if batch = slices.DeleteFunc(batch, func(c *companion) bool { return !isOrdinary(c) }); len(finish) > 0 {
			defer s.runEach(l, finish)
		}
	}
	heard := slices.ContainsFunc(replies, func(e evaluated) bool { return e.err == nil || isReply(e.err) })
	l.answer(batch, heard, func(i int, c *companion) error {
		if replies == nil { // nothing is known of any
			return err
		}
		c.reply = replies[i].reply
		return explain(replies[i].err, replies[i].open)
	})
}

func isOrdinary(c *companion) bool { return c.urgency == ordinary }

// pipe runs the scripts of a batch. It is one call for the breaker: it has failed if the server has not
// answered all of them.
func (s *Store) pipe(u urgency, batch []*companion) ([]evaluated, error) {
	calls := make([]scriptCall, len(batch))
	for i, c := range batch {
		calls[i] = c.call
	}
	return callUntold(context.Background(), s, u, func(ctx context.Context) (replies []evaluated, failed error) {
		s.telemetry.Batch(ctx, len(batch))
		replies = s.evalEach(ctx, false, calls)
		for i := range replies {
			e := &replies[i]
			if e.err == nil || isReply(e.err) && !didNotRun(e.err) {
				continue
			}
			failed = e.err
			if ctx.Err() != nil && !isReply(e.err) {
				e.err = fmt.Errorf("no reply in time: %w", context.Cause(ctx))
			}
		}
		return replies, failed
	})
}
