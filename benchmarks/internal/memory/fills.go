package memory

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// bounded is a row of Lockkeeper's store with a maximum of buckets, and so few parts.
const bounded = "Lockkeeper, at most 16,384 keys"

// fills are numbers of keys around few, at which other parts of the table are about to grow. It has a part for
// each 256 buckets of its maximum, up to 256 parts, and a part grows by a quarter when four fifths of it are taken.
// With 64 parts and 10,000 keys this is at about 9,660 and 12,030; keys are not spread evenly, so that some parts are
// earlier or later by a tenth.
func fills(few int) []int { return []int{few * 96 / 100, few * 102 / 100, few * 108 / 100} }

// measureFills measures the time of a decision when the table is full, and when it has just grown.
func measureFills(ctx context.Context, b *bench.B, few int, rate pace) (*bench.Table, error) {
	t := b.Table("memory-fills"+rate.id, "Decisions before and after the table grows"+rate.title,
		"The table of Lockkeeper's store has parts, of which each grows by a quarter when four fifths of it are taken. The bounded "+
			"store has fewer parts, which grow at numbers of keys that are closer together.",
		append(times(fills(few)...), bench.Column{Name: heap, Unit: "bytes per key at the worst", Better: bench.Less, Format: "%.0f"})...)
	rows := []contender{
		{lockkeeper, newLockkeeper},
		{bounded, func(_ int, l limit) (take, func(), error) { return lockkeeperOn(memstore.WithMaxBuckets(16*1024), l) }},
		{goLimiter, newGoLimiter},
	}
	names, worst := keys(fills(few)[2]), make(map[string]float64)
	for _, n := range fills(few) {
		var all []bench.Contender
		for _, c := range rows {
			all = append(all, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
				r, err := c.measure(ctx, names[:n], rate.limit(n), b.Time(lasts))
				if err != nil {
					return fmt.Errorf("%s: %w", c.row, err)
				}
				for g, ns := range r.ns {
					t.Add(c.row, column(n, g), ns)
				}
				worst[c.row] = max(worst[c.row], r.heap)
				return nil
			}})
		}
		if err := b.Interleave(ctx, title(n)+rate.title, all); err != nil {
			return nil, err
		}
	}
	for row, bytes := range worst {
		t.Add(row, heap, bytes)
	}
	return t, nil
}
