package redisstore

import (
	"context"
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
func (s *Store) takeEach(n *node, l *lane[*charge], batch []*charge) {
	calls := callsByKey(batch)
	replies, err := call(context.Background(), n, opTakeTokens, ordinary, func(ctx context.Context) ([]keyReply, error) {
		s.telemetry.Batch(ctx, len(batch))
		return s.takePipelined(ctx, calls)
	})
	for i, c := range calls {
		r := keyReply{err: err} // if nothing is known of any
		if replies != nil {
			r = replies[i]
		}
		l.answer(c.batch, r.err == nil, answers(r.replies, r.err))
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
	scripts := make([]scriptCall, len(calls))
	for i, c := range calls {
		scripts[i] = scriptCall{takeTokens, c.keys, c.args}
	}
	var failure error
	replies := make([]keyReply, len(calls))
	for i, e := range s.evalEach(ctx, true, scripts) {
		if e.err == nil {
			replies[i].replies, e.err = readMany(e.reply, len(calls[i].batch))
		} else if !isReply(e.err) {
			failure = e.err
		}
		replies[i].err = explain(e.err, e.open)
	}
	return replies, failure
}
