package memstore_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Run it with -cpu 1,2 to see what goroutines cost each other.
func BenchmarkAllow(b *testing.B) {
	for _, n := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("user-%08d", i)
			}
			before := heapInUse()
			s := memstore.New(memstore.WithMaxBuckets(4 << 20))
			defer s.Close()
			l, err := tokenbucket.New(s, "api", tokenbucket.Per(1_000_000_000, time.Hour))
			if err != nil {
				b.Fatal(err)
			}
			for _, key := range keys {
				if d, err := l.AllowN(b.Context(), key, 100_000_000); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
			perKey := float64(heapInUse()-before) / float64(n)
			var worker atomic.Uint64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				ctx := b.Context()
				for i := worker.Add(7919) * 104729; pb.Next(); i += 7919 {
					if _, err := l.Allow(ctx, keys[i%uint64(n)]); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(perKey, "B/key")
		})
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What decisions cost that are more than that of BenchmarkAllow.
func BenchmarkMore(b *testing.B) {
	const n = 10_000
	limit := tokenbucket.PerDay(1_000_000) // no bucket is full again soon
	two := tokenbucket.Limits{limit.Named("requests"), limit.Named("tokens")}
	reserve := func(ctx context.Context, l *tokenbucket.Limiter, key string, i int, cost tokenbucket.Cost) error {
		r, err := l.Reserve(ctx, key, cost)
		if err != nil {
			return err
		}
		if err := r.Use("tokens", 1+2*int64(i&1)); err != nil {
			return err
		}
		return r.Settle(ctx)
	}
	one, both := tokenbucket.Cost{"tokens": 2}, tokenbucket.Cost{"requests": 1, "tokens": 2}
	for _, c := range []struct {
		name string
		plan tokenbucket.Plan
		call func(ctx context.Context, users, teams *tokenbucket.Limiter, user, team string, i int) error
	}{
		{"Allow", limit.Named("tokens"), func(ctx context.Context, users, _ *tokenbucket.Limiter, user, _ string, _ int) error {
			_, err := users.Allow(ctx, user)
			return err
		}},
		{"Allow, two limits", two, func(ctx context.Context, users, _ *tokenbucket.Limiter, user, _ string, _ int) error {
			_, err := users.Allow(ctx, user)
			return err
		}},
		{"All", limit, func(ctx context.Context, users, teams *tokenbucket.Limiter, user, team string, _ int) error {
			_, err := tokenbucket.All(ctx, users.Ask(user, 1), teams.Ask(team, 1))
			return err
		}},
		{"Reserve and Settle", limit.Named("tokens"), func(ctx context.Context, users, _ *tokenbucket.Limiter, user, _ string, i int) error {
			return reserve(ctx, users, user, i, one)
		}},
		{"Reserve and Settle, two limits", two, func(ctx context.Context, users, _ *tokenbucket.Limiter, user, _ string, i int) error {
			return reserve(ctx, users, user, i, both)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := memstore.New()
			defer s.Close()
			users, err := tokenbucket.New(s, "users", c.plan)
			if err != nil {
				b.Fatal(err)
			}
			teams, err := tokenbucket.New(s, "teams", c.plan)
			if err != nil {
				b.Fatal(err)
			}
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("user-%08d", i)
			}
			ctx := b.Context()
			for i := range keys {
				if err := c.call(ctx, users, teams, keys[i], keys[i/10], i); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			var worker atomic.Uint64
			b.RunParallel(func(pb *testing.PB) {
				for i := worker.Add(7919) * 104729; pb.Next(); i += 7919 {
					if err := c.call(ctx, users, teams, keys[i%n], keys[i%n/10], int(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
