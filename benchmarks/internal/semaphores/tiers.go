package semaphores

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// The tiers share a capacity that the low one alone would use up. What the high one needs at most
// is the reserve.
const (
	shared                 = 100
	reserve                = 20
	lowWeight, lowTakers   = 4, 40
	highWeight, highTakers = reserve / highTakers, 2
)

// tier acquires so many permits at a time.
type tier struct {
	sem     *semaphore.Semaphore
	weight  int
	try     bool // before it waits
	refused atomic.Int64
}

func (t *tier) Lock(ctx context.Context, key string) (contest.Held, error) {
	if t.try {
		permit, err := t.sem.TryAcquireN(ctx, key, t.weight)
		if err == nil {
			return permitHeld{permit}, nil
		}
		if !errors.Is(err, semaphore.ErrNotAcquired) {
			return nil, err
		}
		t.refused.Add(1)
	}
	permit, err := t.sem.AcquireN(ctx, key, t.weight)
	if err != nil {
		return nil, err
	}
	return permitHeld{permit}, nil
}

// Close does nothing.
func (t *tier) Close() {}

// tiers measures a semaphore of two tiers, and the same one without a reserve.
func tiers(ctx context.Context, b *bench.B, s *floor.Site) error {
	const refused, inUse = "high refused", "low at once"
	t := b.Table("semaphores-tiers", fmt.Sprintf("Two tiers of a semaphore of %d", shared),
		fmt.Sprintf("%d low goroutines take %d permits at a time, and %d high ones %d, for 1 ms. The high ones ask without "+
			"waiting, and wait if they are refused: waits are from the first call to the grant. With a reserve of %d the low ones "+
			"leave that many to the high ones.",
			lowTakers, lowWeight, highTakers, highWeight, reserve),
		bench.Column{Name: "low wait p50", Unit: "ms"},
		bench.Column{Name: "low wait p99", Unit: "ms"},
		bench.Column{Name: inUse, Unit: "permits at most"},
		bench.Column{Name: "high wait p50", Unit: "ms"},
		bench.Column{Name: "high wait p99", Unit: "ms"},
		bench.Column{Name: refused, Unit: "% of calls"},
		bench.Column{Name: "low", Unit: "grants per s"},
		bench.Column{Name: "high", Unit: "grants per s"},
	)
	memory := memstore.New()
	defer func() { _ = memory.Close() }()
	var all []bench.Contender
	for _, on := range []struct {
		name  string
		store store.Leases
	}{{"memory", memory}, {"Redis", s.Store}} {
		for _, leaves := range []int{0, reserve} {
			row := rowOf(on.name, leaves)
			base, err := semaphore.New(on.store, fmt.Sprintf("tiers-%d", leaves), shared)
			if err != nil {
				return err
			}
			defer func() { _ = base.Close() }()
			below, err := base.With(semaphore.WithReserve(leaves))
			if err != nil {
				return err
			}
			all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				low, high := &tier{sem: below, weight: lowWeight}, &tier{sem: base, weight: highWeight, try: true}
				d := b.Time(time.Second)
				compete := func(t *tier, takers, most int) contest.Result {
					record := contest.Run(ctx, []contest.Client{t}, takers, 0, held, d)
					return contest.Judge([]contest.Record{record}, takers, most/t.weight, d)
				}
				var (
					running sync.WaitGroup
					lows    contest.Result
				)
				running.Go(func() { lows = compete(low, lowTakers, shared-leaves) })
				highs := compete(high, highTakers, shared)
				running.Wait()
				if err := errors.Join(lows.Err(), highs.Err()); err != nil {
					return err
				}
				t.Add(row, "low wait p50", lows.WaitP50)
				t.Add(row, "low wait p99", lows.WaitP99)
				t.Add(row, inUse, float64(lowWeight*lows.AtOnce))
				t.Add(row, "high wait p50", highs.WaitP50)
				t.Add(row, "high wait p99", highs.WaitP99)
				t.Add(row, refused, 100*float64(high.refused.Load())/float64(highs.Acquisitions))
				t.Add(row, "low", lows.PerSecond)
				t.Add(row, "high", highs.PerSecond)
				return nil
			}})
		}
	}
	if err := b.Interleave(ctx, "semaphores, tiers", all); err != nil {
		return err
	}
	row := rowOf("Redis", reserve)
	b.Measured(lowTarget, t.Value(row, inUse))
	b.Measured(highTarget, t.Value(row, refused))
	return nil
}

func rowOf(store string, reserve int) string {
	return fmt.Sprintf("%s, a reserve of %d", store, reserve)
}
