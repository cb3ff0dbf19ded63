package scaling

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
)

const heartbeats = "heartbeats of 10,000 waited-for locks: server CPU per waiting process"

func targets() []bench.Target {
	return []bench.Target{{What: heartbeats, Bound: 6.4, Better: bench.Less, Unit: "% of a core",
		Floor: "renewals of the same locks without waiters take 4.5 and 7.1 % on A and B: 5.8; × 1.1, since a Cluster's slots need a sign of life of each key as well " +
			"(3 commands, 4.5 µs), and each renewal takes longer beside waiters"}}
}

// beating is how long heartbeats of n waiters are measured: one comes every second, or, of 10,000,
// every 5 s.
func beating(n int) time.Duration {
	return min(max(1500*time.Millisecond, time.Duration(n)*time.Second/2000), 5*time.Second)
}

// tables are those of held locks, and of held locks with waiters.
type tables struct{ held, awaited *bench.Table }

// held measures many held locks and then, with Lockkeeper, a waiter on another client for each of
// them.
func (y *yard) held(ctx context.Context, b *bench.B) error {
	note := fmt.Sprintf("Lockkeeper renews leases of %v every %v; rueidislock leases of 5 s every 2.5 s; the others do not renew. "+
		"64 goroutines lock and unlock.", ttl(b.Setting()), ttl(b.Setting())/3)
	t := tables{
		held: b.Table("scaling-held", "Held locks", note,
			bench.Column{Name: "lock", Unit: "µs each"},
			bench.Column{Name: "memory", Unit: "B each"},
			bench.Column{Name: "Redis memory", Unit: "B each"},
			bench.Column{Name: "commands while held", Unit: "per s"},
			bench.Column{Name: "Redis CPU while held", Unit: "%"},
			bench.Column{Name: "unlock", Unit: "µs each"},
			bench.Column{Name: "lost", Unit: "locks"},
		),
		awaited: b.Table("scaling-awaited", "Held locks with a waiter each, on another client",
			fmt.Sprintf("Waiters start in groups of %d; then the locks are released, 64 at a time, and each waiter acquires and "+
				"releases its lock. The cost of heartbeats is the CPU while waiting without that of the same locks while held.", together),
			bench.Column{Name: "to wait", Unit: "µs each"},
			bench.Column{Name: "memory", Unit: "B each"},
			bench.Column{Name: "Redis memory", Unit: "B each"},
			bench.Column{Name: "commands while waiting", Unit: "per s"},
			bench.Column{Name: "Redis CPU while waiting", Unit: "%"},
			bench.Column{Name: "heartbeats", Unit: "% of a core"},
			bench.Column{Name: "changes hands", Unit: "µs each"},
			bench.Column{Name: "failed", Unit: "waiters"},
		),
	}
	var (
		all     []bench.Contender
		remarks = make(bench.Remarks)
	)
	for _, n := range sizes(b.Setting()) {
		for _, c := range contenders(b.Setting(), 1_000, "redislock, polling every 100 ms", "rueidislock") {
			if n > c.most {
				continue
			}
			name := row(c.Row, n)
			all = append(all, bench.Contender{Row: name, Run: sparing(n, func(ctx context.Context) error {
				remark, err := y.keep(ctx, b, t, name, c, n)
				if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // this size takes too long: continue with the others
					remark, err = fmt.Sprintf("not completed within %v", atMost), nil
				}
				if remark != "" {
					remarks[name] = remark
				}
				return err
			})})
		}
	}
	if err := b.Interleave(ctx, "scaling, held locks", all); err != nil {
		return err
	}
	remarks.Note(b, "held locks", all)
	b.Measured(heartbeats, t.awaited.Value(row("Lockkeeper", 10_000), "heartbeats"))
	return nil
}

// keep acquires n locks, holds them for a while, adds waiters, and releases them. It returns a note
// on failures.
func (y *yard) keep(ctx context.Context, b *bench.B, t tables, name string, c contender, n int) (remark string, err error) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if err := y.server.Flush(ctx); err != nil {
		return "", err
	}
	client, err := c.Open(y.addr)
	if err != nil {
		return "", err
	}
	defer client.Close()
	held := make([]contest.Held, n)
	key := func(i int) string { return "key-" + strconv.Itoa(i) }
	if held[0], err = client.Lock(ctx, key(0)); err != nil { // connects
		return "", err
	}
	before, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return "", err
	}
	empty, start := memory(), time.Now()
	if err := each(n-1, func(i int) error {
		var err error
		held[i+1], err = client.Lock(ctx, key(i+1))
		return err
	}); err != nil {
		cancel()
		for _, h := range held {
			if h != nil {
				_ = h.Unlock(context.WithoutCancel(ctx))
			}
		}
		return fmt.Sprintf("not all locks were acquired: %v", err), nil
	}
	t.held.Add(name, "lock", micros(time.Since(start), n-1))
	after, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return "", err
	}
	if n >= few {
		t.held.Add(name, "memory", float64(memory()-empty)/float64(n))
		t.held.Add(name, "Redis memory", float64(after.Sub(before).Memory)/float64(n))
	}
	perSecond, cpu, err := y.load(ctx, watched(b.Setting()), c.Sends)
	if err != nil {
		return "", err
	}
	t.held.Add(name, "commands while held", perSecond)
	t.held.Add(name, "Redis CPU while held", cpu)
	var lost atomic.Int64
	unlock := func(i int) error {
		if held[i].Unlock(ctx) != nil { // the lock was lost
			lost.Add(1)
		}
		return nil
	}
	if c.Row == "Lockkeeper" {
		remark, err = y.await(ctx, b, t.awaited, name, c, n, cpu, key, unlock)
	} else {
		start = time.Now()
		err = each(n, unlock)
		t.held.Add(name, "unlock", micros(time.Since(start), n))
	}
	t.held.Add(name, "lost", float64(lost.Load()))
	return remark, err
}

// await starts a waiter for each of n locks on a client of their own, and then releases the locks.
// Their renewals take the server so many percent of a core.
func (y *yard) await(
	ctx context.Context, b *bench.B, t *bench.Table, name string, c contender, n int, renewals float64, key func(int) string,
	unlock func(int) error,
) (remark string, err error) {
	client, err := c.Open(y.addr)
	if err != nil {
		return "", err
	}
	defer client.Close()
	before, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return "", err
	}
	var (
		running sync.WaitGroup
		failed  atomic.Int64
		failure atomic.Pointer[error]
		empty   = memory()
		start   = time.Now()
	)
	for i := range n {
		running.Go(func() {
			held, err := client.Lock(ctx, key(i))
			if err == nil {
				err = held.Unlock(ctx)
			}
			if err != nil {
				failed.Add(1)
				failure.Store(&err)
			}
		})
		if i%together == together-1 {
			settle(ctx, 50*time.Millisecond)
		}
	}
	settle(ctx, 10*time.Second)
	queued := time.Since(start)
	after, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return "", err
	}
	if n >= few {
		t.Add(name, "to wait", micros(queued, n))
		t.Add(name, "memory", float64(memory()-empty)/float64(n))
		t.Add(name, "Redis memory", float64(after.Sub(before).Memory)/float64(n))
	}
	perSecond, cpu, err := y.load(ctx, b.Time(beating(n)), c.Sends)
	if err != nil {
		return "", err
	}
	t.Add(name, "commands while waiting", perSecond)
	t.Add(name, "Redis CPU while waiting", cpu)
	t.Add(name, "heartbeats", cpu-renewals)
	start = time.Now()
	if err := each(n, unlock); err != nil {
		return "", fmt.Errorf("unlocking: %w", err)
	}
	running.Wait()
	t.Add(name, "changes hands", micros(time.Since(start), n))
	t.Add(name, "failed", float64(failed.Load()))
	if err := failure.Load(); err != nil {
		remark = fmt.Sprintf("%d of the waiters failed: %v", failed.Load(), *err)
	}
	return remark, nil
}
