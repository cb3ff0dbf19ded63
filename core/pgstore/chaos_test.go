package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// storm is a server with stores that use it through proxies, and faults until calm.
type storm struct {
	server  *postgrestest.Server
	stores  []*Store
	proxies []*faultproxy.Proxy
	done    atomic.Int64 // steps that have succeeded
}

const (
	// stormy is how long a storm lasts, on a slow machine up to four times as long, until enough steps
	// have succeeded.
	stormy = 5 * time.Second
	enough = 20
)

// lull waits until a step succeeds, but not for long: also on a slow machine, some get on between two
// faults.
func (s *storm) lull() {
	before := s.done.Load()
	for began := time.Now(); s.done.Load() == before && time.Since(began) < 2*time.Second; <-time.After(5 * time.Millisecond) {
	}
}

// storms are the faults: each is called again and again.
var storms = map[string]func(t *testing.T, s *storm){
	"crashes of the server": func(_ *testing.T, s *storm) {
		<-time.After(700 * time.Millisecond)
		s.server.Kill()
		<-time.After(200 * time.Millisecond)
		s.server.Restart()
	},
	"ended backends": func(t *testing.T, s *storm) {
		<-time.After(100 * time.Millisecond)
		if conn, err := pgx.Connect(t.Context(), s.server.DSN()); err == nil {
			_, _ = conn.Exec(t.Context(), terminate)
			_ = conn.Close(t.Context())
		}
	},
	"a bad network": func(_ *testing.T, s *storm) {
		p := s.proxies[rand.N(len(s.proxies))]
		switch rand.N(6) {
		case 0:
			p.CutAll()
		case 1:
			p.Delay(time.Duration(rand.N(80)) * time.Millisecond)
		case 2:
			p.BlackHole()
			<-time.After(400 * time.Millisecond)
		default:
			for _, command := range []string{"lk.leases", "lk.step_lease_1", "lk.buckets", "lk.take_tokens_1", "lk.operations", "lk.begin_operation_1", "lk.settle_operation_1"} {
				p.LoseReplies(command, 1, faultproxy.Loss(rand.N(2)))
			}
		}
		<-time.After(100 * time.Millisecond)
		p.Mend()
	},
	"idle transactions": func(t *testing.T, s *storm) {
		conn, err := pgx.Connect(t.Context(), s.server.DSN())
		if err != nil {
			return
		}
		defer func() { _ = conn.Close(t.Context()) }()
		tables := []string{"leases", "buckets", "operations"}
		_, _ = conn.Exec(t.Context(), fmt.Sprintf("BEGIN; SELECT FROM lk.%s FOR UPDATE", tables[rand.N(len(tables))]))
		<-time.After(500 * time.Millisecond)
	},
}

type (
	// running is what each of several goroutines does until the storm is over.
	running func(under context.Context, t *testing.T, s *Store, storm *storm)
	// checking checks what has come of it.
	checking func(t *testing.T, s *storm)
)

// inStorms runs a test in each kind of storm, on a database migrated with these options.
func inStorms(t *testing.T, opts []Option, test func() (running, checking)) {
	t.Helper()
	for name, fault := range storms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, check := test()
			s := &storm{server: postgrestest.Start(t, "deadlock_timeout=100ms")}
			migrateIn(t, s.server.DSN(), opts...)
			for range 3 {
				proxy := postgrestest.NewProxy(t, s.server.Addr())
				s.proxies = append(s.proxies, proxy)
				dsn := postgrestest.Through(s.server.DSN(), proxy.Addr())
				s.stores = append(s.stores, openTestStore(t, dsn, WithTimeout(brisk), new(logbook).option()))
			}
			var all sync.WaitGroup
			defer all.Wait()
			under, calm := context.WithCancel(t.Context())
			defer calm()
			for i := range 12 {
				all.Go(func() { run(under, t, s.stores[i%len(s.stores)], s) })
			}
			for began := time.Now(); time.Since(began) < stormy || s.done.Load() < enough && time.Since(began) < 4*stormy; s.lull() {
				fault(t, s)
			}
			calm()
			for _, p := range s.proxies {
				p.Mend()
			}
			all.Wait()
			check(t, s)
		})
	}
}

// A lock has one holder at a time, fences grow, and no key stays locked for longer than a lease.
func TestLocksInStorms(t *testing.T) {
	t.Parallel()
	inStorms(t, nil, locksInAStorm)
}

func locksInAStorm() (running, checking) {
	const ttl = time.Second
	var (
		mu     sync.Mutex
		grants int
		inside = make(map[*lock.Lease]bool)
		fence  int64
		took   []time.Duration // of each call
	)
	return func(under context.Context, t *testing.T, s *Store, storm *storm) {
			l, err := lock.New(s, "storm", lock.WithTTL(ttl))
			must(t, err)
			for under.Err() == nil {
				waiting, cancel := context.WithTimeout(under, 2*time.Second)
				began := time.Now()
				lease, err := l.Lock(waiting, "k")
				cancel()
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				if err != nil {
					<-time.After(time.Millisecond)
					continue
				}
				mu.Lock()
				grants++
				storm.done.Add(1)
				for other := range inside {
					if other.Context().Err() == nil && lease.Context().Err() == nil {
						t.Errorf("fences %d and %d hold the lock at once", other.Fence().Number, lease.Fence().Number)
					}
				}
				if n := lease.Fence().Number; n <= fence && lease.Context().Err() == nil {
					t.Errorf("fence %d after %d", n, fence)
				}
				fence = max(fence, lease.Fence().Number)
				inside[lease] = true
				mu.Unlock()
				select {
				case <-time.After(2 * time.Millisecond):
				case <-lease.Context().Done():
				}
				mu.Lock()
				delete(inside, lease)
				mu.Unlock()
				_ = lease.Unlock(under)
			}
		}, func(t *testing.T, s *storm) {
			t.Logf("%d grants", grants)
			punctual(t, "calls", 2*time.Second+4*brisk, took)
			l, err := lock.New(openTestStore(t, s.server.DSN()), "storm", lock.WithTTL(time.Minute))
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 3*ttl+patience) // a lease, and dead waiters before
			defer cancel()
			lease, err := l.Lock(ctx, "k")
			if err != nil {
				t.Fatalf("it stays locked: %v", err)
			}
			must(t, lease.Unlock(t.Context()))
			for _, store := range s.stores {
				if err := store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			eventually(t, "nobody holds or waits", func() bool {
				for _, err := range l.List(t.Context()) {
					must(t, err)
					return false
				}
				return true
			})
		}
}

// What is admitted is charged, and no charge counts twice.
func TestBucketsInStorms(t *testing.T) {
	t.Parallel()
	inStorms(t, []Option{LoggedBuckets()}, bucketsInAStorm)
}

func bucketsInAStorm() (running, checking) {
	const burst = 1000 // more than all ask for
	var admitted, unknown atomic.Int64
	return func(under context.Context, t *testing.T, s *Store, storm *storm) {
			l, err := tokenbucket.New(s, "storm", tokenbucket.PerDay(1).Burst(burst))
			must(t, err)
			for n := 0; under.Err() == nil && n < 60; n++ {
				d, err := l.Allow(under, "k")
				switch {
				case errors.Is(err, store.ErrUnconfirmed):
					unknown.Add(1)
				case err == nil && d.Allowed:
					admitted.Add(1)
					storm.done.Add(1)
				}
				<-time.After(50 * time.Millisecond)
			}
		}, func(t *testing.T, s *storm) {
			l, err := tokenbucket.New(openTestStore(t, s.server.DSN()), "storm", tokenbucket.PerDay(1).Burst(burst))
			must(t, err)
			d, err := l.Peek(t.Context(), "k")
			must(t, err)
			charged := burst - d.Limits()[0].Remaining
			yes, maybe := admitted.Load(), unknown.Load()
			t.Logf("%d charged, %d admitted, %d unknown", charged, yes, maybe)
			if charged < yes || charged > yes+maybe {
				t.Errorf("%d are charged, with %d admitted and %d unknown", charged, yes, maybe)
			}
		}
}

// An operation that has finished never runs again, and no record is a dead end.
func TestOperationsInStorms(t *testing.T) {
	t.Parallel()
	inStorms(t, nil, operationsInAStorm)
}

func operationsInAStorm() (running, checking) {
	const keys = 20
	var tried, finished [keys]atomic.Int64
	return func(under context.Context, t *testing.T, s *Store, storm *storm) {
			g, err := guard.New(s, "storm", guard.WithTTL(time.Second), guard.WithRerun())
			must(t, err)
			for under.Err() == nil {
				i := rand.N(keys)
				a, result, err := g.Begin(under, guard.Operation{Key: fmt.Sprint("k", i)})
				switch {
				case err != nil:
				case result != nil:
					if tried[i].Load() == 0 {
						t.Errorf("k%d is replayed, and nobody has finished it", i)
					}
				default:
					<-time.After(2 * time.Millisecond)
					if before := finished[i].Load(); before > 0 && a.Context().Err() == nil {
						t.Errorf("k%d runs again after it has finished", i)
					}
					tried[i].Add(1)
					if err := a.Complete(under, guard.Result{Data: []byte("done")}); err == nil {
						finished[i].Add(1)
						storm.done.Add(1)
					}
				}
				<-time.After(5 * time.Millisecond)
			}
		}, func(t *testing.T, s *storm) {
			g, err := guard.New(openTestStore(t, s.server.DSN()), "storm", guard.WithTTL(time.Second), guard.WithRerun())
			must(t, err)
			for i := range keys {
				n := finished[i].Load()
				eventually(t, "the attempt ends", func() bool {
					a, result, err := g.Begin(t.Context(), guard.Operation{Key: fmt.Sprint("k", i)})
					if err != nil {
						return false
					}
					if a != nil {
						_ = a.Abandon(t.Context())
					}
					if n > 0 && result == nil {
						t.Errorf("k%d has finished, and would run again", i)
					}
					return true
				})
			}
		}
}

const stoppedDSN = "PGSTORE_TEST_STOPPED_DSN"

// TestStoppedHolder is the process of TestAHolderIsStopped.
func TestStoppedHolder(t *testing.T) {
	dsn := os.Getenv(stoppedDSN)
	if dsn == "" {
		t.Skip("runs as a process of another test")
	}
	l, err := lock.New(openTestStore(t, dsn), "stopped", lock.WithTTL(time.Second))
	must(t, err)
	lease, err := l.Lock(t.Context(), "k")
	must(t, err)
	fmt.Println("holds", lease.Fence().Number)
	<-lease.Context().Done()
	fmt.Println("lost", errors.Is(context.Cause(lease.Context()), lock.ErrExpired), errors.Is(lease.Unlock(t.Context()), lock.ErrLost))
}

// A process that is stopped for longer than its lease learns that it has lost it, and its late
// release does not end the lease of the next holder.
func TestAHolderIsStopped(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	p := exec.Command(os.Args[0], "-test.run", "^TestStoppedHolder$", "-test.timeout", "5m") //nolint:gosec // the test's own binary
	p.Env = append(os.Environ(), stoppedDSN+"="+dsn)
	stdout, err := p.StdoutPipe()
	must(t, err)
	must(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	var fence int64
	_, err = fmt.Fscanf(stdout, "holds %d\n", &fence)
	must(t, err)
	must(t, p.Process.Signal(syscall.SIGSTOP))
	l, err := lock.New(openTestStore(t, dsn), "stopped", lock.WithTTL(10*time.Second))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease, err := l.Lock(ctx, "k")
	must(t, err)
	if lease.Fence().Number <= fence {
		t.Errorf("fence %d after %d", lease.Fence().Number, fence)
	}
	must(t, p.Process.Signal(syscall.SIGCONT))
	var expired, lost bool
	_, err = fmt.Fscanf(stdout, "lost %t %t\n", &expired, &lost)
	must(t, err)
	if !expired || !lost {
		t.Errorf("the context ended with ErrExpired: %v, Unlock returned ErrLost: %v", expired, lost)
	}
	must(t, lease.Verify(t.Context()))
	must(t, lease.Unlock(t.Context()))
}

// A charge whose reply is lost is not sent again: it counts once.
func TestALostReplyToACharge(t *testing.T) {
	t.Parallel()
	_, proxy, s := behindProxy(t)
	for _, limits := range []tokenbucket.Plan{
		tokenbucket.PerDay(1).Burst(100), tokenbucket.Limits{tokenbucket.PerDay(1).Burst(100).Named("a"), tokenbucket.PerDay(2).Burst(200).Named("b")},
	} {
		l, err := tokenbucket.New(s, fmt.Sprintf("lost%T", limits), limits)
		must(t, err)
		_, err = l.Allow(t.Context(), "k")
		must(t, err)
		for _, command := range []string{"lk.buckets", "lk.charge_newest_1", "lk.charge_together_1", "lk.take_tokens_1"} {
			proxy.LoseReplies(command, 1, faultproxy.Cut)
		}
		_, err = l.Allow(t.Context(), "k")
		wantUnavailable(t, err, true)
		proxy.Mend()
		d, err := l.Peek(t.Context(), "k")
		must(t, err)
		if left := d.Limits()[0].Remaining; left != 98 {
			t.Errorf("%v: %d tokens are left after two charges of 100", limits, left)
		}
	}
}
