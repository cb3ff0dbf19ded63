package locks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

// The reference rows of a hand-off.
const (
	ping       = "PING, one after the other"
	pingRested = "PING, after 1 ms of rest"
)

// remote measures the hand-off of a lock between two clients, which share only the Redis, with one
// goroutine each.
func remote(ctx context.Context, b *bench.B, s *floor.Site, addr string) error {
	t := b.Table("locks-remote", "A lock goes from one client to another",
		"Two clients share a lock and keep it for 1 ms each. A PING is one round trip; like a hand-off, it takes longer on a machine "+
			"that was idle. Lockkeeper's hand-off takes one: an unlock grants the lock to the next waiter, and a push tells it.",
		handOff()...)
	t.Reference(ping, pingRested)
	pings := func(row string, idle time.Duration) bench.Contender {
		return bench.Contender{Row: row, Run: func(ctx context.Context) error {
			if err := s.Client.Ping(ctx).Err(); err != nil {
				return err
			}
			var took []time.Duration
			for end := time.Now().Add(b.Time(time.Second)); time.Now().Before(end); {
				contest.Rest(idle)
				start := time.Now()
				if err := s.Client.Ping(ctx).Err(); err != nil {
					return err
				}
				took = append(took, time.Since(start))
			}
			t.Add(row, "hand-off p50", bench.Percentile(took, 0.50)/1e3)
			t.Add(row, "hand-off p99", bench.Percentile(took, 0.99)/1e3)
			return nil
		}}
	}
	contenders := []bench.Contender{pings(ping, 0), pings(pingRested, held)}
	for _, c := range Contenders() {
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			clients := make([]contest.Client, 2)
			for i := range clients {
				var err error
				if clients[i], err = c.Open(addr); err != nil {
					return err
				}
				defer clients[i].Close()
				if err := contest.Warm(ctx, clients[i]); err != nil {
					return err
				}
			}
			d := b.Time(time.Second)
			records := []contest.Record{contest.Run(ctx, clients, 1, 0, held, d)}
			addHandOff(t, c.Row, contest.Judge(records, len(clients), 1, d))
			return nil
		}})
	}
	contenders = slices.DeleteFunc(contenders, func(c bench.Contender) bool {
		return c.Row == "redsync" // the figure would only be its poll interval of 50 to 250 ms
	})
	if err := b.Interleave(ctx, "locks, from one client to another", contenders); err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	t.Chart("A lock goes from one client to another", "hand-off p50", "hand-off p99")
	const what = "lock, from one client to another: p50 against "
	b.Target(bench.Target{What: what + "a PING after the same rest", Value: t.Ratio("hand-off p50", ours, pingRested),
		AtLeast: 2.3, Reach: 1.8, Better: bench.Less, Unit: "x"})
	b.Target(bench.Target{What: what + polling, Value: t.Ratio("hand-off p50", ours, polling),
		AtLeast: 1, Reach: 0.8, Better: bench.Less, Unit: "x"})
	return nil
}
