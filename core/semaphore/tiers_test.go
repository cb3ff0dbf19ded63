package semaphore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// eachTiers runs a test with Semaphores of 100, for what matters most and for the rest: in one process,
// in memory and on Redis, and in two.
func eachTiers(t *testing.T, test func(t *testing.T, high, low *semaphore.Semaphore)) {
	onRedis := func(server *redistest.Server) store.Leases {
		st := must(redisstore.New(server.Client(), redisstore.WithTimeout(2*time.Second)))
		t.Cleanup(func() { _ = st.Close() })
		return leasesOf(t, st)
	}
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		s := newSemaphore(t, st, 100)
		test(t, s, s)
	})
	t.Run("one process", func(t *testing.T) {
		s := newSemaphore(t, onRedis(redistest.Start(t)), 100)
		test(t, s, s)
	})
	t.Run("two processes", func(t *testing.T) {
		server := redistest.Start(t)
		test(t, newSemaphore(t, onRedis(server), 100), newSemaphore(t, onRedis(server), 100))
	})
}

// most is the largest value of a sum.
type most struct{ sum, max atomic.Int64 }

func (m *most) add(n int) {
	sum := m.sum.Add(int64(n))
	for old := m.max.Load(); sum > old && !m.max.CompareAndSwap(old, sum); old = m.max.Load() {
	}
}

// 40 goroutines want more than there is, all the time. With a reserve they never use it, and two others
// who may are never refused. Without one all share all.
func TestTiersUnderLoad(t *testing.T) {
	for name, reserve := range map[string]int{"with a reserve": 20, "without": 0} {
		t.Run(name, func(t *testing.T) {
			eachTiers(t, func(t *testing.T, high, base *semaphore.Semaphore) {
				t.Parallel()
				low := must(base.With(semaphore.WithReserve(reserve)))
				var (
					wg                          sync.WaitGroup
					lows, all                   most
					lowTurns, highTurns, turned atomic.Int64
					end                         = time.Now().Add(time.Second)
				)
				use := func(p *semaphore.Permit, weight int) {
					<-time.After(time.Millisecond)
					all.add(-weight)
					if err := p.Release(context.Background()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
				for range 40 {
					wg.Go(func() {
						for time.Now().Before(end) {
							p, err := low.AcquireN(t.Context(), "k", 4)
							if err != nil {
								t.Errorf("AcquireN: %v", err)
								return
							}
							lowTurns.Add(1)
							all.add(4)
							lows.add(4)
							<-time.After(time.Millisecond)
							lows.add(-4)
							use(p, 4)
						}
					})
				}
				for range 2 {
					wg.Go(func() {
						for time.Now().Before(end) {
							p, err := high.TryAcquireN(t.Context(), "k", 10)
							switch {
							case errors.Is(err, semaphore.ErrNotAcquired):
								turned.Add(1)
								<-time.After(time.Millisecond)
							case err != nil:
								t.Errorf("TryAcquireN: %v", err)
								return
							default:
								highTurns.Add(1)
								all.add(10)
								use(p, 10)
							}
						}
					})
				}
				wg.Wait()
				t.Logf("low %d times, %d at most; high %d times, refused %d times; together %d at most",
					lowTurns.Load(), lows.max.Load(), highTurns.Load(), turned.Load(), all.max.Load())
				if lows.max.Load() > int64(100-reserve) || all.max.Load() > 100 || lowTurns.Load() == 0 {
					t.Errorf("low %d, together %d", lows.max.Load(), all.max.Load())
				}
				if reserve > 0 && (turned.Load() > 0 || highTurns.Load() == 0) {
					t.Errorf("high refused %d times, granted %d times", turned.Load(), highTurns.Load())
				}
			})
		})
	}
}

// What is released goes to a request with a smaller reserve, although others came before it.
func TestTiersInTheQueue(t *testing.T) {
	eachTiers(t, func(t *testing.T, high, base *semaphore.Semaphore) {
		t.Parallel()
		low := must(base.With(semaphore.WithReserve(20)))
		first := must(low.AcquireN(t.Context(), "k", 80))
		second := must(high.AcquireN(t.Context(), "k", 20))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		got := make(chan string, 9)
		waits := func(s *semaphore.Semaphore, name string, weight, waiting int) {
			wg.Go(func() {
				p, err := s.AcquireN(ctx, "k", weight)
				if err != nil {
					return
				}
				got <- name
				_ = p.Release(context.Background())
			})
			eventually(t, func() bool {
				state, err := s.Inspect(t.Context(), "k")
				return err == nil && state.Waiting == waiting
			})
		}
		waits(low, "low", 40, 1)
		waits(low, "lower", 30, 2)
		waits(high, "high", 90, 3)
		mustRelease(t, second, first)
		for i := range 3 {
			select {
			case name := <-got:
				if i == 0 && name != "high" {
					t.Errorf("%s is first", name)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%d were granted", i)
			}
		}
		cancel()
		wg.Wait()
	})
}

// eventually polls until a condition holds.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not within 10s")
		}
	}
}

// lateGrants is a store that returns grants to waiters when tell is closed.
type lateGrants struct {
	store.Leases
	tell chan struct{}
}

func (l lateGrants) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	grant, err := l.Leases.AwaitLease(ctx, req)
	<-l.tell
	return grant, err
}

// The place in the store's queue is the process's: a grant in flight to a caller that has left is for the
// next one, even if other requests have taken the reserve since it was made.
func TestReserveAndALateGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		st := lateGrants{w, make(chan struct{})}
		s := newSemaphore(t, st, 5)
		low := must(s.With(semaphore.WithReserve(2)))
		held := mustAcquire(t, s, 3)
		ctx, leave := context.WithCancel(t.Context())
		first := start(ctx, low, 1)
		mustRelease(t, held) // to the first, in the store
		held = mustAcquire(t, s, 3)
		second := start(t.Context(), low, 1)
		leave()
		synctest.Wait()
		close(st.tell)
		if !second.got() || first.got() {
			t.Fatalf("the first has a permit: %v, and the second: %v", first.got(), second.got())
		}
		mustRelease(t, held, second.permit)
		wantState(t, s, 0, 0)
	})
}

// Callers that wait for less time than it takes until their process's turn comes do not starve.
func TestImpatientCallersOfATier(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		const reserve, capacity = 2, 3
		impatient := must(newSemaphore(t, w, capacity).With(semaphore.WithReserve(reserve)))
		others := must(newSemaphore(t, w, capacity).With(semaphore.WithReserve(reserve)))
		end := time.Now().Add(time.Minute)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for time.Now().Before(end) {
					p := must(others.Acquire(t.Context(), "k"))
					time.Sleep(time.Second)
					mustRelease(t, p)
				}
			})
		}
		var got atomic.Int64
		for time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
				defer cancel()
				if p, err := impatient.Acquire(ctx, "k"); err == nil {
					got.Add(1)
					mustRelease(t, p)
				}
			})
		}
		wg.Wait()
		if got.Load() < 10 {
			t.Errorf("%d permits in a minute", got.Load())
		}
	})
}
