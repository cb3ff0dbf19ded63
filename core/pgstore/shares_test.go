package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// crowdShop is an application whose server takes 5 ms for a commit.
type crowdShop struct {
	guard   *guard.Guard
	locks   *lock.Locker
	permits *semaphore.Semaphore
	limiter *tokenbucket.Limiter
}

func newCrowdShop(t *testing.T) *crowdShop {
	server := postgrestest.Start(t, "fsync=on", "commit_delay=5000", "commit_siblings=0")
	migrateIn(t, server.DSN())
	s := openTestStore(t, server.DSN(), WithTimeout(testpace.Scale(2*time.Second)))
	var c crowdShop
	var err error
	c.guard, err = guard.New(s, "orders", guard.WithMaxPerScope(1<<20))
	must(t, err)
	t.Cleanup(func() { _ = c.guard.Close() })
	c.locks, err = lock.New(s, "jobs", lock.WithTTL(testpace.Scale(3*time.Second)))
	must(t, err)
	c.permits, err = semaphore.New(s, "pool", 100)
	must(t, err)
	c.limiter, err = tokenbucket.New(s, "api", tokenbucket.PerSecond(1e6))
	must(t, err)
	return &c
}

func (c *crowdShop) operate(ctx context.Context, scope, key string) error {
	_, _, err := guard.Do(ctx, c.guard, guard.Operation{Scope: scope, Key: key}, func(context.Context) (string, error) { return "done", nil })
	return err
}

// slowest returns how long the slowest call but one in a hundred of others takes:
// callers of other scopes, and of the other mechanisms.
func (c *crowdShop) slowest(t *testing.T) time.Duration {
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration
	)
	for i := range 10 {
		all.Go(func() {
			for n := range 30 {
				key := fmt.Sprint(time.Now().UnixNano(), i, n)
				began := time.Now()
				var err error
				switch i % 4 {
				case 0:
					_, err = c.limiter.Allow(t.Context(), key)
				case 1:
					err = c.locks.Do(t.Context(), key, func(context.Context) error { return nil })
				case 2:
					err = c.permits.Do(t.Context(), "shared", func(context.Context) error { return nil })
				default:
					err = c.operate(t.Context(), "other "+strconv.Itoa(i), key)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*99/100]
}

// Callers of one scope, however many, do not keep those of others waiting, nor the leases of their
// process from being renewed.
func TestACrowdInOneScope(t *testing.T) {
	c := newCrowdShop(t)
	var leases []*lock.Lease
	for i := range 20 {
		l, err := c.locks.Lock(t.Context(), strconv.Itoa(i))
		must(t, err)
		leases = append(leases, l)
	}
	c.slowest(t) // prepares the statements
	idle := c.slowest(t)
	var keys, done atomic.Int64
	end := keepCalling(t, 200, func() error {
		err := c.operate(t.Context(), "crowd", strconv.FormatInt(keys.Add(1), 10))
		if err == nil {
			done.Add(1)
		} else if !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		return nil
	})
	defer end()
	eventually(t, "the crowd works", func() bool { return done.Load() > 200 })
	inTime(t, "other calls beside the crowd", 3*idle, func() time.Duration { return c.slowest(t) })
	ttl := time.After(testpace.Scale(3 * time.Second))
	<-ttl
	end()
	for _, l := range leases {
		if l.Context().Err() != nil {
			t.Errorf("a lease was lost: %v", context.Cause(l.Context()))
		}
		_ = l.Unlock(t.Context())
	}
	t.Logf("idle %v; %d operations of the crowd", idle, done.Load())
}

// A transaction that has completed an attempt, and is still open, keeps no other operation of its
// scope waiting.
func TestAScopeBesideAnOpenCompletion(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"a large scope": 10_000, "a small scope": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, guard.WithMaxPerScope(most))
			for i := range 3 {
				op := orderOp("open " + strconv.Itoa(i))
				tx, err := s.complete(s.begin(op), op.Key, "a")
				must(t, err)
				defer func() { _ = tx.Rollback(context.Background()) }()
			}
			began := time.Now()
			a := s.begin(orderOp("settled"))
			must(t, a.Complete(t.Context(), resultOf("settled")))
			must(t, s.begin(orderOp("abandoned")).Abandon(t.Context()))
			_, _, err := s.order(orderOp("done"), "done", nil)
			must(t, err)
			if took := time.Since(began); took > lenient/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// However many begin at the same time, a scope has less than a sixteenth above its limit; and after
// connections have broken, its count is that of its records.
func TestScopesAreCounted(t *testing.T) {
	t.Parallel()
	for _, most := range []int{10, 31, 100, 1000} {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			t.Parallel()
			dsn := migrated(t)
			s := openTestStore(t, dsn, WithConnections(60)) // so that a scope may use 15
			ref := func(n int64) store.AttemptRef {
				id := fmt.Sprintf("%022d", n)
				return store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", Scope: "subject", ID: id}, Owner: id}
			}
			var next, started atomic.Int64
			call := func(abandons bool) error {
				n := next.Add(1)
				reply, err := s.BeginOperation(t.Context(), store.BeginRequest{
					AttemptRef: ref(n), Fingerprint: "f", Lease: time.Minute, Retention: time.Hour, MaxRecords: most,
				})
				if err == nil && reply.Outcome == store.Started {
					started.Add(1)
					if abandons && n%2 == 0 {
						_, err = s.AbandonOperation(t.Context(), ref(n))
					} else {
						_, err = s.SettleOperation(t.Context(), store.SettleRequest{
							AttemptRef: ref(n), Fingerprint: "f", Number: 1, State: store.Completed, Data: []byte("kept"), Retention: time.Hour,
						})
					}
				}
				return err
			}
			end := keepCalling(t, 16, func() error { return ignoreOutage(call(true)) })
			admin := connect(t, dsn)
			for next.Load() < int64(most/2) {
				_, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' ORDER BY random() LIMIT 1`)
				must(t, err)
			}
			end()
			all := func(text string) int { return query[int](t, s, text) }
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for range most/16 + 1 {
						if err := ignoreOutage(call(false)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			records := all("SELECT count(*) FROM lk.operations WHERE state <> 'A'")
			if counted := all("SELECT sum(records) FROM lk.scopes"); counted != records {
				t.Errorf("%d records are counted as %d", records, counted)
			}
			if bytes, counted := all("SELECT sum(octet_length(data)) FROM lk.operations"), all("SELECT sum(bytes) FROM lk.scopes"); bytes != counted {
				t.Errorf("%d bytes are counted as %d", bytes, counted)
			}
			if records < most || records > most && (records-most)*16 >= most {
				t.Errorf("%d records in a scope of %d", records, most)
			}
		})
	}
}

// ignoreOutage returns an error that is no outage.
func ignoreOutage(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return nil
	}
	return err
}
