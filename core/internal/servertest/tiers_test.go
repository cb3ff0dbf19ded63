package servertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

func newSemaphore(t *testing.T, st store.Leases, capacity int) *semaphore.Semaphore {
	t.Helper()
	s := must(semaphore.New(st, "test", capacity))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustAcquire(t *testing.T, s *semaphore.Semaphore, n int) *semaphore.Permit {
	t.Helper()
	p, err := s.TryAcquireN(t.Context(), "k", n)
	if err != nil {
		t.Fatalf("TryAcquireN: %v", err)
	}
	return p
}

func mustRelease(t *testing.T, permits ...*semaphore.Permit) {
	t.Helper()
	for _, p := range permits {
		ok(t, p.Release(t.Context()))
	}
}

// eachTiers runs a test with Semaphores of 100, for what matters most and for the rest: in one
// process, in memory and on Redis, and in two.
func eachTiers(t *testing.T, test func(t *testing.T, high, low *semaphore.Semaphore)) {
	t.Helper()
	on := func(t *testing.T, server *redistest.Server) *semaphore.Semaphore {
		return newSemaphore(t, newStore(t, connect(t, server.Addr())), 100)
	}
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		s := newSemaphore(t, st, 100)
		test(t, s, s)
	})
	t.Run("one process", func(t *testing.T) {
		s := on(t, redistest.Start(t))
		test(t, s, s)
	})
	t.Run("two processes", func(t *testing.T) {
		server := redistest.Start(t)
		test(t, on(t, server), on(t, server))
	})
}

// most is the largest value of a sum.
type most struct{ sum, max atomic.Int64 }

func (m *most) add(n int) {
	sum := m.sum.Add(int64(n))
	for old := m.max.Load(); sum > old && !m.max.CompareAndSwap(old, sum); old = m.max.Load() {
	}
}

// 40 goroutines want more than there is, all the time. With a reserve they never use it, and two
// others who may are never refused. Without one all share all. The test is not parallel, since it
// leaves no CPU time to others.
func TestTiersUnderLoad(t *testing.T) {
	for name, reserve := range map[string]int{"with a reserve": 20, "without": 0} {
		t.Run(name, func(t *testing.T) {
			eachTiers(t, func(t *testing.T, high, base *semaphore.Semaphore) {
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
	t.Parallel()
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
			eventually(t, fmt.Sprint(name, " is in the queue"), func() bool {
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
			case <-time.After(within):
				t.Fatalf("%d were granted", i)
			}
		}
		cancel()
		wg.Wait()
	})
}

// onServer returns a function that opens stores on a server of their own.
func onServer(t *testing.T) func() store.Leases {
	server := redistest.Start(t)
	return func() store.Leases { return newStore(t, connect(t, server.Addr())) }
}

// The test is not parallel, since it leaves no CPU time to others.
func TestTiersOfFourProcesses(t *testing.T) { tiertest.Overload(t, onServer(t)) }

func TestOrderWithinTiers(t *testing.T) {
	t.Parallel()
	tiertest.Order(t, onServer(t))
}
