package redisstore

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// In a Cluster a script has the keys of one slot, so decisions of several keys go in a pipeline: a call of
// the script for each key, with all decisions about it.

// keyCall is what a pipeline asks about one key.
type keyCall struct {
	batch []*charge
	keys  []string
	args  []any
}

// keyReply is what became of that.
type keyReply struct {
	replies []any
	err     error
}

// takeEach makes the decisions of a batch in one pipeline, and answers those who wait for them. One that
// fails fails those of its key alone.
func (s *Store) takeEach(batch []*charge) {
	calls := callsByKey(batch)
	replies, err := call(context.Background(), s, opTakeTokens, ordinary, func(ctx context.Context) ([]keyReply, error) {
		s.telemetry.Batch(ctx, len(batch))
		return s.takePipelined(ctx, calls)
	})
	l := batch[0].lane
	for i, c := range calls {
		r := keyReply{err: err} // if nothing is known of any
		if replies != nil {
			r = replies[i]
		}
		l.decide(c.batch, answers(c.batch, r.replies, r.err))
	}
}

func callsByKey(batch []*charge) []keyCall {
	var calls []keyCall
	at := make(map[string]int, len(batch))
	for _, w := range batch {
		i, known := at[w.keys[0]]
		if !known {
			i = len(calls)
			at[w.keys[0]] = i
			calls = append(calls, keyCall{})
		}
		calls[i].batch = append(calls[i].batch, w)
	}
	for i := range calls {
		calls[i].keys, calls[i].args = manyArgs(calls[i].batch)
	}
	return calls
}

// takePipelined returns an error, beside the replies, if the server could not be talked to.
func (s *Store) takePipelined(ctx context.Context, calls []keyCall) ([]keyReply, error) {
	s.load(ctx)
	sent := wireOf(ctx)
	written := make([]atomic.Bool, len(calls))
	cmds := make([]*redis.Cmd, len(calls))
	pipe := s.client.Pipeline()
	for i, c := range calls {
		sha := &wiredEach{wired{takeTokens.in(s).sha, sent}, &written[i]}
		cmds[i] = newEvalOf(ctx, "evalsha", sha, c.keys, c.args)
		_ = pipe.Process(ctx, onceCmd{cmds[i]})
	}
	_, _ = pipe.Exec(ctx)

	var failure error
	replies := make([]keyReply, len(calls))
	for i, c := range calls {
		open := written[i].Load()
		reply, err := cmds[i].Result()
		if isNoScript(err) || isNoShebang(err) || didNotRun(err) { // a pipeline has no second try of its own
			if isNoScript(err) {
				s.loaded.Store(false)
			}
			reply, err = resend(ctx, func() (any, error) { return s.eval(ctx, true, takeTokens, c.keys, c.args...) })
		}
		if err == nil {
			replies[i].replies, err = readMany(reply, len(c.batch))
		} else if !isReply(err) {
			failure = err
		}
		replies[i].err = explain(err, open && !isReply(err))
	}
	return replies, failure
}

// wiredEach is a wired argument that tells for itself whether it has been written.
type wiredEach struct {
	wired
	written *atomic.Bool
}

func (a *wiredEach) MarshalBinary() ([]byte, error) {
	script, err := a.wired.MarshalBinary()
	if err == nil {
		a.written.Store(true)
	}
	return script, err
}
