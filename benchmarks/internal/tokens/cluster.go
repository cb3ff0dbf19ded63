package tokens

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

func runCluster(ctx context.Context, b *bench.B) error {
	addrs, err := b.Cluster(ctx)
	if err != nil {
		return err
	}
	l, err := open(addrs...)
	if err != nil {
		return err
	}
	defer l.close()
	n, worst := manyKeys(b), math.Inf(1)
	for _, r := range rates() {
		ratio, err := measureCluster(ctx, b, l, n, r)
		if err != nil {
			return err
		}
		worst = min(worst, ratio)
	}
	b.Target(bench.Target{
		What: "Cluster, allowed, 256 goroutines: times redis_rate", Value: worst, AtLeast: 2, Reach: 3, Better: bench.More, Unit: "×",
	})
	return nil
}

// measureCluster returns how many times the decisions of redis_rate Lockkeeper makes at a rate.
func measureCluster(ctx context.Context, b *bench.B, l *limiters, n int, rate rate) (float64, error) {
	t := b.Table("cluster"+rate.id, fmt.Sprintf("Decisions: %s keys, allowed%s, 256 goroutines", count(n), rate.title), "",
		bench.Column{Name: "throughput", Unit: "1000/s", Better: bench.More},
		bench.Column{Name: "p50", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "allocations", Unit: "per decision", Better: bench.Less, Format: "%.1f"},
		bench.Column{Name: failed, Unit: "%", Better: bench.Less, Format: "%.1f"},
	)
	t.Chart("Decisions on a Cluster of three"+rate.title, "throughput", "p99")
	var contenders []bench.Contender
	for _, row := range []string{lockkeeper, redisRate, byHand} {
		limiter, err := l.of(row, rate.limit)
		if err != nil {
			return 0, err
		}
		contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			names := keys(fmt.Sprintf("%s %d", row, time.Now().UnixNano()), n)
			r, _, err := load(ctx, b, nil, crowd, limiter, names, true)
			if err != nil {
				return err
			}
			t.Add(row, "throughput", r.PerSecond/1000)
			t.Add(row, "p50", micros(r.P50))
			t.Add(row, "p99", micros(r.P99))
			t.Add(row, "allocations", r.AllocsPerOp)
			t.Add(row, failed, 100*float64(r.Errors)/float64(max(r.Ops+r.Errors, 1)))
			if r.Err != nil {
				b.Note(fmt.Sprintf("%s, one of the errors: %q.", row, r.Err))
			}
			return nil
		}})
	}
	if err := b.Interleave(ctx, "allowed"+rate.title+", 256 goroutines", contenders); err != nil {
		return 0, err
	}
	return t.Ratio("throughput", lockkeeper, redisRate), nil
}
