package redisstore

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxBatch is how many script calls one pipeline has.
const maxBatch = 100

// eachBatch calls f with the indexes of up to a hundred lists of keys at a time. For keys of several
// masters it does so at the same time: one that does not answer costs the others nothing.
func (s *Store) eachBatch(ctx context.Context, keys [][]string, f func(batch []int)) {
	nodes := s.byNode(ctx, keys)
	if len(nodes) == 1 {
		for batch := range slices.Chunk(nodes[0], maxBatch) {
			f(batch)
		}
		return
	}
	var wg sync.WaitGroup
	for _, node := range nodes {
		wg.Go(func() {
			for batch := range slices.Chunk(node, maxBatch) {
				f(batch)
			}
		})
	}
	wg.Wait()
}

// byNode groups the indexes of lists of keys by the masters that have them, as far as is known.
func (s *Store) byNode(ctx context.Context, keys [][]string) [][]int {
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok || len(keys) < 2 {
		return [][]int{all}
	}
	nodes, err := call(ctx, s, finishing, func(ctx context.Context) ([][]int, error) {
		groups := make(map[*redis.Client][]int)
		for i, k := range keys {
			master, err := cluster.MasterForKey(ctx, k[0])
			if err != nil {
				return nil, err
			}
			groups[master] = append(groups[master], i)
		}
		return slices.Collect(maps.Values(groups)), nil
	})
	if err != nil {
		return [][]int{all}
	}
	return nodes
}

// renewEach runs a script that renews for each list of keys, and reports for which it answered 1. With
// an error that is true of those it reports: in a Cluster, of others than those of a master that is
// down.
func (s *Store) renewEach(ctx context.Context, sc *script, keys [][]string, args [][]any) ([]bool, error) {
	var (
		renewed = make([]bool, len(keys))
		mu      sync.Mutex
		failed  error
	)
	s.eachBatch(ctx, keys, func(batch []int) {
		answers, err := call(ctx, s, finishing, func(ctx context.Context) ([]bool, error) {
			var failed error
			answers := make([]bool, len(batch))
			for i, cmd := range s.evalEach(ctx, sc, pick(keys, batch), pick(args, batch)) {
				n, err := cmd.Int64()
				if err != nil && !isWrongType(err) && failed == nil { // that one is not held any more
					failed = err
				}
				answers[i] = err == nil && n == 1
			}
			return answers, failed
		})
		mu.Lock()
		defer mu.Unlock()
		for i, answer := range answers {
			renewed[batch[i]] = answer
		}
		if failed == nil {
			failed = err
		}
	})
	return renewed, failed
}

// pick returns those of a list that have these indexes.
func pick[T any](list []T, indexes []int) []T {
	picked := make([]T, len(indexes))
	for i, n := range indexes {
		picked[i] = list[n]
	}
	return picked
}
