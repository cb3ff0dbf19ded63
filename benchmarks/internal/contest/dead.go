package contest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

// Queue is a Client that knows how many wait for a key.
type Queue interface {
	Client
	Waiting(ctx context.Context, key string) (int, error)
}

// dead is the number of dead waiters.
const dead = 100

// deaths are what happens to their process, by column.
var deaths = []struct {
	column string
	signal os.Signal
}{{"killed", syscall.SIGKILL}, {"stopped", syscall.SIGSTOP}}

func waitersOf(section string) string { return section + ": waiters" }

// waitIn has clients in this process wait for a key until it ends.
func waitIn(ctx context.Context, c Contender, t task, begin func() error) (any, error) {
	for range t.Goroutines {
		client, err := c.Open(t.Addr)
		if err != nil {
			return nil, err
		}
		if err := Warm(ctx, client); err != nil { // a hundred that connect at once exceed timeouts
			return nil, err
		}
		go func() { _, _ = client.Lock(ctx, t.Key) }()
	}
	if err := begin(); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, nil
}

// DeadTargets are those of [Dead] for a contender, with the most seconds behind killed waiters.
func DeadTargets(row string, killed float64) []bench.Target {
	return []bench.Target{
		{What: deadTarget("killed", row), Bound: killed, Better: bench.Less, Unit: "s"},
		{What: deadTarget("stopped", row), Bound: 3, Better: bench.Less, Unit: "s"},
	}
}

func deadTarget(death, row string) string {
	return fmt.Sprintf("a hundred waiters, %s, before a live one: %s", death, row)
}

// Dead measures how long dead waiters delay a live one. The clients of the contender are Queues.
func Dead(ctx context.Context, b *bench.B, section, addr string, c Contender) error {
	t := b.Table(section+"-dead", "A hundred dead waiters before a live one",
		"Seconds from the release to the grant of a waiter behind a hundred others, each with a client of its own, whose process was "+
			"killed, or was stopped and keeps its connections.",
		bench.Column{Name: "killed", Unit: "s", Better: bench.Less},
		bench.Column{Name: "stopped", Unit: "s", Better: bench.Less},
	)
	if err := b.Interleave(ctx, section+", dead waiters", []bench.Contender{{Row: c.Row, Run: func(ctx context.Context) error {
		for _, death := range deaths {
			took, err := delay(ctx, section, addr, c, death.signal)
			if err != nil {
				return fmt.Errorf("%s: %w", death.column, err)
			}
			t.Add(c.Row, death.column, took.Seconds())
		}
		return nil
	}}}); err != nil {
		return err
	}
	for _, death := range deaths {
		b.Measured(deadTarget(death.column, c.Row), t.Value(c.Row, death.column))
	}
	return nil
}

// delay returns the time from the release to the grant of the live waiter.
func delay(ctx context.Context, section, addr string, c Contender, signal os.Signal) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	holder, err := c.Open(addr)
	if err != nil {
		return 0, err
	}
	defer holder.Close()
	live, err := c.Open(addr)
	if err != nil {
		return 0, err
	}
	defer live.Close()
	key := rand.Text()
	held, err := holder.Lock(ctx, key)
	if err != nil {
		return 0, err
	}
	args := task{Addr: addr, Row: c.Row, Key: key, Goroutines: dead}
	err = worker.Victim(ctx, waitersOf(section), args, func(process *os.Process) error {
		if err := queued(ctx, holder, key, dead); err != nil {
			return err
		}
		type grant struct {
			at   time.Time
			held Held
			err  error
		}
		grants := make(chan grant, 1)
		go func() {
			held, err := live.Lock(ctx, key)
			grants <- grant{time.Now(), held, err}
		}()
		if err := queued(ctx, holder, key, dead+1); err != nil {
			return err
		}
		if err := process.Signal(signal); err != nil {
			return err
		}
		if signal == syscall.SIGKILL {
			if _, err := process.Wait(); err != nil {
				return err
			}
		}
		start := time.Now()
		if err := held.Unlock(ctx); err != nil {
			return err
		}
		g := <-grants
		if g.err != nil {
			return g.err
		}
		took = g.at.Sub(start)
		return g.held.Unlock(ctx)
	})
	return took, err
}

// queued waits until n wait for the key.
func queued(ctx context.Context, c Client, key string, n int) error {
	for {
		waiting, err := c.(Queue).Waiting(ctx, key)
		if err != nil || waiting >= n {
			return err
		}
		Rest(5 * time.Millisecond)
	}
}
