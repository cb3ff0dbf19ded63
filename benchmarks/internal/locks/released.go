package locks

import (
	"context"
	"strconv"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// released measures what a lock leaves in Redis.
func released(ctx context.Context, b *bench.B, s *floor.Site, server *redisserver.Server) error {
	t := b.Table("locks-released", "Redis memory of a lock that was released",
		"Locks are locked and unlocked one after the other. Lockkeeper keeps the last fence for an hour.",
		bench.Column{Name: "keys", Unit: "per lock", Better: bench.Less},
		bench.Column{Name: "memory", Unit: "B per lock", Better: bench.Less, Format: "%.0f"},
	)
	n := b.Count(2_000)
	var contenders []bench.Contender
	for _, c := range Contenders() {
		if c.Tuned { // for contended locks
			continue
		}
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			client, err := c.Open(server.Addr())
			if err != nil {
				return err
			}
			defer client.Close()
			if err := contest.Warm(ctx, client); err != nil {
				return err
			}
			if err := server.Flush(ctx); err != nil {
				return err
			}
			before, err := server.UsedMemory(ctx)
			if err != nil {
				return err
			}
			for i := range n {
				lock, err := client.Lock(ctx, "key-"+strconv.Itoa(i))
				if err == nil {
					err = lock.Unlock(ctx)
				}
				if err != nil {
					return peer(ctx, b, c.Row, "released locks", err)
				}
			}
			after, err := server.UsedMemory(ctx)
			if err != nil {
				return err
			}
			keys, err := s.Client.DBSize(ctx).Result()
			if err != nil {
				return err
			}
			t.Add(c.Row, "keys", float64(keys)/float64(n))
			t.Add(c.Row, "memory", float64(after-before)/float64(n))
			return nil
		}})
	}
	if err := b.Interleave(ctx, "locks, released", contenders); err != nil {
		return err
	}
	b.Measured(releasedKeys, t.Value(ours, "keys"))
	return nil
}
