package outage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

const (
	paceJob = "pace"
	pace    = 300 // tokens a second
	atOnce  = 100
	block   = 32 // of WithLease
	paceFor = 5 * time.Second
)

// The rows of Lockkeeper.
const (
	plain    = "Lockkeeper"
	leased   = "Lockkeeper, WithLease(32)"
	reserved = "Lockkeeper, Reserve and Settle"
)

// spending takes tokens of a key: none if it is denied. Calls are numbered.
type spending func(ctx context.Context, key string, call int) (int64, error)

// pacer is a library with a limit of pace tokens a second and atOnce at once.
type pacer struct {
	row    string
	beyond int64 // tokens that all processes may take in addition
	open   func(addr string) (spending, func(), error)
}

func pacers() []pacer {
	limit := tokenbucket.PerSecond(pace).Burst(atOnce)
	allow := func(options ...tokenbucket.Option) func(addr string) (spending, func(), error) {
		return func(addr string) (spending, func(), error) {
			l, end, err := openLimiter(addr, limit, usual, options...)
			return func(ctx context.Context, key string, _ int) (int64, error) {
				d, err := l.Allow(ctx, key)
				return one(d.Allowed), err
			}, end, err
		}
	}
	return []pacer{
		{plain, 0, allow()},
		{leased, processes * block, allow(tokenbucket.WithLease(block))},
		{reserved, atOnce, func(addr string) (spending, func(), error) {
			l, end, err := openLimiter(addr, limit.Named("tokens").Overdraft(atOnce), usual)
			return func(ctx context.Context, key string, call int) (int64, error) {
				return spend(ctx, l, key, 5, int64(1+call%10))
			}, end, err
		}},
		{"redis_rate", 0, func(addr string) (spending, func(), error) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			l := redis_rate.NewLimiter(client)
			return func(ctx context.Context, key string, _ int) (int64, error) {
				r, err := l.Allow(ctx, key, redis_rate.Limit{Rate: pace, Burst: atOnce, Period: time.Second})
				return one(err == nil && r.Allowed > 0), err
			}, func() { _ = client.Close() }, nil
		}},
	}
}

func one(allowed bool) int64 {
	if allowed {
		return 1
	}
	return 0
}

// spend reserves an estimate, and settles what was used. It returns how many tokens are known to be charged.
func spend(ctx context.Context, l *tokenbucket.Limiter, key string, estimate, used int64) (int64, error) {
	r, err := l.Reserve(ctx, key, tokenbucket.Cost{"tokens": estimate})
	if err != nil || !r.Allowed {
		return 0, err
	}
	if err := r.Use("tokens", used); err != nil {
		return 0, err
	}
	switch err := r.Settle(ctx); {
	case err == nil:
		return used, nil
	case errors.Is(err, tokenbucket.ErrOverdraft), errors.Is(err, store.ErrUnavailable):
		return min(estimate, used), err
	default:
		return 0, err
	}
}

// pacing is the work of a process: its goroutines take tokens of a key as fast as they can, for a time.
type pacing struct {
	Addr, Row, Key string
	For            time.Duration
}

// paced is what a process has taken, between two times of the machine's monotonic clock.
type paced struct{ Tokens, Denied, Failed, First, Last int64 }

// warm makes a first call, which connects. It retries failures of a machine that has just started
// several processes.
func warm(ctx context.Context, call func() error) (err error) {
	for range 20 {
		if err = call(); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

func runPace(ctx context.Context, args []byte, begin func() error) (any, error) {
	var a pacing
	if err := json.Unmarshal(args, &a); err != nil {
		return nil, err
	}
	for _, p := range pacers() {
		if p.row != a.Row {
			continue
		}
		take, end, err := p.open(a.Addr)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := warm(ctx, func() error { _, err := take(ctx, "warm", 0); return err }); err != nil {
			return nil, err
		}
		if err := begin(); err != nil {
			return nil, err
		}
		var (
			tokens, denied, failed atomic.Int64
			running                sync.WaitGroup
			first                  = history.Now()
		)
		for range goroutines {
			running.Go(func() {
				for call := 0; history.Now() < first+int64(a.For) && ctx.Err() == nil; call++ {
					n, err := take(ctx, a.Key, call)
					tokens.Add(n)
					switch {
					case err != nil:
						failed.Add(1)
					case n == 0:
						denied.Add(1)
					}
				}
			})
		}
		running.Wait()
		return paced{tokens.Load(), denied.Load(), failed.Load(), first, history.Now()}, nil
	}
	return nil, fmt.Errorf("no limiter %q", a.Row)
}

// paceOf is what all processes have taken together.
type paceOf struct {
	tokens, denied, failed int64
	room                   float64 // burst + rate x time
}

func (p pacer) run(ctx context.Context, addr, key string, d time.Duration) (sum paceOf, err error) {
	results, err := worker.Group[paced](ctx, processes, paceJob, func(int) any { return pacing{addr, p.row, key, d} }, func() {})
	if err != nil {
		return sum, err
	}
	first, last := results[0].First, results[0].Last
	for _, r := range results {
		sum.tokens += r.Tokens
		sum.denied += r.Denied
		sum.failed += r.Failed
		first, last = min(first, r.First), max(last, r.Last)
	}
	sum.room = atOnce + pace*float64(last-first)/1e9
	return sum, nil
}

// excess is how many tokens were taken beyond what is promised.
func (p pacer) excess(sum paceOf) float64 {
	return max(float64(sum.tokens)-sum.room-float64(p.beyond), 0)
}

// keepPace counts how many tokens of one key are taken while all processes ask for more than there are.
func keepPace(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	const share, excess = "taken", "beyond"
	t := b.Table("outage-pace", fmt.Sprintf("One key of %d a second and %d at once, %d processes of %d goroutines", pace, atOnce, processes, goroutines),
		fmt.Sprintf("All ask for %v as fast as they can. Of the burst and what comes back in the time, until the last call has returned: what is "+
			"taken, and tokens beyond it. Beyond WithLease(%d) only what exceeds that by more than %d for each process counts, and beyond "+
			"reservations, which settle 1 to 10 tokens of an estimated 5, what exceeds the overdraft of %d as well.",
			b.Time(paceFor), block, block, atOnce),
		bench.Column{Name: share, Unit: "% of burst + rate × time", Format: "%.1f"},
		bench.Column{Name: excess, Unit: "tokens", Better: bench.Less, Format: "%.1f"},
		bench.Column{Name: "denied", Unit: "requests"},
		bench.Column{Name: "failed", Unit: "requests", Better: bench.Less},
	)
	var (
		all    []bench.Contender
		rounds atomic.Int64
		most   = make(map[string]float64)
		least  = make(map[string]float64)
	)
	for _, p := range pacers() {
		most[p.row], least[p.row] = math.Inf(-1), math.Inf(1)
		all = append(all, bench.Contender{Row: p.row, Run: func(ctx context.Context) error {
			sum, err := p.run(ctx, server.Addr(), fmt.Sprintf("pace-%d", rounds.Add(1)), b.Time(paceFor))
			if err != nil {
				return err
			}
			taken, beyond := 100*float64(sum.tokens)/sum.room, p.excess(sum)
			t.Add(p.row, share, taken)
			t.Add(p.row, excess, beyond)
			t.Add(p.row, "denied", float64(sum.denied))
			t.Add(p.row, "failed", float64(sum.failed))
			most[p.row], least[p.row] = max(most[p.row], beyond), min(least[p.row], taken)
			return nil
		}})
	}
	if err := b.Interleave(ctx, "outage, one key at its pace", all); err != nil {
		return err
	}
	for _, row := range []string{plain, leased, reserved} {
		b.Measured(beyondTarget(row), most[row])
	}
	for _, row := range []string{plain, leased} {
		b.Measured(shareTarget(row), least[row])
	}
	return nil
}

func beyondTarget(row string) string {
	return "one key, 4 processes: " + row + ", tokens beyond its bound, at the worst"
}

func shareTarget(row string) string {
	return "one key, 4 processes: " + row + ", share of burst + rate × time, at the worst"
}

func targets() (all []bench.Target) {
	for _, row := range []string{plain, leased, reserved} {
		all = append(all, bench.Target{What: beyondTarget(row), Better: bench.Less, Unit: "tokens"})
	}
	for _, row := range []string{plain, leased} {
		all = append(all, bench.Target{What: shareTarget(row), Bound: 99, Better: bench.More, Unit: "%"})
	}
	return all
}
