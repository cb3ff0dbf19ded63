package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Decisions that go together are made in one call of a script.

// maxDecisions bounds one call, since others wait for it, to a fraction of a millisecond: a decision about one
// bucket, which takes a server 2 to 5 µs, counts one, and each bucket of one about several counts two.
const maxDecisions = 128

// charge is a decision that goes with others.
type charge struct {
	turn
	lane     *lane[*charge]
	charges  []store.Charge
	keys     []string
	reply    store.TakeReply
	deadline deadline
}

func (w *charge) work() int {
	if len(w.keys) == 1 {
		return 1
	}
	return 2 * len(w.keys)
}

func (w *charge) expire() { w.lane.expire(w) }

// newCharges returns the lane of a node's decisions.
func (s *Store) newCharges(n *node) *lane[*charge] {
	take := s.takeMany
	if s.nodes.cluster != nil {
		take = s.takeEach
	}
	l := newLane(s, func(l *lane[*charge], batch []*charge) { take(n, l, batch) })
	l.maxWork = maxDecisions
	return l
}

// takeTogether makes a decision with others. It returns when that is made, when it has had no turn within
// the store's own deadline, or at ctx's.
func (s *Store) takeTogether(ctx context.Context, n *node, charges []store.Charge, keys []string) (store.TakeReply, error) {
	if n.isDown() {
		return store.TakeReply{}, n.downError()
	}
	l := n.charges
	w, _ := s.spareCharges.Get().(*charge)
	if w == nil {
		w = &charge{turn: turn{ended: make(chan struct{}, 1)}}
	}
	w.charges, w.keys, w.lane, w.state = charges, append(w.keys[:0], keys...), l, turnWaits
	w.deadline.of, w.since = w, time.Now()
	s.deadlines.begin(&w.deadline, s.config.timeout)
	if !l.add(w) {
		s.deadlines.end(&w.deadline)
		return store.TakeReply{}, errStuck
	}
	select {
	case <-w.ended:
	case <-ctx.Done():
		if l.leave(w, context.Cause(ctx)) {
			s.deadlines.end(&w.deadline)
			return store.TakeReply{}, w.err
		}
		<-w.ended // both at once: the answer counts
	}
	s.deadlines.end(&w.deadline)
	reply, err := w.reply, w.err
	if isDamage(err) { // of this caller's buckets, since the call itself has worked
		s.damage.Found(ctx)
	}
	if err == nil { // else the client may yet read it
		w.reply, w.charges = store.TakeReply{}, nil
		s.spareCharges.Put(w)
	}
	return reply, err
}

// takeMany makes the decisions of a batch in one call of a script, and answers those who wait for them.
func (s *Store) takeMany(n *node, l *lane[*charge], batch []*charge) {
	keys, args := manyArgs(batch)
	replies, err := call(context.Background(), n, opTakeTokens, ordinary, func(ctx context.Context) ([]any, error) {
		s.telemetry.Batch(ctx, len(batch))
		reply, err := s.eval(ctx, true, takeTokens, keys, args...)
		if err != nil {
			return nil, err
		}
		return readMany(reply, len(batch))
	})
	l.answer(batch, err == nil, answers(replies, err))
}

func readMany(reply any, decisions int) ([]any, error) {
	replies, ok := reply.([]any)
	if !ok || len(replies) != decisions {
		return nil, errOddReply
	}
	return replies, nil
}

// answers returns what each of a batch is answered.
func answers(replies []any, err error) func(int, *charge) error {
	return func(i int, w *charge) (failed error) {
		if err != nil {
			return err
		}
		w.reply, failed = readOneOfMany(replies[i], len(w.keys))
		return failed
	}
}

// manyArgs returns keys and arguments of the script. Decisions whose charges are the same slice, as those
// of a limiter are, share a plan.
func manyArgs(batch []*charge) (keys []string, args []any) {
	type plan struct {
		charges *store.Charge
		n       int
	}
	plans := make(map[plan]int)
	args = append(args, 0)
	numbers := make([]any, len(batch))
	for i, w := range batch {
		keys = append(keys, w.keys...)
		p := plan{&w.charges[0], len(w.charges)}
		if plans[p] == 0 {
			plans[p] = len(plans) + 1
			args = appendCharges(append(args, len(w.charges)), w.charges)
		}
		numbers[i] = plans[p]
	}
	args[0] = len(plans)
	if len(plans) > 1 {
		args = append(args, numbers...)
	}
	return keys, args
}

func readOneOfMany(reply any, charges int) (store.TakeReply, error) {
	switch r := reply.(type) {
	case int64:
		if charges != 1 {
			break
		}
		if r < 0 {
			return store.TakeReply{Debts: store.OneDebt(store.Span{Micros: -1 - r})}, nil
		}
		return store.TakeReply{Allowed: true, Debts: store.OneDebt(store.Span{Micros: r})}, nil
	case []any:
		if len(r) != 1 {
			return readTakeReply(reply, charges)
		}
		if text, ok := r[0].(string); ok {
			return store.TakeReply{}, explain(scriptError(text), false)
		}
	}
	return store.TakeReply{}, errOddReply
}

// scriptError is an error of a part of a script.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError has it be a reply of the server's.
func (scriptError) RedisError() {}

var _ redis.Error = scriptError("")
