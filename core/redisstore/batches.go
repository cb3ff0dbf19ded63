package redisstore

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxBatch is how many script calls of locks one pipeline has.
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

// pick returns those of a list that have these indexes.
func pick[T any](list []T, indexes []int) []T {
	picked := make([]T, len(indexes))
	for i, n := range indexes {
		picked[i] = list[n]
	}
	return picked
}
