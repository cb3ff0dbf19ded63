// Package memory compares token buckets in the memory of a process.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// Sections are the comparison of token buckets in memory.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "memory",
		Title: "Token buckets in memory",
		About: fmt.Sprintf("One goroutine, and then %d (one per core), take tokens of random keys that are known before; all are allowed, "+
			"and targets judge the worse of two rates. A figure is wall-clock time per decision, over all goroutines; heap per key "+
			"includes the text of the key.", cores()),
		Full:    300 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

func cores() int { return runtime.GOMAXPROCS(0) }

// lasts is the length of one measurement in the full setting.
const lasts = 400 * time.Millisecond

// The columns.
const (
	allocations = "allocations"
	heap        = "heap"
)

// title formats a number of keys.
func title(keys int) string {
	switch {
	case keys == 1:
		return "1 key"
	case keys >= 1_000_000:
		return strconv.Itoa(keys/1_000_000) + "M keys"
	case keys >= 1000 && keys%1000 == 0:
		return strconv.Itoa(keys/1000) + "k keys"
	case keys >= 1000:
		return fmt.Sprintf("%d,%03d keys", keys/1000, keys%1000)
	default:
		return strconv.Itoa(keys) + " keys"
	}
}

func column(keys, goroutines int) string {
	if goroutines == 1 {
		return title(keys) + ", 1 goroutine"
	}
	return fmt.Sprintf("%s, %d goroutines", title(keys), goroutines)
}

func run(ctx context.Context, b *bench.B) error {
	few, many := min(10_000, b.Count(1_000_000)/10), b.Count(1_000_000)
	var all []measured
	for _, r := range rates() {
		t, err := measureAll(ctx, b, few, many, r)
		if err != nil {
			return err
		}
		f, err := measureFills(ctx, b, few, r)
		if err != nil {
			return err
		}
		all = append(all, measured{t, f})
	}
	judge(b, all, few, many)
	b.Note("x/time/rate limits one key; its users keep a limiter for each in a map. Neither of those two forgets a key.")
	b.Note("throttled's memstore has no maximum of keys, which would make it slower, and may compare and swap a thousand times: its " +
		"default of ten is too few for a key of several goroutines. Lockkeeper's maximum is raised if not all keys fit.")
	b.Note("httprate keeps a hash of each key, and counts in windows; the row is its counter, read and incremented as by its middleware.")
	b.Note("echo's documentation recommends its store for modest loads, and at most 16,000 keys.")
	return nil
}

// measured are the tables of a rate.
type measured struct{ all, fills *bench.Table }

// crowds are the numbers of goroutines.
func crowds() []int {
	if cores() == 1 {
		return []int{1}
	}
	return []int{1, cores()}
}

// times are the columns of some numbers of keys.
func times(keys ...int) (columns []bench.Column) {
	for _, n := range keys {
		for _, g := range crowds() {
			columns = append(columns, bench.Column{Name: column(n, g), Unit: "ns", Better: bench.Less})
		}
	}
	return columns
}

// measureAll measures all contenders at a rate.
func measureAll(ctx context.Context, b *bench.B, few, many int, rate pace) (*bench.Table, error) {
	columns := append(times(1, few, many),
		bench.Column{Name: allocations, Unit: "per decision", Better: bench.Less, Format: "%.1f"},
		bench.Column{Name: heap, Unit: fmt.Sprintf("bytes per key at %s", title(many)), Better: bench.Less, Format: "%.0f"},
	)
	t := b.Table("memory"+rate.id, "Decisions, all allowed"+rate.title, "Allocations are those with "+title(few)+" and one goroutine.", columns...)
	t.Reference(bareSwap)
	t.Chart("A decision in memory"+rate.title, column(few, cores()), column(many, cores()), heap)
	names, denials := keys(many), make(map[string]int)
	for _, n := range []int{1, few, many} {
		var all []bench.Contender
		for _, c := range contenders() {
			all = append(all, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
				r, err := c.measure(ctx, names[:n], rate.limit(n), b.Time(lasts))
				switch {
				case errors.Is(err, errDenied) && c.row != lockkeeper:
					denials[c.row+", "+title(n)]++
					return nil
				case err != nil:
					return fmt.Errorf("%s: %w", c.row, err)
				}
				for g, ns := range r.ns {
					t.Add(c.row, column(n, g), ns)
				}
				if n == few {
					t.Add(c.row, allocations, r.allocations)
				}
				if n == many {
					t.Add(c.row, heap, r.heap)
				}
				return nil
			}})
		}
		if err := b.Interleave(ctx, title(n)+rate.title, all); err != nil {
			return nil, err
		}
	}
	for _, of := range slices.Sorted(maps.Keys(denials)) {
		b.Note(fmt.Sprintf("%s%s: wrongly denied in %d of %d rounds, which have no figure.", of, rate.title, denials[of], b.Rounds()))
	}
	return t, nil
}

// result is what was measured of one limiter with one number of keys.
type result struct {
	ns          map[int]float64 // for each number of goroutines
	allocations float64
	heap        float64
}

// measure measures the limiter with keys that are known before.
func (c contender) measure(ctx context.Context, names []string, l limit, d time.Duration) (result, error) {
	before := inUse()
	take, end, err := c.new(len(names), l)
	if err != nil {
		return result{}, err
	}
	defer end()
	for i, name := range names {
		if !take(i, strings.Clone(name)) { // a new string for each request
			return result{}, fmt.Errorf("key %d of %d was not allowed", i, len(names))
		}
	}
	r := result{ns: make(map[int]float64), heap: (inUse() - before) / float64(len(names))}
	for _, g := range crowds() {
		spin := spin(ctx, g, d, take, names)
		if spin.Err != nil {
			return result{}, spin.Err
		}
		r.ns[g] = spin.NsPerCall
		if g == 1 {
			r.allocations = spin.AllocsPerOp
		}
	}
	return r, ctx.Err()
}

var errDenied = errors.New("wrongly denied")

func spin(ctx context.Context, g int, d time.Duration, take take, names []string) bench.SpinResult {
	n := len(names)
	return bench.Spin(ctx, g, d, func(worker, i int) error {
		number := bench.Pick(worker, i, n)
		if !take(number, names[number]) {
			return errDenied
		}
		return nil
	})
}

// inUse returns the reachable bytes of the heap.
func inUse() float64 {
	runtime.GC()
	runtime.GC() // and what the first has finalised
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func keys(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user:%07d", i)
	}
	return names
}

// The targets, which name the numbers of keys of the full setting.
const (
	toAllocations = "memory store: allocations"
	toHeap        = "memory store, 1M keys: heap"
)

func toFew(goroutines int) string {
	return "memory store, " + column(10_000, goroutines) + ", at every fill of its table: time, of go-limiter's"
}

func toMany(goroutines int) string {
	return "memory store, " + column(1_000_000, goroutines) + ": time, of go-limiter's"
}

func targets() []bench.Target {
	return []bench.Target{
		{What: toFew(1), Bound: 0.85, Better: bench.Less, Unit: "×"},
		{What: toFew(2), Bound: 0.85, Better: bench.Less, Unit: "×"},
		{What: toMany(1), Bound: 0.65, Better: bench.Less, Unit: "×"},
		{What: toMany(2), Bound: 0.7, Better: bench.Less, Unit: "×"},
		{What: toAllocations, Better: bench.Less, Unit: "per decision"},
		{What: toHeap, Bound: 64, Better: bench.Less, Unit: "bytes per key"},
	}
}

func judge(b *bench.B, all []measured, few, many int) {
	// worst returns the worst value over the rates; NaN if one was not measured.
	worst := func(of func(m measured) float64) float64 {
		value := math.Inf(-1)
		for _, m := range all {
			value = max(value, of(m))
		}
		return value
	}
	for _, g := range crowds() {
		if g > 2 { // the targets are of two cores
			continue
		}
		// In pairs, since a machine may take twice as long in some rounds.
		b.Measured(toFew(g), worst(func(m measured) float64 {
			value := m.all.PairedRatio(column(few, g), lockkeeper, goLimiter)
			for _, n := range fills(few) {
				for _, row := range []string{lockkeeper, bounded} {
					value = max(value, m.fills.PairedRatio(column(n, g), row, goLimiter))
				}
			}
			return value
		}))
		b.Measured(toMany(g), worst(func(m measured) float64 { return m.all.Ratio(column(many, g), lockkeeper, goLimiter) }))
	}
	b.Measured(toAllocations, worst(func(m measured) float64 { return math.Round(10*m.all.Value(lockkeeper, allocations)) / 10 }))
	b.Measured(toHeap, worst(func(m measured) float64 { return m.all.Value(lockkeeper, heap) }))
}
