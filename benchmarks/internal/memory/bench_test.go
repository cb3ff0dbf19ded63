package memory

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// BenchmarkDecision measures each limiter as the section does, for go test -bench.
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{1, 10_000, 1_000_000} {
		names := keys(n)
		for _, r := range rates() {
			for _, c := range contenders() {
				b.Run(title(n)+r.title+"/"+c.row, func(b *testing.B) {
					take, end, err := c.new(n, r.limit(n))
					if err != nil {
						b.Fatal(err)
					}
					defer end()
					for i, name := range names {
						take(i, name)
					}
					b.ReportAllocs()
					b.ResetTimer()
					var workers atomic.Int64
					b.RunParallel(func(pb *testing.PB) {
						worker := int(workers.Add(1))
						for i := 0; pb.Next(); i++ {
							number := bench.Pick(worker, i, n)
							take(number, names[number])
						}
					})
				})
			}
		}
	}
}

// Every contender enforces the limit: otherwise the comparison would be of different things.
func TestContendersLimit(t *testing.T) {
	for _, c := range contenders() {
		t.Run(c.row, func(t *testing.T) {
			const n = 5
			take, end, err := c.new(2, limit{n, time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			for i := range n {
				if !take(0, "a") {
					t.Fatalf("token %d of %d was denied", i+1, n)
				}
			}
			if take(0, "a") {
				t.Errorf("one more than %d was allowed", n)
			}
			if !take(1, "b") {
				t.Error("another key was denied")
			}
		})
	}
}

func TestMeasure(t *testing.T) {
	for _, rate := range rates() {
		for _, c := range contenders() {
			r, err := c.measure(context.Background(), keys(100), rate.limit(100), time.Millisecond)
			if err != nil {
				t.Fatalf("%s%s: %v", c.row, rate.title, err)
			}
			if len(r.ns) == 0 || r.ns[1] <= 0 {
				t.Errorf("%s%s: measured %+v", c.row, rate.title, r)
			}
		}
	}
}
