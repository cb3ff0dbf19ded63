package pgstore

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// takers is how many goroutines take tokens at once.
const takers = 256

func BenchmarkTakeTokens(b *testing.B) {
	for _, bench := range []struct {
		name string
		keys int
		plan tokenbucket.Plan
	}{
		{"10000 keys", 10_000, tokenbucket.PerSecond(1_000_000_000)},
		{"a hot key", 1, tokenbucket.PerSecond(1_000_000_000)},
		{"two limits", 10_000, tokenbucket.Limits{tokenbucket.PerSecond(1_000_000_000), tokenbucket.PerMinute(1_000_000_000).Named("minute")}},
	} {
		for _, n := range []int{1, takers} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				s := newTestStore(b, WithTimeout(time.Second))
				l, err := tokenbucket.New(s, "bench", bench.plan)
				if err != nil {
					b.Fatal(err)
				}
				atOnce(b, n, func() error {
					d, err := l.Allow(b.Context(), fmt.Sprint("key-", rand.IntN(bench.keys)))
					if err == nil && !d.Allowed {
						return fmt.Errorf("denied: %+v", d)
					}
					return err
				})
			})
		}
	}
}

// BenchmarkSingleUpserts is what a program does without a store: an upsert for each charge.
func BenchmarkSingleUpserts(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			config, err := pgxpool.ParseConfig(migrated(b))
			if err != nil {
				b.Fatal(err)
			}
			config.MaxConns = 64
			pool, err := pgxpool.NewWithConfig(b.Context(), config)
			if err != nil {
				b.Fatal(err)
			}
			defer pool.Close()
			const table = "CREATE UNLOGGED TABLE plain (id int PRIMARY KEY, empties bigint NOT NULL) WITH (fillfactor = 50)"
			if _, err := pool.Exec(b.Context(), table); err != nil {
				b.Fatal(err)
			}
			atOnce(b, n, func() error {
				var left int64
				return pool.QueryRow(b.Context(), `INSERT INTO plain AS p VALUES ($1, lk.now_us() + $2)
ON CONFLICT (id) DO UPDATE SET empties = greatest(p.empties, lk.now_us()) + $2 WHERE greatest(p.empties - lk.now_us(), 0) + $2 <= $3
RETURNING empties`, rand.IntN(10_000), 1, time.Second.Microseconds()).Scan(&left)
			})
		})
	}
}

// atOnce calls f b.N times, in n goroutines.
func atOnce(b *testing.B, n int, f func() error) {
	b.Helper()
	ended, left := make(chan error, n), atomic.Int64{}
	left.Store(int64(b.N))
	b.ResetTimer()
	for range n {
		go func() {
			for left.Add(-1) >= 0 {
				if err := f(); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range n {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
}
