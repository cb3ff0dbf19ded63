package memstore_test

import (
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
