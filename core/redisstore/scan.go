package redisstore

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// list yields the states of all records with a name, as inspected by scripts. It scans all keys of
// every master, a thousand at a time, and inspects up to a hundred records at a time. Damaged ones
// are omitted. read reports whether to yield a reply.
func list[T any](
	ctx context.Context, s *Store, of, name string, inspect func(tag string) scriptCall, read func(tag string, reply any) (T, bool, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		masters, err := s.masters(ctx)
		if err != nil {
			yield(none, err)
			return
		}
		for _, master := range masters {
			for tags, err := range s.tags(ctx, master, of, name) {
				if err != nil {
					yield(none, err)
					return
				}
				calls := make([]scriptCall, len(tags))
				for i, tag := range tags {
					calls[i] = inspect(tag)
				}
				replies, err := s.evalAll(ctx, calls)
				if err != nil {
					yield(none, err)
					return
				}
				for i, reply := range replies {
					if reply == nil {
						continue
					}
					state, worth, err := read(tags[i], reply)
					if (worth || err != nil) && !yield(state, err) || err != nil {
						return
					}
				}
			}
		}
	}
}

// tags yields the tags of the records with a name on one master, up to a hundred at a time.
func (s *Store) tags(ctx context.Context, master redis.Cmdable, of, name string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		pattern := s.withName(of, name)
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			p, err := call(ctx, s.nodes.whole, opInspect, ordinary, func(ctx context.Context) (p page, err error) {
				p.keys, p.cursor, err = master.Scan(ctx, cursor, pattern, 1000).Result()
				return p, err
			})
			if err != nil {
				yield(nil, err)
				return
			}
			var tags []string
			for _, record := range p.keys {
				if tag, ok := s.tagOf(record, of, name); ok {
					tags = append(tags, tag)
				}
			}
			for batch := range slices.Chunk(tags, maxBatch) {
				if !yield(batch, nil) {
					return
				}
			}
			cursor = p.cursor
		}
	}
}

// evalAll returns the replies of scripts that inspect, in one pipeline: nil for damaged records.
func (s *Store) evalAll(ctx context.Context, calls []scriptCall) ([]any, error) {
	return call(ctx, s.nodes.whole, opInspect, ordinary, func(ctx context.Context) ([]any, error) {
		replies := make([]any, len(calls))
		s.telemetry.Batch(ctx, len(calls))
		for i, e := range s.evalEach(ctx, false, calls) {
			if e.err != nil && !isWrongType(e.err) {
				return nil, e.err
			}
			replies[i] = e.reply
		}
		return replies, nil
	})
}

type page struct {
	keys   []string
	cursor uint64
}

// masters returns a client for each master.
func (s *Store) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return []redis.Cmdable{s.client}, nil
	}
	return call(ctx, s.nodes.whole, opRoute, ordinary, func(ctx context.Context) ([]redis.Cmdable, error) {
		var (
			mu      sync.Mutex
			masters []redis.Cmdable
		)
		err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters = append(masters, master)
			return nil
		})
		return masters, err
	})
}

// glob escapes special characters in the pattern of a SCAN.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`)
