package locks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// The reference rows of a hand-off.
const (
	ping       = "PING, one after the other"
	pingRested = "PING, after 1 ms of rest"
)

// remote measures the hand-off of a lock between two clients, which share only the Redis, with one
// goroutine each.
func remote(ctx context.Context, b *bench.B, addr string) error {
	t := b.Table("locks-remote", "A lock goes from one client to another",
		"Two clients share a lock and keep it for 1 ms each. A PING is one round trip; like a hand-off, it takes longer on a machine "+
			"that was idle. Lockkeeper's hand-off takes two: an unlock reserves the lock for the next waiter and sends a push, and the "+
			"waiter claims it, so that a lost push does not lose the lock.",
		bench.Column{Name: "p50", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "handed on", Unit: "% of acquisitions", Better: bench.More},
	)
	t.Reference(ping, pingRested)
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	pings := func(row string, idle time.Duration) bench.Contender {
		return bench.Contender{Row: row, Run: func(ctx context.Context) error {
			if err := client.Ping(ctx).Err(); err != nil {
				return err
			}
			var took []int64
			for end := time.Now().Add(b.Time(time.Second)); time.Now().Before(end); {
				rest(idle)
				start := time.Now()
				if err := client.Ping(ctx).Err(); err != nil {
					return err
				}
				took = append(took, int64(time.Since(start)))
			}
			t.Add(row, "p50", percentile(took, 0.50)/1e3)
			t.Add(row, "p99", percentile(took, 0.99)/1e3)
			return nil
		}}
	}
	contenders := []bench.Contender{pings(ping, 0), pings(pingRested, held)}
	for _, c := range Contenders() {
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			clients := make([]Client, 2)
			for i := range clients {
				var err error
				if clients[i], err = c.Open(addr); err != nil {
					return err
				}
				defer clients[i].Close()
				if err := warm(ctx, clients[i]); err != nil {
					return err
				}
			}
			d := b.Time(time.Second)
			r := judge([]record{contest(ctx, clients, 1, 0, held, d)}, len(clients), d)
			t.Add(c.Row, "p50", r.handOffP50)
			t.Add(c.Row, "p99", r.handOffP99)
			t.Add(c.Row, "handed on", 100*r.handOffShare)
			return nil
		}})
	}
	contenders = slices.DeleteFunc(contenders, func(c bench.Contender) bool {
		return c.Row == "redsync" // the figure would only be its poll interval of 50 to 250 ms
	})
	if err := b.Interleave(ctx, "locks, from one client to another", contenders); err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	t.Chart("A lock goes from one client to another", "p50", "p99")
	if v, ok := ratio(t, "p50", "Lockkeeper", pingRested); ok {
		b.Target(bench.Target{What: "lock, from one client to another: p50 against a PING after the same rest", Value: v,
			AtLeast: 1.3, Reach: 1.1, Better: bench.Less, Unit: "x"})
	}
	return nil
}
