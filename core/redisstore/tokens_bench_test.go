package redisstore_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Client and server share the machine.
func BenchmarkAllow(b *testing.B) {
	server := redistest.Start(b)
	for _, goroutines := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
			b.Cleanup(func() { _ = client.Close() })
			benchmarkAllow(b, client, goroutines)
		})
	}
}

func BenchmarkAllowCluster(b *testing.B) {
	cluster := redistest.StartCluster(b)
	for _, goroutines := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) { benchmarkAllow(b, cluster.Client(), goroutines) })
	}
}

func benchmarkAllow(b *testing.B, client redis.UniversalClient, goroutines int) {
	s := newStore(b, client)
	l, err := tokenbucket.New(s, "api", tokenbucket.Per(1_000_000_000, time.Hour))
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("user-%08d", i)
	}
	if _, err := l.Allow(b.Context(), "first"); err != nil {
		b.Fatal(err)
	}
	var worker atomic.Uint64
	b.ReportAllocs()
	b.SetParallelism(max(goroutines/runtime.GOMAXPROCS(0), 1))
	if goroutines == 1 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	before := processTime()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		ctx := ctx()
		for i := worker.Add(7919); pb.Next(); i += 7919 {
			if d, err := l.Allow(ctx, keys[i%uint64(len(keys))]); err != nil || !d.Allowed {
				b.Error(d, err)
				return
			}
		}
	})
	b.ReportMetric(float64((processTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1000, "k/s")
}

// processTime is what the client alone has used, which other load on the machine changes little.
func processTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
