// Package once measures semaphores and idempotency against the fewest round trips that either can
// do with.
package once

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
)

// The floors.
const (
	onePing    = "one PING"
	twoPings   = "two PINGs (the floor)"
	twoScripts = "two scripts, of a GET and a SET each"
)

// Sections are the comparison of semaphores and idempotency.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "once",
		Title: "Semaphores and idempotency",
		About: "Measured against the floor, as there is no Go library to compare with that keeps leased permits, or records that " +
			"outlive the lease of an attempt, on Redis: a permit or a fresh request cannot take less than two round trips, and a " +
			"replay not less than one. Round trips are commands that the client has sent, " +
			"as the server has counted them.",
		Full: 75 * time.Second,
		Run:  run,
	}}
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	err = with(server.Addr(), 1, func(s []*site) error {
		if err := permits(ctx, b, s[0]); err != nil {
			return err
		}
		return crowds(ctx, b, s[0])
	})
	if err != nil {
		return err
	}
	// Other processes than those of permits, whose subscriptions are asked every few seconds whether they are
	// alive: that is no round trip of a request.
	return with(server.Addr(), 2, func(s []*site) error {
		if err := requests(ctx, b, s[0]); err != nil {
			return err
		}
		if err := handlers(ctx, b, s[0]); err != nil {
			return err
		}
		return storms(ctx, b, s)
	})
}

// with has fn use so many sites.
func with(addr string, n int, fn func([]*site) error) error {
	var all []*site
	for range n {
		s, err := open(addr)
		if err != nil {
			return err
		}
		defer s.close()
		all = append(all, s)
	}
	return fn(all)
}

// site is what one process has: a client, and a store on it.
type site struct {
	client *redis.Client
	store  *redisstore.Store
}

func open(addr string) (*site, error) {
	client := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: 250 * time.Millisecond, WriteTimeout: 250 * time.Millisecond,
	})
	store, err := redisstore.New(client)
	if err != nil {
		return nil, err
	}
	return &site{client, store}, nil
}

func (s *site) close() {
	_ = s.store.Close()
	_ = s.client.Close()
}

// alone has one goroutine call fn for the time d, and adds what that took to a row.
func (s *site) alone(ctx context.Context, t *bench.Table, row string, d time.Duration, fn func(ctx context.Context) error) error {
	for range 3 { // connections and scripts
		if err := fn(ctx); err != nil {
			return err
		}
	}
	before, err := redisinfo.Read(ctx, s.client)
	if err != nil {
		return err
	}
	r := bench.Load(ctx, 1, d, func(ctx context.Context, _, _ int) error { return fn(ctx) })
	if r.Err != nil {
		return r.Err
	}
	after, err := redisinfo.Read(ctx, s.client)
	if err != nil {
		return err
	}
	add(t, row, "p50", micros(r.P50))
	add(t, row, "p99", micros(r.P99))
	add(t, row, "allocations", r.AllocsPerOp)
	add(t, row, "round trips", float64(after.Sub(before).Sent)/float64(r.Ops))
	return nil
}

// floor is the contenders that the others are measured against.
func (s *site) floor(b *bench.B, t *bench.Table, rows ...string) []bench.Contender {
	least := redis.NewScript("redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], '1', 'PX', 30000)")
	ping := func(ctx context.Context) error { return s.client.Ping(ctx).Err() }
	script := func(ctx context.Context) error { return least.Run(ctx, s.client, []string{"floor"}).Err() }
	twice := func(fn func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := fn(ctx); err != nil {
				return err
			}
			return fn(ctx)
		}
	}
	do := map[string]func(ctx context.Context) error{onePing: ping, twoPings: twice(ping), twoScripts: twice(script)}
	t.Reference(rows...)
	var all []bench.Contender
	for _, row := range rows {
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			return s.alone(ctx, t, row, b.Time(time.Second), do[row])
		}})
	}
	return all
}

// latency is the columns that alone fills. None is marked as the best: a fresh request and a replay
// do not compete.
func latency(per string) []bench.Column {
	return []bench.Column{
		{Name: "p50", Unit: "µs"},
		{Name: "p99", Unit: "µs"},
		{Name: "allocations", Unit: "per " + per},
		{Name: "round trips", Unit: "per " + per},
	}
}

// add adds a value, unless there was nothing to measure.
func add(t *bench.Table, row, column string, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		t.Add(row, column, value)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// percentile sorts the values and returns the one that the share p of them does not exceed.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[max(int(math.Ceil(p*float64(len(values))))-1, 0)]
}
