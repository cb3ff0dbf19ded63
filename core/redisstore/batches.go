package redisstore

import (
	"context"
	"slices"
	"sync"
)

// maxBatch is how many script calls one pipeline has.
const maxBatch = 100

// eachBatch calls f with the indexes of up to a hundred calls of a node at a time. It does so
// concurrently for several nodes, so that one without a reply does not delay the others.
func (s *Store) eachBatch(ctx context.Context, calls []scriptCall, f func(n *node, batch []int)) {
	each := func(n *node, all []int) {
		for batch := range slices.Chunk(all, maxBatch) {
			f(n, batch)
		}
	}
	nodes := s.byNode(ctx, calls)
	if len(nodes) == 1 {
		for n, all := range nodes {
			each(n, all)
		}
		return
	}
	var wg sync.WaitGroup
	for n, all := range nodes {
		wg.Go(func() { each(n, all) })
	}
	wg.Wait()
}

// byNode groups the indexes of calls by the nodes of their keys, as far as they are known.
func (s *Store) byNode(ctx context.Context, calls []scriptCall) map[*node][]int {
	nodes := make(map[*node][]int)
	for i, c := range calls {
		n := s.nodes.of(ctx, c.keys[0])
		nodes[n] = append(nodes[n], i)
	}
	return nodes
}

// renewEach runs scripts that renew, and reports which of them returned 1. A damaged hold counts as
// lost.
func (s *Store) renewEach(ctx context.Context, op operation, calls []scriptCall) ([]bool, error) {
	return s.finishEach(ctx, op, calls, isWrongType)
}

// finishEach runs scripts that finish something, and reports which of them returned 1. With an
// error, the report holds for those that are true: in a Cluster, other masters than the failed one
// may have replied. An error for which harmless returns true counts as another reply than 1.
func (s *Store) finishEach(ctx context.Context, op operation, calls []scriptCall, harmless func(error) bool) ([]bool, error) {
	var (
		done   = make([]bool, len(calls))
		mu     sync.Mutex
		failed error
	)
	s.eachBatch(ctx, calls, func(n *node, batch []int) {
		answers, err := call(ctx, n, op, finishing, func(ctx context.Context) ([]bool, error) {
			var failed error
			answers := make([]bool, len(batch))
			s.telemetry.Batch(ctx, len(batch))
			for i, e := range s.evalEach(ctx, false, pick(calls, batch)) {
				n, ok := e.reply.(int64)
				if e.err == nil && !ok {
					e.err = errOddReply
				}
				if e.err != nil && !harmless(e.err) && failed == nil {
					failed = explain(e.err, e.open)
				}
				answers[i] = e.err == nil && n == 1
			}
			return answers, failed
		})
		mu.Lock()
		defer mu.Unlock()
		for i, answer := range answers {
			done[batch[i]] = answer
		}
		if failed == nil {
			failed = err
		}
	})
	return done, failed
}

// pick returns the elements of a list with these indexes.
func pick[T any](list []T, indexes []int) []T {
	picked := make([]T, len(indexes))
	for i, n := range indexes {
		picked[i] = list[n]
	}
	return picked
}
