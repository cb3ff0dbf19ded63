package tokens

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The rows of reservations and of several keys.
const (
	allowOne    = "Allow"
	reserveOne  = "Reserve and Settle"
	allowTwo    = "Allow, two limits"
	reserveTwo  = "Reserve and Settle, two limits"
	allTwo      = "All: a user and a team"
	perDecision = "allocations"
)

// price is the ratio of a row's time to that of another one.
type price struct{ row, of string }

func prices() []price {
	return []price{{reserveOne, allowOne}, {reserveTwo, allowTwo}, {allTwo, allowOne}}
}

func (p price) target(where string, goroutines int) string {
	return fmt.Sprintf("%s, %s: time of %q, of that of %q", where, throughput(goroutines), p.row, p.of)
}

// The names of the stores in targets.
const (
	onRedis     = "Redis"
	underMemory = "memory store"
)

func actionTargets() (all []bench.Target) {
	one, two, several := prices()[0], prices()[1], prices()[2]
	add := func(where string, goroutines int, p price, most float64, floor string) {
		all = append(all, bench.Target{What: p.target(where, goroutines), Bound: most, Better: bench.Less, Unit: "×", Floor: floor})
	}
	add(onRedis, 1, one, 2.1, "")
	add(onRedis, crowd, one, 2.4, "two decisions of the store: 2; × 1.2, since a reservation and its settlement take 7.4 allocations, and a decision 2.1")
	add(onRedis, 1, two, 2.1, "")
	add(onRedis, crowd, two, 2.1, "")
	add(onRedis, 1, several, 1.3, "")
	add(onRedis, crowd, several, 2.1, "two GETs and two SETs instead of one of each, of a server that is the bottleneck: 2; × 1.05")
	const reserved = "two calls of the store are 1.9 of an Allow of 82 ns, and the allocation is 0.9: 2.8; × 1.1"
	const reservedTwo = "two calls of the store are 1.9 of an Allow with two limits, of 247 ns, and the allocation is 0.3: 2.2; × 1.1"
	const both = "two keys are two lookups, 1.9 of an Allow of 82 ns, and the allocation is 0.9: 2.8; × 1.1"
	for _, g := range pair() {
		add(underMemory, g, one, 3.1, reserved)
	}
	add(underMemory, 1, two, 2.4, reservedTwo)
	add(underMemory, 2, two, 2.8, reservedTwo+"; × 1.15, since on two cores calls that allocate gain 0.79, 0.87 and 0.9 of what Allow gains on A, B and C")
	for _, g := range pair() {
		add(underMemory, g, several, 3.1, both)
	}
	return all
}

// pair is the numbers of goroutines in memory that targets judge: those of two cores.
func pair() []int { return []int{1, 2} }

// judged returns those of the numbers that targets judge.
func judged(goroutines []int) []int {
	return slices.DeleteFunc(slices.Clone(goroutines), func(g int) bool { return !slices.Contains(pair(), g) })
}

// teamOf is how many users share the key of a team.
const teamOf = 10

// usage is what a call has used in the end, of an estimate of two tokens: never two, so that it is settled.
func usage(i int) int64 { return 1 + 2*int64(i&1) }

// action is what a row does with a key, whose team's key it also gets: a call, or a reservation and its
// settlement.
type action func(ctx context.Context, i int, user, team string) error

// actions are those of all rows, on a store.
func actions(st store.Buckets, l limit) (map[string]action, error) {
	limit := tokenbucket.Per(int64(l.tokens), l.period).Burst(int64(l.burst))
	limiters := make(map[string]*tokenbucket.Limiter)
	for name, plan := range map[string]tokenbucket.Plan{
		"tokens": limit, "teams": limit,
		"both": tokenbucket.Limits{limit.Named("requests"), limit.Named("tokens")},
	} {
		var err error
		if limiters[name], err = tokenbucket.New(st, name, plan); err != nil {
			return nil, err
		}
	}
	one, two, teams := limiters["tokens"], limiters["both"], limiters["teams"]
	allow := func(limiter *tokenbucket.Limiter) action {
		return func(ctx context.Context, _ int, user, _ string) error {
			d, err := limiter.Allow(ctx, user)
			return allowed(d.Allowed, err)
		}
	}
	reserve := func(limiter *tokenbucket.Limiter, estimate tokenbucket.Cost) action {
		return func(ctx context.Context, i int, user, _ string) error {
			r, err := limiter.Reserve(ctx, user, estimate)
			if err != nil {
				return err
			}
			if err := allowed(r.Allowed, nil); err != nil {
				return err
			}
			if err := r.Use("tokens", usage(i)); err != nil {
				return err
			}
			return r.Settle(ctx)
		}
	}
	return map[string]action{
		allowOne:   allow(one),
		allowTwo:   allow(two),
		reserveOne: reserve(one, tokenbucket.Cost{"tokens": 2}),
		reserveTwo: reserve(two, tokenbucket.Cost{"requests": 1, "tokens": 2}),
		allTwo: func(ctx context.Context, _ int, user, team string) error {
			d, err := tokenbucket.All(ctx, one.Ask(user, 1), teams.Ask(team, 1))
			return allowed(d.Allowed, err)
		},
	}, nil
}

func allowed(ok bool, err error) error {
	if err == nil && !ok {
		return errWrong
	}
	return err
}

func runReservations(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	l, err := open(server.Addr())
	if err != nil {
		return err
	}
	defer l.close()
	var redis, memory []*bench.Table
	for _, r := range rates() {
		t, err := measureActions(ctx, b, place{"reservations", "Redis", []int{1, crowd}, l.store, true}, r)
		if err != nil {
			return err
		}
		redis = append(redis, t)
		if t, err = measureActions(ctx, b, place{"reservations-memory", "memory", cores(), l.memory, false}, r); err != nil {
			return err
		}
		memory = append(memory, t)
	}
	judgeActions(b, onRedis, []int{1, crowd}, redis)
	judgeActions(b, underMemory, judged(cores()), memory)
	b.Note("An estimate is two tokens, and one or three are used in turn, so that every settlement is sent. Of two limits, " +
		"\"requests\" and \"tokens\", that of tokens is settled.")
	b.Note(fmt.Sprintf("A team has %d users: what they do at the same time burdens its key.", teamOf))
	return nil
}

// cores are the numbers of goroutines in memory: one, and one per core.
func cores() []int { return slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) }

// place is where actions are measured.
type place struct {
	id, title  string
	goroutines []int
	store      store.Buckets
	remote     bool
}

// measureActions measures all rows at a rate, in throughput on Redis and in memory alike.
func measureActions(ctx context.Context, b *bench.B, p place, rate rate) (*bench.Table, error) {
	n := manyKeys(b)
	var columns []bench.Column
	for _, g := range p.goroutines {
		columns = append(columns, bench.Column{Name: throughput(g), Unit: "1000/s", Better: bench.More})
	}
	most := p.goroutines[len(p.goroutines)-1]
	columns = append(columns, bench.Column{
		Name: perDecision, Unit: fmt.Sprintf("each, with %s", throughput(most)), Better: bench.Less, Format: "%.1f",
	})
	t := b.Table(p.id+rate.id, fmt.Sprintf("Reservations and several keys in %s: %s keys, allowed%s", p.title, count(n), rate.title), "", columns...)
	t.Reference(allowOne, allowTwo) // what the others are compared with
	all, err := actions(p.store, rate.limit)
	if err != nil {
		return nil, err
	}
	for _, g := range p.goroutines {
		var contenders []bench.Contender
		for _, row := range []string{allowOne, reserveOne, allTwo, allowTwo, reserveTwo} {
			contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				// New keys, without the debts of the measurement before.
				prefix := fmt.Sprintf("%s %d", row, time.Now().UnixNano())
				users, teams := keys(prefix, n), keys(prefix+" team", n/teamOf+1)
				perSecond, allocations, err := p.measure(ctx, b, g, func(ctx context.Context, worker, i int) error {
					user := bench.Pick(worker, i, n)
					return all[row](ctx, i, users[user], teams[user/teamOf])
				})
				if err != nil {
					return err
				}
				t.Add(row, throughput(g), perSecond/1000)
				if g == most {
					t.Add(row, perDecision, allocations)
				}
				return nil
			}})
		}
		if err := interleave(ctx, b, g, fmt.Sprintf("reservations in %s%s, %s", p.title, rate.title, throughput(g)), contenders); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// measure measures f after a warm-up. Any error ends it: of Lockkeeper alone, none is expected.
func (p place) measure(ctx context.Context, b *bench.B, g int, f func(ctx context.Context, worker, i int) error) (perSecond, allocs float64, err error) {
	if p.remote {
		bench.Load(ctx, g, b.Time(lasts/8), f)
		r := bench.Load(ctx, g, b.Time(lasts), f)
		return r.PerSecond, r.AllocsPerOp, r.Err
	}
	spin := func(d time.Duration) bench.SpinResult {
		return bench.Spin(ctx, g, d, func(worker, i int) error { return f(ctx, worker, i) })
	}
	spin(b.Time(lasts / 8))
	r := spin(b.Time(lasts))
	return 1e9 / r.NsPerCall, r.AllocsPerOp, r.Err
}

// judgeActions judges the worst of each ratio over the rates.
func judgeActions(b *bench.B, where string, goroutines []int, tables []*bench.Table) {
	for _, p := range prices() {
		for _, g := range goroutines {
			value := math.Inf(-1)
			for _, t := range tables {
				value = max(value, t.Ratio(throughput(g), p.of, p.row)) // the time is what the throughput is not
			}
			b.Measured(p.target(where, g), value)
		}
	}
}
