package redisstore

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// maxInspected is the maximum of records that a listing inspects at a time.
const maxInspected = 100

// list yields the states of all records whose keys match a pattern and have a name by nameOf. It
// scans all keys of every master, a hundred at a time, since more would delay other calls, and
// inspects as many records at a time by scripts. Damaged records are omitted. read reads a reply,
// and reports whether to yield it.
func list[N, T any](
	ctx context.Context, s *Store, pattern string, nameOf func(key string) (N, bool),
	inspect func(N) script.Call, read func(name N, reply any) (T, bool, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		masters, err := s.redis.Masters(ctx)
		if err != nil {
			yield(none, err)
			return
		}
		for _, master := range masters {
			for names, err := range scan(ctx, s, master, pattern, nameOf) {
				if err != nil {
					yield(none, err)
					return
				}
				calls := make([]script.Call, len(names))
				for i, name := range names {
					calls[i] = inspect(name)
				}
				replies, err := s.inspectAll(ctx, calls)
				if err != nil {
					yield(none, err)
					return
				}
				for i, reply := range replies {
					if reply == nil {
						continue
					}
					state, worth, err := read(names[i], reply)
					if (worth || err != nil) && !yield(state, err) || err != nil {
						return
					}
				}
			}
		}
	}
}

// scan yields the names, by nameOf, of the keys of one master, up to a hundred at a time.
func scan[N any](
	ctx context.Context, s *Store, master redis.Cmdable, pattern string, nameOf func(key string) (N, bool),
) iter.Seq2[[]N, error] {
	return func(yield func([]N, error) bool) {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			p, err := script.Do(ctx, s.redis.Whole(), script.Command{Operation: opInspect, Urgency: script.Reading}, func(ctx context.Context) (p page, err error) {
				p.keys, p.cursor, err = master.Scan(ctx, cursor, pattern, 100).Result()
				return p, err
			})
			if err != nil {
				yield(nil, err)
				return
			}
			var names []N
			for _, key := range p.keys {
				if name, ok := nameOf(key); ok {
					names = append(names, name)
				}
			}
			for batch := range slices.Chunk(names, maxInspected) {
				if !yield(batch, nil) {
					return
				}
			}
			cursor = p.cursor
		}
	}
}

// inspectAll returns the replies of scripts that inspect: nil for damaged records.
func (s *Store) inspectAll(ctx context.Context, calls []script.Call) ([]any, error) {
	replies := make([]any, len(calls))
	err := s.redis.RunEach(ctx, opInspect, script.Reading, calls, func(i int, reply any, err error) error {
		if script.IsWrongType(err) {
			return nil
		}
		replies[i] = reply
		return err
	})
	return replies, err
}

type page struct {
	keys   []string
	cursor uint64
}

// glob escapes special characters in the pattern of a SCAN.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`)
