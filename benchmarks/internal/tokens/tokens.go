// Package tokens compares token buckets on Redis, and on a Redis Cluster of three.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// Sections are the comparison of token buckets on Redis.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "tokens",
		Title: "Token buckets on Redis",
		About: "Goroutines take a token of a random key out of 10,000, or of one hot key. Allowed: the limit is a million a day, or 300 a " +
			"second, with a burst that is never used up, and targets judge the worse of the two; denied: one a day, used up, " +
			"since 300 a second cannot deny for as long as a measurement takes. " +
			"Wrong or failed decisions are errors and do not count; Redis CPU is the server's own count.",
		Full:    330 * time.Second,
		Run:     run,
		Targets: targets(),
	}, {
		Name:  "cluster",
		Title: "Token buckets on a Redis Cluster",
		About: "The same on a Cluster of three masters, with 256 goroutines and 10,000 keys, all allowed. " +
			"The masters share the machine's cores with the client: the figures show the cost of slots, not the capacity of three machines.",
		Full:    25 * time.Second,
		Run:     runCluster,
		Targets: clusterTargets(),
	}, {
		Name:  "reservations",
		Title: "Reservations and several keys",
		About: "What it costs to reserve an estimate and settle what was used, and to decide about a user and a team at once, beside Allow " +
			"with the same limits, on Redis and in the memory of the process. All is allowed, and targets judge the worse of two rates.",
		Full:    110 * time.Second,
		Run:     runReservations,
		Targets: actionTargets(),
	}}
}

// lasts is the length of one measurement in the full setting.
const lasts = 600 * time.Millisecond

// crowd is the number of goroutines of most columns and targets.
const crowd = 256

func goroutines() []int { return []int{1, 16, 64, crowd} }

// rate is one of the rates at which decisions are allowed.
type rate struct {
	id, title string // suffixes of those of a table
	limit     limit
}

// rates are an interval of whole microseconds, which is the best case for some, and an ordinary one.
func rates() []rate {
	return []rate{{"", "", perDay(1_000_000)}, {"-300", " at 300 a second", ordinary()}}
}

// workload is a number of keys at a limit, and the contenders for it.
type workload struct {
	id, title string
	keys      int
	limit     limit
	denied    bool
	rows      []string
}

func workloads(b *bench.B) []workload {
	many := manyKeys(b)
	allowed := []string{lockkeeper, redisRate, ulule, throttledGo, byHand}
	denied := []string{remembering, asking, redisRate, ulule, throttledGo, byHand, inMemory}
	var all []workload
	for _, r := range rates() {
		all = append(all,
			workload{"allowed" + r.id, count(many) + " keys, allowed" + r.title, many, r.limit, false, allowed},
			workload{"allowed-hot" + r.id, "one hot key, allowed" + r.title, 1, r.limit, false, allowed})
	}
	// An ordinary rate cannot deny for as long as a measurement takes.
	return append(all,
		workload{"denied", count(many) + " keys, denied", many, perDay(1), true, denied},
		workload{"denied-hot", "one hot key, denied", 1, perDay(1), true, denied})
}

// manyKeys is the same in the quick setting as in the full one, since keys take no time.
func manyKeys(b *bench.B) int {
	if b.Setting() == bench.Tiny {
		return b.Count(10_000)
	}
	return 10_000
}

// count formats a number of keys with a comma.
func count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// The columns.
const (
	allocations = "allocations at 256"
	serverCPU   = "Redis CPU at 256"
	failed      = "errors"
)

func throughput(g int) string {
	if g == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", g)
}

func p50(g int) string { return fmt.Sprintf("p50 at %d", g) }

func p99(g int) string { return fmt.Sprintf("p99 at %d", g) }

// tables are the two tables of a workload.
type tables struct{ speed, latency *bench.Table }

func newTables(b *bench.B, w workload) tables {
	var speed, latency, tails []bench.Column
	for _, g := range goroutines() {
		speed = append(speed, bench.Column{Name: throughput(g), Unit: "1000/s", Better: bench.More})
		latency = append(latency, bench.Column{Name: p50(g), Unit: "µs", Better: bench.Less})
		tails = append(tails, bench.Column{Name: p99(g), Unit: "µs", Better: bench.Less})
	}
	speed = append(speed,
		bench.Column{Name: allocations, Unit: "per decision", Better: bench.Less, Format: "%.1f"},
		bench.Column{Name: serverCPU, Unit: "µs per decision", Better: bench.Less},
		bench.Column{Name: failed, Unit: "% at the worst", Better: bench.Less, Format: "%.1f"},
	)
	t := tables{
		speed:   b.Table("tokens-"+w.id, "Decisions: "+w.title, "", speed...),
		latency: b.Table("tokens-"+w.id+"-latency", "Latency of a decision: "+w.title, "", append(latency, tails...)...),
	}
	var charted []string
	for _, g := range goroutines() {
		charted = append(charted, throughput(g))
	}
	t.speed.Chart("Decisions a second: "+w.title, charted...)
	t.latency.Chart("Latency of a decision: "+w.title, p50(crowd), p99(crowd))
	t.speed.Reference(inMemory, together)
	t.latency.Reference(inMemory)
	return t
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	l, err := open(server.Addr())
	if err != nil {
		return err
	}
	defer l.close()
	all := make(map[string]tables)
	for _, w := range workloads(b) {
		all[w.id] = newTables(b, w)
		if err := w.measure(ctx, b, server, l, all[w.id]); err != nil {
			return err
		}
	}
	if err := measureFloor(ctx, b, server); err != nil {
		return err
	}
	if err := measureMemory(ctx, b, server, l); err != nil {
		return err
	}
	judge(b, all)
	notes(b)
	return nil
}

// measure measures the workload with each number of goroutines.
func (w workload) measure(ctx context.Context, b *bench.B, server *redisserver.Server, l *limiters, t tables) error {
	if err := server.Flush(ctx); err != nil {
		return err
	}
	worst := make(map[string]*worstShare)
	limiters := make(map[string]decide)
	for _, row := range w.rows {
		var err error
		if limiters[row], err = l.of(row, w.limit); err != nil {
			return err
		}
		worst[row] = &worstShare{}
		if w.denied {
			if err := exhaust(ctx, limiters[row], keys(row, w.keys)); err != nil {
				return fmt.Errorf("%s: %w", row, err)
			}
		}
	}
	for _, g := range goroutines() {
		var contenders []bench.Contender
		for _, row := range w.rows {
			contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				names := keys(row, w.keys)
				if !w.denied { // new keys, without the debts of the measurement before
					names = keys(fmt.Sprintf("%s %d", row, time.Now().UnixNano()), w.keys)
					if err := server.Flush(ctx); err != nil {
						return err
					}
				}
				r, cpu, err := load(ctx, b, server, g, limiters[row], names, !w.denied)
				if err != nil {
					return err
				}
				worst[row].see(r)
				t.speed.Add(row, throughput(g), r.PerSecond/1000)
				t.latency.Add(row, p50(g), micros(r.P50))
				t.latency.Add(row, p99(g), micros(r.P99))
				if g == crowd {
					t.speed.Add(row, allocations, r.AllocsPerOp)
					t.speed.Add(row, serverCPU, cpu)
				}
				return nil
			}})
		}
		if g == crowd && w.keys > 1 {
			floor, err := w.floor(ctx, b, server, t.speed)
			if err != nil {
				return err
			}
			defer floor.close()
			contenders = append(contenders, floor.Contender)
		}
		if err := interleave(ctx, b, g, fmt.Sprintf("%s, %s", w.title, throughput(g)), contenders); err != nil {
			return err
		}
	}
	for _, row := range w.rows {
		t.speed.Add(row, failed, 100*worst[row].share)
		if worst[row].err != nil {
			b.Note(fmt.Sprintf("%s (%s), one of the errors: %q.", row, w.title, worst[row].err))
		}
	}
	return nil
}

// interleave runs contenders with g goroutines.
func interleave(ctx context.Context, b *bench.B, g int, what string, contenders []bench.Contender) error {
	if g == 1 { // it is all latency
		return b.InterleaveFinely(ctx, what, bench.PartsOfCalls, contenders)
	}
	return b.Interleave(ctx, what, contenders)
}

// floor measures what the server can do with as many decisions in flight.
func (w workload) floor(ctx context.Context, b *bench.B, server *redisserver.Server, t *bench.Table) (*floor, error) {
	f, err := newFloor(ctx, server, together, w.limit, keys("floor", w.keys))
	if err != nil {
		return nil, err
	}
	if w.denied {
		if err := f.exhaust(ctx); err != nil {
			f.close()
			return nil, err
		}
	}
	f.Contender = bench.Contender{Row: together, Run: func(ctx context.Context) error {
		rate, cpu, err := f.load(ctx, b)
		if err != nil {
			return err
		}
		t.Add(together, throughput(crowd), rate/1000)
		t.Add(together, serverCPU, cpu)
		return nil
	}}
	return f, nil
}

// worstShare is the greatest share of calls that failed in any measurement of a row.
type worstShare struct {
	share float64
	err   error
}

func (w *worstShare) see(r bench.LoadResult) {
	if share := float64(r.Errors) / float64(max(r.Ops+r.Errors, 1)); share > w.share {
		w.share, w.err = share, r.Err
	}
}

var errWrong = errors.New("allowed instead of denied, or denied instead of allowed")

// load measures decisions of g goroutines about random keys, after a warm-up, and the server's processor time for each
// of them in µs.
func load(ctx context.Context, b *bench.B, server *redisserver.Server, g int, limiter decide, names []string, want bool) (bench.LoadResult, float64, error) {
	question := func(ctx context.Context, worker, i int) error {
		allowed, err := limiter(ctx, names[bench.Pick(worker, i, len(names))])
		if err == nil && allowed != want {
			err = errWrong
		}
		return err
	}
	bench.Load(ctx, g, b.Time(lasts/8), question)
	if server == nil {
		return bench.Load(ctx, g, b.Time(lasts), question), 0, ctx.Err()
	}
	before, err := server.CPU(ctx)
	if err != nil {
		return bench.LoadResult{}, 0, err
	}
	r := bench.Load(ctx, g, b.Time(lasts), question)
	after, err := server.CPU(ctx)
	if err != nil {
		return bench.LoadResult{}, 0, err
	}
	return r, micros(after-before) / float64(max(r.Ops+r.Errors, 1)), ctx.Err()
}

func keys(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s:%07d", prefix, i)
	}
	return names
}

// exhaust takes the only token of every key, until it is denied.
func exhaust(ctx context.Context, limiter decide, names []string) error {
	return ask(ctx, func(ctx context.Context, name string) (bool, error) {
		for {
			if allowed, err := limiter(ctx, name); err != nil || !allowed {
				return allowed, err
			}
		}
	}, names)
}

// ask calls limiter once for every key.
func ask(ctx context.Context, limiter decide, names []string) error {
	const workers = 64
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range workers {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(names)); i = next.Add(1) - 1 {
				if _, err := limiter(ctx, names[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
