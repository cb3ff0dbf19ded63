package memory

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// bounded is a row of Lockkeeper's store with a maximum of buckets, and so few parts.
const bounded = "Lockkeeper, at most 16,384 keys"

// fills are the numbers of keys around few with which the table is emptiest, between, and fullest. It has a
// part for each 1,024 buckets of its maximum, which grows by a quarter when four fifths of it are taken. With
// 16 parts and 10,000 keys this is at 9,136 and 11,408, and some keys later or earlier in each part. With the
// 256 parts of the default maximum, at 40 keys each, parts of all fills are there with any number of keys.
func fills(few int) []int { return []int{few * 96 / 100, few * 102 / 100, few * 108 / 100} }

// measureFills measures the time of a decision when the table is full, and when it has just grown.
func measureFills(ctx context.Context, b *bench.B, few int, rate pace) (*bench.Table, error) {
	t := b.Table("memory-fills"+rate.id, "Decisions before and after the table grows"+rate.title,
		"With the fewest of these keys the parts of the bounded store's table have just grown, with the most they are about to. "+
			"By default it has more parts, of which each grows at another number of keys.",
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
