package coordination

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// heldFor is the lease of many locks: a third of it is the interval of their renewals. A session of
// ZooKeeper is a fourth longer.
const heldFor = 6 * time.Second

// counters are the names of what servers count: requests of all kinds, and watches.
var counters = map[kind]struct{ requests, watches string }{
	etcd:      {`grpc_server_msg_received_total{`, "etcd_debugging_mvcc_watcher_total"},
	zooKeeper: {"zk_packets_received", "zk_watch_count"},
}

// keepAlive is the beginning of the name of the counter of etcd's keep-alives.
const keepAlive = `grpc_server_msg_received_total{grpc_method="LeaseKeepAlive"`

// sites are Lockkeeper's contenders, each with one process.
func sites(y *yard) (all []contender) {
	for _, c := range has(y, leased(leases{ttl: heldFor, session: heldFor * 5 / 4})) {
		if c.Row == lockkeeperEtcd || c.Row == lockkeeperZK {
			all = append(all, c)
		}
	}
	return all
}

// held measures what a process sends that holds many locks.
func held(ctx context.Context, b *bench.B, y *yard) error {
	n := b.Count(10_000)
	idle, during := 7*time.Second, heldFor // until nothing is on the lease of waiters, and for three renewals of each
	if b.Setting() == bench.Tiny {
		idle, during = 100*time.Millisecond, 500*time.Millisecond
	}
	t := b.Table("coordination-held", fmt.Sprintf("etcd and ZooKeeper: %d locks of one process", n),
		fmt.Sprintf("Leases of %v, renewed every %v. Locks are taken and released by 64 goroutines. ZooKeeper does not count keep-alives apart. Measured once.",
			heldFor, heldFor/3),
		bench.Column{Name: "lock", Unit: "µs each"},
		bench.Column{Name: "keep-alives", Unit: "per s"},
		bench.Column{Name: "requests", Unit: "per s"},
		bench.Column{Name: "unlock", Unit: "µs each"},
		bench.Column{Name: "lost", Unit: "locks"},
	)
	var all []bench.Contender
	for _, c := range sites(y) {
		all = append(all, bench.Contender{Row: c.Row, Run: once(func(ctx context.Context) error {
			client, err := c.Open(y.addr(c.server))
			if err != nil {
				return err
			}
			defer client.Close()
			if err := contest.Warm(ctx, client); err != nil {
				return err
			}
			holds := make([]*lock.Lease, n)
			start := time.Now()
			if err := each(n, func(i int) (err error) {
				holds[i], err = client.(*site).locker.Lock(ctx, "key-"+strconv.Itoa(i))
				return err
			}); err != nil {
				return err
			}
			t.Add(c.Row, "lock", micros(time.Since(start))/float64(n))
			contest.Rest(idle)
			s := y.servers[c.server]
			count := func(prefix string) (float64, error) { return s.Counter(ctx, prefix) }
			columns := map[string]string{"requests": counters[c.server].requests}
			if c.server == etcd {
				columns["keep-alives"] = keepAlive
			}
			before := make(map[string]float64)
			for column, prefix := range columns {
				if before[column], err = count(prefix); err != nil {
					return err
				}
			}
			start = time.Now()
			contest.Rest(during)
			took := time.Since(start).Seconds()
			for column, prefix := range columns {
				now, err := count(prefix)
				if err != nil {
					return err
				}
				t.Add(c.Row, column, (now-before[column])/took)
			}
			lost := 0
			for _, l := range holds {
				if l.Context().Err() != nil {
					lost++
				}
			}
			t.Add(c.Row, "lost", float64(lost))
			start = time.Now()
			err = each(n, func(i int) error {
				if err := holds[i].Unlock(ctx); err != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrExpired) {
					return err
				}
				return nil
			})
			t.Add(c.Row, "unlock", micros(time.Since(start))/float64(n))
			return err
		})})
	}
	if err := b.Interleave(ctx, "etcd and ZooKeeper, many locks", all); err != nil {
		return err
	}
	if y.servers[etcd] != nil {
		// Rounded, since the time of seven keep-alives may be a little less than seven seconds.
		b.Measured(keepAlives, math.Round(t.Value(lockkeeperEtcd, "keep-alives")))
	}
	return nil
}

// waiting measures the watches of a process many of whose goroutines wait for one lock, or for one
// semaphore.
func waiting(ctx context.Context, b *bench.B, y *yard) error {
	n := b.Count(10_000)
	t := b.Table("coordination-waiting", fmt.Sprintf("etcd and ZooKeeper: %d waiters of one process", n),
		"Watches that the server has more of while a process waits for a key that another one holds: a lock, or a semaphore of 16, which gives a "+
			"process 16 places in its queue. Measured once.",
		bench.Column{Name: "lock", Unit: "watches"},
		bench.Column{Name: "semaphore", Unit: "watches"},
	)
	var all []bench.Contender
	for _, c := range sites(y) {
		all = append(all, bench.Contender{Row: c.Row, Run: once(func(ctx context.Context) error {
			holder, err := c.Open(y.addr(c.server))
			if err != nil {
				return err
			}
			defer holder.Close()
			waiter, err := c.Open(y.addr(c.server))
			if err != nil {
				return err
			}
			defer waiter.Close()
			for _, client := range []contest.Client{holder, waiter} {
				if err := contest.Warm(ctx, client); err != nil {
					return err
				}
			}
			for column, open := range map[string]func(*site) (acquire, error){"lock": ofLocks, "semaphore": ofSemaphores} {
				watches, err := watchesOf(ctx, y, c, n, holder.(*site), waiter.(*site), open)
				if err != nil {
					return err
				}
				t.Add(c.Row, column, watches)
			}
			return nil
		})})
	}
	if err := b.Interleave(ctx, "etcd and ZooKeeper, many waiters", all); err != nil {
		return err
	}
	for _, p := range has(y, pairs()) {
		b.Measured(p.watches, t.Value(p.ours, "lock"))
	}
	return nil
}

// acquire acquires all that there is of a key, or a part of it, and returns what releases it.
type acquire func(ctx context.Context, key string, whole bool) (release func(context.Context) error, err error)

func ofLocks(s *site) (acquire, error) {
	return func(ctx context.Context, key string, _ bool) (func(context.Context) error, error) {
		lease, err := s.locker.Lock(ctx, key)
		if err != nil {
			return nil, err
		}
		return lease.Unlock, nil
	}, nil
}

func ofSemaphores(s *site) (acquire, error) {
	const capacity = 16
	permits, err := semaphore.New(s.store, "bench", capacity, semaphore.WithLogger(quiet), semaphore.WithTTL(heldFor), semaphore.WithMaxWaiting(1<<20))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string, whole bool) (func(context.Context) error, error) {
		weight := 1
		if whole {
			weight = capacity
		}
		permit, err := permits.AcquireN(ctx, key, weight)
		if err != nil {
			return nil, err
		}
		return permit.Release, nil
	}, nil
}

// watchesOf returns how many more watches a server has while n goroutines of a site wait.
func watchesOf(ctx context.Context, y *yard, c contender, n int, holder, waiter *site, open func(*site) (acquire, error)) (float64, error) {
	const key = "waited for"
	take, err := open(holder)
	if err != nil {
		return 0, err
	}
	wait, err := open(waiter)
	if err != nil {
		return 0, err
	}
	release, err := take(ctx, key, true)
	if err != nil {
		return 0, err
	}
	contest.Rest(y.settle) // until the holder watches its hold
	s, counter := y.servers[c.server], counters[c.server].watches
	before, err := s.Counter(ctx, counter)
	if err != nil {
		return 0, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	for range n {
		running.Go(func() {
			if release, err := wait(waits, key, false); err == nil {
				_ = release(ctx)
			}
		})
	}
	contest.Rest(y.settle) // until all of them wait
	during, err := s.Counter(ctx, counter)
	if err != nil {
		return 0, err
	}
	cancel()
	running.Wait()
	return during - before, release(ctx)
}

// once returns run, which later rounds skip.
func once(run func(ctx context.Context) error) func(ctx context.Context) error {
	ran := false
	return func(ctx context.Context) error {
		if ran {
			return nil
		}
		ran = true
		return run(ctx)
	}
}

// each calls fn for 0 to n-1, up to 64 at a time, and returns the first error.
func each(n int, fn func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error { return fn(i) })
	}
	return group.Wait()
}
