package coordination

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

// deadWaiters is the number of waiters that die with their holder.
const deadWaiters = 10

const (
	holderOnly  = "holder"
	withWaiters = "holder and waiters"
)

const victimJob = section + ": victim"

// task is the work of a process that is killed: one client holds the key, and others wait for it.
type task struct {
	Addr, Row, Key string
	Waiters        int
	Lease          time.Duration
}

func victim() worker.Job {
	return worker.Job{Name: victimJob, Run: func(ctx context.Context, args []byte, begin func() error) (any, error) {
		var t task
		if err := json.Unmarshal(args, &t); err != nil {
			return nil, err
		}
		c, err := t.contender()
		if err != nil {
			return nil, err
		}
		for i := range 1 + t.Waiters {
			client, err := c.Open(t.Addr)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				go func() { _, _ = client.Lock(ctx, t.Key) }()
			} else if _, err := client.Lock(ctx, t.Key); err != nil {
				return nil, err
			}
		}
		if err := begin(); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, nil
	}}
}

func (t task) contender() (contender, error) {
	for _, c := range leased(leases{t.Lease, t.Lease}) {
		if c.Row == t.Row {
			return c, nil
		}
	}
	return contender{}, fmt.Errorf("no contender %q", t.Row)
}

// dead measures for how long a process that is killed keeps others waiting.
func dead(ctx context.Context, b *bench.B, y *yard) error {
	// All at the same time: they only wait.
	lease, columns := deadLease, map[string]int{holderOnly: 0, withWaiters: deadWaiters}
	if b.Setting() == bench.Tiny {
		lease, columns = time.Second, map[string]int{holderOnly: 0} // a place on etcd lasts for 5 s
	}
	t := b.Table("coordination-dead", "etcd and ZooKeeper: a killed process before a live waiter",
		fmt.Sprintf("Seconds from the kill of a process to the grant of a live waiter. The process has the holder of the lock, and %d waiters as well in the "+
			"second column, each with a client of its own. Leases and sessions are of %v.", deadWaiters, lease),
		bench.Column{Name: holderOnly, Unit: "s", Better: bench.Less},
		bench.Column{Name: withWaiters, Unit: "s", Better: bench.Less},
	)
	var rows []string
	for _, c := range has(y, contenders()) {
		rows = append(rows, c.Row)
	}
	t.Order(rows...)
	if err := b.Interleave(ctx, "etcd and ZooKeeper, killed processes", []bench.Contender{{Row: "all", Run: func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, c := range has(y, contenders()) {
			for column, n := range columns {
				group.Go(func() error {
					took, err := orphaned(ctx, task{Addr: y.addr(c.server), Row: c.Row, Key: rand.Text(), Waiters: n, Lease: lease})
					if err != nil {
						return peerOf(ctx, b, c.Row, "killed processes", err)
					}
					t.Add(c.Row, column, took.Seconds())
					return nil
				})
			}
		}
		return group.Wait()
	}}}); err != nil {
		return err
	}
	for _, p := range has(y, pairs()) {
		b.Measured(p.holder, t.Value(p.ours, holderOnly)/lease.Seconds())
		b.Measured(p.behindDeadQueues, t.Value(p.ours, withWaiters)/lease.Seconds())
	}
	return nil
}

// orphaned returns the time from the kill of a process to the grant of a live waiter.
func orphaned(ctx context.Context, t task) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.Lease+30*time.Second)
	defer cancel()
	c, err := t.contender()
	if err != nil {
		return 0, err
	}
	live, err := c.Open(t.Addr)
	if err != nil {
		return 0, err
	}
	defer live.Close()
	if err := contest.Warm(ctx, live); err != nil {
		return 0, err
	}
	err = worker.Victim(ctx, victimJob, t, func(process *os.Process) error {
		if err := queued(ctx, live, t.Key, t.Waiters); err != nil {
			return err
		}
		type grant struct {
			at   time.Time
			held contest.Held
			err  error
		}
		grants := make(chan grant, 1)
		go func() {
			held, err := live.Lock(ctx, t.Key)
			grants <- grant{time.Now(), held, err}
		}()
		if err := queued(ctx, live, t.Key, t.Waiters+1); err != nil {
			return err
		}
		contest.Rest(t.Lease / 5) // the hold has been renewed once
		if err := process.Kill(); err != nil {
			return err
		}
		start := time.Now()
		select {
		case g := <-grants:
			if g.err != nil {
				return g.err
			}
			took = g.at.Sub(start)
			return g.held.Unlock(ctx)
		case <-ctx.Done(): // which not every contender knows
			return context.Cause(ctx)
		}
	})
	return took, err
}

// queued waits until n wait for the key.
func queued(ctx context.Context, c contest.Client, key string, n int) error {
	for {
		waiting, err := c.(contest.Queue).Waiting(ctx, key)
		if err != nil || waiting >= n {
			return err
		}
		contest.Rest(20 * time.Millisecond)
	}
}
