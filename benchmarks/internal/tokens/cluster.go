package tokens

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// The targets of the cluster section.
const (
	clusterToRedisRate = "Cluster, allowed, 256 goroutines: times redis_rate"
	clusterToByHand    = "Cluster, allowed, 256 goroutines: times a script by hand on rueidis"
	clusterAllocations = "Cluster, allowed, 256 goroutines: allocations"
)

func clusterTargets() []bench.Target {
	return []bench.Target{
		{What: clusterToRedisRate, Bound: 2.2, Better: bench.More, Unit: "×"},
		{What: clusterToByHand, Bound: 1.1, Better: bench.More, Unit: "×"},
		{What: clusterAllocations, Bound: 4, Better: bench.Less, Unit: "per decision"},
	}
}

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
	n, all := manyKeys(b), make(map[string]tables)
	for _, r := range rates() {
		t, err := measureCluster(ctx, b, l, n, r)
		if err != nil {
			return err
		}
		all["allowed"+r.id] = tables{speed: t}
	}
	times := func(than string) float64 {
		return worst(all, bench.More, func(t tables) float64 { return t.speed.Ratio("throughput", lockkeeper, than) })
	}
	b.Measured(clusterToRedisRate, times(redisRate))
	b.Measured(clusterToByHand, times(byHand))
	b.Measured(clusterAllocations, worst(all, bench.Less, func(t tables) float64 { return t.speed.Value(lockkeeper, "allocations") }))
	b.Note("rueidis sends each key's script to its slot's master, and pipelines those of one master.")
	return nil
}

// measureCluster measures the contenders at a rate.
func measureCluster(ctx context.Context, b *bench.B, l *limiters, n int, rate rate) (*bench.Table, error) {
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
			return nil, err
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
		return nil, err
	}
	return t, nil
}
