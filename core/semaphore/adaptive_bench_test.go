package semaphore_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// The difference is the cost of a sample.
func BenchmarkPermit(b *testing.B) {
	for name, opts := range map[string][]semaphore.Option{
		"plain": nil, "adaptive": {semaphore.WithAdaptiveCapacity(time.Second, 100, 1000)},
	} {
		b.Run(name, func(b *testing.B) {
			st := memstore.New()
			defer st.Close()
			s := must(semaphore.New(st, "test", 100, opts...))
			defer func() { _ = s.Close() }()
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				ok(b, must(s.TryAcquire(ctx, "k")).Release(ctx))
			}
		})
	}
}
