// Package floor measures calls of one goroutine beside the fewest round trips that they can take.
package floor

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
)

// The rows of the floor.
const (
	OnePing    = "one PING"
	TwoPings   = "two PINGs"
	OneScript  = "a script of a GET and a SET"
	TwoScripts = "two scripts of a GET and a SET each"
	// WithArguments are two scripts that get as many keys and arguments as those of a lock, of the same
	// size, and ignore all but the first key.
	WithArguments = "two such scripts, with keys and arguments of a lock"
)

// With opens n sites for fn.
func With(addr string, n int, fn func([]*Site) error) error {
	var all []*Site
	for range n {
		s, err := Open(addr)
		if err != nil {
			return err
		}
		defer s.Close()
		all = append(all, s)
	}
	return fn(all)
}

// Site is what one process has: a client, and a store on it.
type Site struct {
	Client *redis.Client
	Store  *redisstore.Store
}

// Open opens a site.
func Open(addr string) (*Site, error) {
	client := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: 250 * time.Millisecond, WriteTimeout: 250 * time.Millisecond,
	})
	store, err := redisstore.New(client)
	if err != nil {
		return nil, err
	}
	return &Site{client, store}, nil
}

// Close closes the site.
func (s *Site) Close() {
	_ = s.Store.Close()
	_ = s.Client.Close()
}

// Alone calls fn on one goroutine for the time d, and adds the cost of a call to a row. Besides
// scripts and those of every client, fn sends the commands named in also.
func (s *Site) Alone(
	ctx context.Context, t *bench.Table, row string, d time.Duration, fn func(ctx context.Context) error, also ...string,
) error {
	for range 3 { // connections and scripts
		if err := fn(ctx); err != nil {
			return err
		}
	}
	before, err := redisinfo.Read(ctx, s.Client, also...)
	if err != nil {
		return err
	}
	r := bench.Load(ctx, 1, d, func(ctx context.Context, _, _ int) error { return fn(ctx) })
	if r.Err != nil {
		return r.Err
	}
	after, err := redisinfo.Read(ctx, s.Client, also...)
	if err != nil {
		return err
	}
	t.Add(row, "p50", Micros(r.P50))
	t.Add(row, "p99", Micros(r.P99))
	t.Add(row, "allocations", r.AllocsPerOp)
	t.Add(row, "round trips", float64(after.Sub(before).Sent)/float64(r.Ops))
	return nil
}

// Rows returns the contenders of the floor, which are reference rows of t.
func (s *Site) Rows(b *bench.B, t *bench.Table, rows ...string) []bench.Contender {
	least := redis.NewScript("redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], '1', 'PX', 30000)")
	ping := func(ctx context.Context) error { return s.Client.Ping(ctx).Err() }
	script := func(ctx context.Context) error { return least.Run(ctx, s.Client, []string{"floor"}).Err() }
	twice := func(fn func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := fn(ctx); err != nil {
				return err
			}
			return fn(ctx)
		}
	}
	tag := strings.Repeat("k", 30)
	keys := []string{"floor", tag + "o", tag + "i", tag + "p", tag + "x"}
	args := []any{strings.Repeat("i", 38), 30000000, 16, strings.Repeat("h", 35), "3630001", "1:k", strings.Repeat("q", 60), "0"}
	long := func(ctx context.Context) error { return least.Run(ctx, s.Client, keys, args...).Err() }
	do := map[string]func(ctx context.Context) error{
		OnePing: ping, TwoPings: twice(ping), OneScript: script, TwoScripts: twice(script), WithArguments: twice(long),
	}
	t.Reference(rows...)
	var all []bench.Contender
	for _, row := range rows {
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			return s.Alone(ctx, t, row, b.Time(time.Second), do[row])
		}})
	}
	return all
}

// Columns are those that [Site.Alone] fills. None is marked as the best: a fresh request and a replay do not compete.
func Columns(per string) []bench.Column {
	return []bench.Column{
		{Name: "p50", Unit: "µs"},
		{Name: "p99", Unit: "µs"},
		{Name: "allocations", Unit: "per " + per},
		{Name: "round trips", Unit: "per " + per},
	}
}

// Micros returns a duration in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
