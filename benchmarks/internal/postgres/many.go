package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// ttl is the lease of many locks: a third of it is the interval of their renewals.
const ttl = 6 * time.Second

// held measures the renewals of many locks of one process.
func held(ctx context.Context, b *bench.B, y *yard) error {
	n := b.Count(10_000)
	row := fmt.Sprintf("%s, %d locks", ours, n)
	t := b.Table("postgres-held", "PostgreSQL: many locks of one process",
		fmt.Sprintf("Leases of %v, renewed every %v. Round trips are messages to the server, also those of the connection that listens. "+
			"Locks are taken and released by 64 goroutines. Measured once.", ttl, ttl/3),
		bench.Column{Name: "lock", Unit: "µs each"},
		bench.Column{Name: "round trips", Unit: "per s"},
		bench.Column{Name: "renewals", Unit: "per round trip"},
		bench.Column{Name: "unlock", Unit: "µs each"},
		bench.Column{Name: "lost", Unit: "locks"},
	)
	if err := b.Interleave(ctx, "postgres, many locks", []bench.Contender{{Row: row, Run: once(func(ctx context.Context) error {
		st, sent, err := openCounted(ctx, y.dsn)
		if err != nil {
			return err
		}
		defer func() { _ = st.Close() }()
		locker, err := lock.New(st, "held", lock.WithTTL(ttl), lock.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer func() { _ = locker.Close() }()
		leases := make([]*lock.Lease, n)
		start := time.Now()
		if err := each(n, func(i int) (err error) {
			leases[i], err = locker.Lock(ctx, "key-"+strconv.Itoa(i))
			return err
		}); err != nil {
			return err
		}
		t.Add(row, "lock", micros(time.Since(start))/float64(n))
		before, start := sent.Load(), time.Now()
		contest.Rest(ttl) // three renewals of each
		trips := float64(sent.Load() - before)
		t.Add(row, "round trips", trips/time.Since(start).Seconds())
		t.Add(row, "renewals", 3*float64(n)/trips)
		lost := 0
		for _, l := range leases {
			if l.Context().Err() != nil {
				lost++
			}
		}
		t.Add(row, "lost", float64(lost))
		start = time.Now()
		err = each(n, func(i int) error {
			if err := leases[i].Unlock(ctx); err != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrExpired) {
				return err
			}
			return nil
		})
		t.Add(row, "unlock", micros(time.Since(start))/float64(n))
		return err
	})}}); err != nil {
		return err
	}
	b.Measured(heldRenewals, t.Value(row, "renewals"))
	return nil
}

// waiting measures what a process sends while many of its goroutines wait for one lock.
func waiting(ctx context.Context, b *bench.B, y *yard) error {
	n, d := b.Count(10_000), max(b.Time(10*time.Second), 2*time.Second)
	row := fmt.Sprintf("%s, %d waiters", ours, n)
	t := b.Table("postgres-waiting", "PostgreSQL: many waiters of one process for one lock",
		"Another process holds the lock until all wait; then each acquires and releases it. Round trips are messages to the server, also those of the "+
			"connection that listens. Measured once.",
		bench.Column{Name: "round trips", Unit: "per s"},
		bench.Column{Name: "lock and unlock", Unit: "µs each"},
		bench.Column{Name: "round trips of all", Unit: "per lock and unlock"},
	)
	if err := b.Interleave(ctx, "postgres, many waiters", []bench.Contender{{Row: row, Run: once(func(ctx context.Context) error {
		holder, err := lockkeeper()(y.dsn)
		if err != nil {
			return err
		}
		defer holder.Close()
		st, sent, err := openCounted(ctx, y.dsn)
		if err != nil {
			return err
		}
		defer func() { _ = st.Close() }()
		locker, err := lock.New(st, "bench", lock.WithTTL(lease), lock.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer func() { _ = locker.Close() }()
		held, err := holder.Lock(ctx, "waited for")
		if err != nil {
			return err
		}
		var (
			running sync.WaitGroup
			mu      sync.Mutex
			failure error
		)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		for range n {
			running.Go(func() {
				lease, err := locker.Lock(ctx, "waited for")
				if err == nil {
					err = lease.Unlock(ctx)
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					failure = err
				}
			})
		}
		if err := queue(ctx, locker, "waited for"); err != nil {
			return err
		}
		contest.Rest(time.Second) // until all of them wait
		before, start := sent.Load(), time.Now()
		contest.Rest(d)
		t.Add(row, "round trips", float64(sent.Load()-before)/time.Since(start).Seconds())
		before, start = sent.Load(), time.Now()
		if err := held.Unlock(ctx); err != nil {
			return err
		}
		running.Wait()
		t.Add(row, "lock and unlock", micros(time.Since(start))/float64(n))
		t.Add(row, "round trips of all", float64(sent.Load()-before)/float64(n))
		return failure
	})}}); err != nil {
		return err
	}
	b.Measured(waitingTrips, t.Value(row, "round trips"))
	return nil
}

// queue blocks until the key has a waiter.
func queue(ctx context.Context, locker *lock.Locker, key string) error {
	for {
		state, err := locker.Inspect(ctx, key)
		if err != nil || state.Waiting > 0 {
			return err
		}
		contest.Rest(10 * time.Millisecond)
	}
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
	group.SetLimit(many)
	for i := range n {
		group.Go(func() error { return fn(i) })
	}
	return group.Wait()
}
