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
		About: fmt.Sprintf("One goroutine, and then %d of them (one for each core), take tokens of keys that are chosen at random, and "+
			"always get them. All keys are known before it is measured. A figure is the time on the clock for each decision, so "+
			"with several goroutines it is less if they do not stand in each other's way. What a key takes of the heap counts "+
			"the text that the limiter keeps of it: a copy, as Lockkeeper's, or the one that it was first given.", cores()),
		Full: 130 * time.Second,
		Run:  run,
	}}
}

func cores() int { return runtime.GOMAXPROCS(0) }

// lasts is how long one measurement is in the full setting.
const lasts = 400 * time.Millisecond

// The columns.
const (
	allocations = "allocations"
	heap        = "heap"
)

// title writes a number of keys.
func title(keys int) string {
	switch {
	case keys == 1:
		return "1 key"
	case keys >= 1_000_000:
		return strconv.Itoa(keys/1_000_000) + "M keys"
	case keys >= 1000:
		return strconv.Itoa(keys/1000) + "k keys"
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
	var columns []bench.Column
	for _, n := range []int{1, few, many} {
		for _, g := range []int{1, cores()} {
			columns = append(columns, bench.Column{Name: column(n, g), Unit: "ns", Better: bench.Less})
			if cores() == 1 {
				break
			}
		}
	}
	columns = append(columns,
		bench.Column{Name: allocations, Unit: "per decision", Better: bench.Less, Format: "%.1f"},
		bench.Column{Name: heap, Unit: fmt.Sprintf("bytes per key at %s", title(many)), Better: bench.Less, Format: "%.0f"},
	)
	t := b.Table("memory", "Decisions, all allowed", "Allocations are those with "+title(few)+" and one goroutine.", columns...)
	t.Reference(bareSwap)
	t.Chart("A decision in memory", column(few, cores()), column(many, cores()), heap)
	names, denials := keys(many), make(map[string]int)
	for _, n := range []int{1, few, many} {
		var all []bench.Contender
		for _, c := range contenders() {
			all = append(all, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
				r, err := c.measure(ctx, names[:n], b.Time(lasts))
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
		if err := b.Interleave(ctx, title(n), all); err != nil {
			return err
		}
	}
	targets(b, t, few, many)
	for _, of := range slices.Sorted(maps.Keys(denials)) {
		b.Note(fmt.Sprintf("%s: denied what is allowed in %d of %d rounds, which have no figure.", of, denials[of], b.Rounds()))
	}
	b.Note("x/time/rate limits one key; its users keep a limiter for each in a map. None of those two forgets a key, ever.")
	b.Note("throttled's memstore is without its maximum of keys, which would make it slower, and may compare and swap a thousand " +
		"times instead of ten, which are too few for a key that several goroutines want. Lockkeeper's is raised where not all keys fit.")
	b.Note("httprate keeps a hash of each key, and counts in windows; the row is its counter, read and added to as its middleware " +
		"does. What the middleware adds is in the next section.")
	b.Note("echo's own documentation recommends its store for modest loads, and no more than 16,000 keys.")
	return nil
}

// result is what one limiter has taken with one number of keys.
type result struct {
	ns          map[int]float64 // for each number of goroutines
	allocations float64
	heap        float64
}

// measure makes the limiter, has it know all keys, and measures it.
func (c contender) measure(ctx context.Context, names []string, d time.Duration) (result, error) {
	before := inUse()
	take, end, err := c.new(len(names), limitOf(len(names)))
	if err != nil {
		return result{}, err
	}
	defer end()
	for i, name := range names {
		if !take(i, strings.Clone(name)) { // each request brings a text of its own
			return result{}, fmt.Errorf("key %d of %d was not allowed", i, len(names))
		}
	}
	r := result{ns: make(map[int]float64), heap: (inUse() - before) / float64(len(names))}
	for _, g := range []int{1, cores()} {
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

var errDenied = errors.New("denied what is allowed")

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

// inUse is how many bytes of the heap are reachable.
func inUse() float64 {
	runtime.GC()
	runtime.GC() // what the first has finalised
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

func targets(b *bench.B, t *bench.Table, few, many int) {
	value := func(row, column string) float64 {
		if v, ok := t.Median(row, column); ok {
			return v
		}
		return math.NaN()
	}
	for _, want := range []struct {
		keys           int
		atLeast, reach float64
	}{{few, 0.85, 0.7}, {many, 0.75, 0.6}} {
		for _, g := range []int{1, cores()} {
			at := column(want.keys, g)
			b.Target(bench.Target{
				What: "memory store, " + at + ": time, of go-limiter's", Value: value(lockkeeper, at) / value(goLimiter, at),
				AtLeast: want.atLeast, Reach: want.reach, Better: bench.Less, Unit: "×",
			})
			if cores() == 1 {
				break
			}
		}
	}
	b.Target(bench.Target{
		What: "memory store: allocations", Value: math.Round(10*value(lockkeeper, allocations)) / 10, Better: bench.Less, Unit: "per decision",
	})
	b.Target(bench.Target{
		What: "memory store, " + title(many) + ": heap", Value: value(lockkeeper, heap), AtLeast: 64, Reach: 50, Better: bench.Less, Unit: "bytes per key",
	})
}
