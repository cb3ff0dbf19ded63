package locks

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

// The reference rows of a hand-off.
const (
	ping       = "PING, one after the other"
	pingRested = "PING, after 1 ms of rest"
	pushRested = "a script with a PUBLISH, to its message, after 1 ms of rest"
)

// remote measures the hand-off of a lock between two clients, which share only the Redis, with one
// goroutine each.
func remote(ctx context.Context, b *bench.B, s *floor.Site, addr string) error {
	t := b.Table("locks-remote", "A lock goes from one client to another",
		"Two clients share a lock and keep it for 1 ms each. A PING is one round trip; like a hand-off, it takes longer on a machine "+
			"that was idle. Lockkeeper's hand-off takes one: an unlock grants the lock to the next waiter, and a push tells it. Its floor is a "+
			"script of a GET, a SET and a PUBLISH, from before the call to the receipt by another client.",
		handOff()...)
	t.Reference(ping, pingRested, pushRested)
	reference := func(row string, idle time.Duration, call func(context.Context) error) bench.Contender {
		return bench.Contender{Row: row, Run: func(ctx context.Context) error {
			if err := call(ctx); err != nil {
				return err
			}
			var took []time.Duration
			for end := time.Now().Add(b.Time(time.Second)); time.Now().Before(end); {
				contest.Rest(idle)
				start := time.Now()
				if err := call(ctx); err != nil {
					return err
				}
				took = append(took, time.Since(start))
			}
			t.Add(row, "hand-off p50", bench.Percentile(took, 0.50)/1e3)
			t.Add(row, "hand-off p99", bench.Percentile(took, 0.99)/1e3)
			return nil
		}}
	}
	pinged := func(ctx context.Context) error { return s.Client.Ping(ctx).Err() }
	pushed, stop, err := pushes(ctx, s.Client, addr)
	if err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	defer stop()
	contenders := []bench.Contender{reference(ping, 0, pinged), reference(pingRested, held, pinged), reference(pushRested, held, pushed)}
	for _, c := range Contenders() {
		if c.Row == "redsync" { // the figure would only be its poll interval of 50 to 250 ms
			continue
		}
		clients := make([]contest.Client, 2) // opened once: see uncontended
		for i := range clients {
			if clients[i], err = c.Open(addr); err != nil {
				return err
			}
			defer clients[i].Close()
			if err := contest.Warm(ctx, clients[i]); err != nil {
				return err
			}
		}
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			d := b.Time(time.Second)
			records := []contest.Record{contest.Run(ctx, clients, 1, 0, held, d)}
			addHandOff(t, c.Row, contest.Judge(records, len(clients), 1, d))
			return nil
		}})
	}
	if err := b.InterleaveFinely(ctx, "locks, from one client to another", bench.PartsOfWaits, contenders); err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	t.Chart("A lock goes from one client to another", "hand-off p50", "hand-off p99")
	b.Measured(remoteToPing, t.Ratio("hand-off p50", ours, pingRested))
	b.Measured(remoteToPolling, t.Ratio("hand-off p50", ours, polling))
	return nil
}

// pushes returns a call of a script that publishes, which ends when another client has the message.
func pushes(ctx context.Context, from *redis.Client, addr string) (call func(context.Context) error, stop func(), err error) {
	const channel = "floor"
	to := redis.NewClient(&redis.Options{Addr: addr})
	messages := to.Subscribe(ctx, channel)
	stop = func() {
		_ = messages.Close()
		_ = to.Close()
	}
	if _, err := messages.Receive(ctx); err != nil { // it is subscribed
		stop()
		return nil, nil, err
	}
	script := redis.NewScript("redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], '1', 'PX', 30000) return redis.call('PUBLISH', ARGV[1], '1')")
	replies := make(chan error, 1)
	replies <- nil
	return func(ctx context.Context) error {
		if err := <-replies; err != nil { // of the call before
			return err
		}
		go func() { replies <- script.Run(ctx, from, []string{"pushes"}, channel).Err() }()
		_, err := messages.ReceiveMessage(ctx)
		return err
	}, stop, nil
}
