package redisstore_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Each goroutine has a lock of its own, without contention.
func BenchmarkLock(b *testing.B) {
	server := redistest.Start(b)
	for _, goroutines := range []int{1, 4, 16, 64, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
			b.Cleanup(func() { _ = client.Close() })
			locker, err := lock.New(newStore(b, client), "bench")
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = locker.Close() })
			var next atomic.Int64
			var mu sync.Mutex
			var took []time.Duration
			b.ReportAllocs()
			b.SetParallelism(max(goroutines/runtime.GOMAXPROCS(0), 1))
			if goroutines == 1 {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				key := fmt.Sprint("key-", next.Add(1))
				var mine []time.Duration
				for pb.Next() {
					began := time.Now()
					lease, err := locker.Lock(ctx(), key)
					if err != nil {
						b.Error(err)
						return
					}
					if err := lease.Unlock(ctx()); err != nil {
						b.Error(err)
						return
					}
					mine = append(mine, time.Since(began))
				}
				mu.Lock()
				took = append(took, mine...)
				mu.Unlock()
			})
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1000, "k/s")
		})
	}
}
