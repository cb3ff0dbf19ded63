// Package scaling measures the cost of many waiters, held locks and live keys.
package scaling

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// Sections are the measurements of scaling.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "scaling",
		Title: "Scaling",
		About: "The cost of one more waiter for a lock, one more held or awaited lock, and one more limited key, from ten to a hundred thousand; " +
			"peers end at a size, and a hundred thousand run in one round only. Memory is heap and stacks after a garbage collection; commands " +
			"include renewals and heartbeats.",
		Full:    280 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	y := &yard{server: server, addr: server.Addr(), observer: redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})}
	defer func() { _ = y.observer.Close() }()
	if err := y.waiters(ctx, b); err != nil {
		return err
	}
	if err := y.held(ctx, b); err != nil {
		return err
	}
	if err := y.buckets(ctx, b); err != nil {
		return err
	}
	b.Note(locks.Options)
	return nil
}

// yard is the Redis of all measurements.
type yard struct {
	server   *redisserver.Server
	addr     string
	observer *redis.Client
}

// sizes are the numbers of waiters, locks or keys.
func sizes(s bench.Setting) []int {
	if s == bench.Full {
		return []int{10, 1_000, 10_000, 100_000}
	}
	return []int{10, 1_000}
}

// atMost bounds one measurement: calls that still wait then end with an error.
const atMost = 20 * time.Second

// vast is a size that is measured in the first round only, since it takes long.
const vast = 100_000

// sparing returns run for a size; it skips the later rounds of a vast one.
func sparing(n int, run func(ctx context.Context) error) func(ctx context.Context) error {
	ran := false
	return func(ctx context.Context) error {
		if ran && n >= vast {
			return nil
		}
		ran = true
		return run(ctx)
	}
}

// few is the size from which on memory is more than noise.
const few = 1_000

// ttl is the lease of locks: a third of it, the interval of renewals, has to fit into a measurement.
func ttl(s bench.Setting) time.Duration {
	if s == bench.Full {
		return 6 * time.Second
	}
	return 600 * time.Millisecond
}

// watched is how long only renewals and heartbeats are measured.
func watched(s bench.Setting) time.Duration { return ttl(s)/3 + ttl(s)/10 }

// contender is Lockkeeper or a peer, and the largest size that it is measured at.
type contender struct {
	contest.Contender
	most int
}

// contenders are Lockkeeper and the peers of these rows.
func contenders(s bench.Setting, most int, rows ...string) []contender {
	all := []contender{{contest.Contender{Row: "Lockkeeper", Open: locks.Lockkeeper(lock.WithTTL(ttl(s)))}, math.MaxInt}}
	for _, c := range locks.Contenders() {
		for _, row := range rows {
			if c.Row == row {
				all = append(all, contender{c, most})
			}
		}
	}
	return all
}

// row names a size of a contender.
func row(name string, n int) string { return name + ", " + thousands(n) }

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// load measures an otherwise idle Redis for the time d: the commands per second that it gets, and its share of a processor.
func (y *yard) load(ctx context.Context, d time.Duration, sends []string) (perSecond, cpu float64, err error) {
	before, err := redisinfo.Read(ctx, y.observer, sends...)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	<-time.After(d)
	after, err := redisinfo.Read(ctx, y.observer, sends...)
	if err != nil {
		return 0, 0, err
	}
	r, elapsed := after.Sub(before), time.Since(start)
	return float64(r.Sent) / elapsed.Seconds(), 100 * r.CPU.Seconds() / elapsed.Seconds(), nil
}

// each calls fn for 0 to n-1, up to 64 at a time, and returns the first error.
func each(n int, fn func(i int) error) error {
	var (
		next    atomic.Int64
		failure atomic.Pointer[error]
		running sync.WaitGroup
	)
	for range 64 {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failure.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	running.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

// memory returns the size of heap and stacks after a garbage collection.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}

// together is the size of a group of waiters that start at once: calls of a larger one would exceed the store's timeout.
const together = 250

// settle blocks until all goroutines but the caller are blocked, or until a time is over.
func settle(ctx context.Context, atMost time.Duration) {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end, quiet := time.Now().Add(atMost), 0; quiet < 5 && time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(sample)
		if sample[0].Value.Uint64() == 0 && sample[1].Value.Uint64() <= 1 {
			quiet++
		} else {
			quiet = 0
		}
	}
}

// micros returns the microseconds of each of n.
func micros(d time.Duration, n int) float64 {
	return float64(d) / float64(time.Microsecond) / float64(n)
}
