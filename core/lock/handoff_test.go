package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// A process hands a lock on among its own waiters, in the order of arrival, and releases it to the
// store after sixteen leases.
func TestHandOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		const waiters = 100
		first := mustLock(t, l, "k")
		var (
			order  []int
			fences []int64
			wg     sync.WaitGroup
		)
		for i := range waiters {
			wg.Go(func() {
				lease := mustLock(t, l, "k")
				order = append(order, i) // the lock prevents a race
				fences = append(fences, lease.Fence().Number)
				mustUnlock(t, lease)
			})
			synctest.Wait()
		}
		mustUnlock(t, first)
		wg.Wait()
		last := first.Fence().Number
		for i := range waiters {
			if order[i] != i {
				t.Fatalf("order %v", order)
			}
			if fences[i] <= last {
				t.Fatalf("fence %d after %d", fences[i], last)
			}
			last = fences[i]
		}
		if got, want := w.Calls(storetest.ReleaseLeases), (waiters+1+15)/16; got != want {
			t.Errorf("%d releases in the store for %d leases, want %d", got, waiters+1, want)
		}
		wantFree(t, w, "k")
	})
}

// A process hands a lock on to another after sixteen passes, or 50 ms.
func TestHandOffIsBounded(t *testing.T) {
	for name, holding := range map[string]time.Duration{"passes": 0, "time": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				mine, other := newLocker(t, w), newLocker(t, w)
				var (
					mu    sync.Mutex
					order []string
					wg    sync.WaitGroup
				)
				work := func(process string, l *lock.Locker) {
					wg.Go(func() {
						lease := mustLock(t, l, "k")
						time.Sleep(holding)
						mu.Lock()
						order = append(order, process)
						mu.Unlock()
						mustUnlock(t, lease)
					})
					synctest.Wait()
				}
				first := mustLock(t, mine, "k")
				for range 40 {
					work("mine", mine)
				}
				work("other", other)
				mustUnlock(t, first)
				wg.Wait()
				before := 0
				for order[before] != "other" {
					before++
				}
				want := map[string]int{"passes": 15, "time": 3}[name] // and the first lease
				if before != want {
					t.Errorf("the other process was granted the lock after %d, want %d", before, want)
				}
			})
		})
	}
}

func TestFairIsInOrderOfArrival(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lockers := []*lock.Locker{newLocker(t, w, lock.WithFair()), newLocker(t, w, lock.WithFair())}
		first := mustLock(t, lockers[0], "k")
		var (
			order []int
			wg    sync.WaitGroup
		)
		for i := range 40 {
			wg.Go(func() {
				lease := mustLock(t, lockers[i%3%2], "k")
				order = append(order, i)
				mustUnlock(t, lease)
			})
			synctest.Wait()
		}
		mustUnlock(t, first)
		wg.Wait()
		for i := range order {
			if order[i] != i {
				t.Fatalf("order %v", order)
			}
		}
	})
}

// The place in the store's queue belongs to the local queue: the end of the first waiter's context
// does not withdraw it.
func TestFirstWaiterIsCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		holder, l, rival := newLocker(t, w), newLocker(t, w), newLocker(t, w)
		lease := mustLock(t, holder, "k")
		ctx, cancel := context.WithCancel(t.Context())
		first := start(func() (*lock.Lease, error) { return l.Lock(ctx, "k") })
		second := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		behind := start(func() (*lock.Lease, error) { return rival.Lock(t.Context(), "k") })
		cancel()
		if !first.returned() || !errors.Is(first.err, context.Canceled) {
			t.Fatalf("the first waiter: %v", first.err)
		}
		mustUnlock(t, lease)
		if !second.returned() || behind.returned() {
			t.Fatalf("the second waiter: %v, the rival: %v", second.returned(), behind.returned())
		}
		mustUnlock(t, second.lease)
		if !behind.returned() {
			t.Fatal("the rival waits")
		}
		mustUnlock(t, behind.lease)
		wantFree(t, w, "k")
	})
}

// When no waiter is left, the place of the local queue is withdrawn.
func TestAllWaitersAreCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		holder, l := newLocker(t, w), newLocker(t, w)
		lease := mustLock(t, holder, "k")
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []*pending
		for range 5 {
			waiting = append(waiting, start(func() (*lock.Lease, error) { return l.Lock(ctx, "k") }))
		}
		if s, _ := l.Inspect(t.Context(), "k"); s.Waiting != 1 {
			t.Errorf("%d places in the store's queue, want one for the process", s.Waiting)
		}
		var held *lock.HeldError
		if _, err := l.TryLock(t.Context(), "k"); !errors.As(err, &held) || held.Waiting != 5 {
			t.Errorf("TryLock: %+v", held)
		}
		cancel()
		for _, p := range waiting {
			if !p.returned() || !errors.Is(p.err, context.Canceled) {
				t.Errorf("%v", p.err)
			}
		}
		if s, _ := l.Inspect(t.Context(), "k"); s.Waiting != 0 {
			t.Errorf("%d places in the store's queue", s.Waiting)
		}
		mustUnlock(t, lease)
		wantFree(t, w, "k")
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

// A holder that does not release an expired lease does not block the waiters of its process.
func TestExpiredHolderWithLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		stuck := mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		time.Sleep(ttl + time.Second)
		if !next.returned() || next.err != nil {
			t.Fatalf("the next waiter: %v", next.err)
		}
		wantEnded(t, stuck, lock.ErrExpired)
		if next.lease.Fence().Number <= stuck.Fence().Number {
			t.Errorf("fence %v after %v", next.lease.Fence(), stuck.Fence())
		}
		if err := stuck.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		wantValid(t, next.lease)
		mustUnlock(t, next.lease)
		wantFree(t, w, "k")
	})
}

// A hand-off keeps the deadline of the lease.
func TestHandOffKeepsTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal(), lock.WithTTL(time.Second))
		first := mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		time.Sleep(40 * time.Millisecond)
		until := first.ValidUntil()
		mustUnlock(t, first)
		if !next.returned() || w.Calls(storetest.AcquireLease) != 1 {
			t.Fatalf("handed on: %v, %d requests", next.returned(), w.Calls(storetest.AcquireLease))
		}
		if !next.lease.ValidUntil().Equal(until) {
			t.Errorf("valid for %v, the first lease for %v", time.Until(next.lease.ValidUntil()), time.Until(until))
		}
		time.Sleep(time.Until(until))
		wantEnded(t, next.lease, lock.ErrExpired)
	})
}

// Variants with different settings have separate local queues.
func TestVariantsHaveSeparateQueues(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		short := must(l.With(lock.WithTTL(time.Second)))
		first := mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return short.Lock(t.Context(), "k") })
		mustUnlock(t, first)
		if !next.returned() || next.err != nil {
			t.Fatalf("%v", next.err)
		}
		if left := time.Until(next.lease.ValidUntil()); left > time.Second {
			t.Errorf("valid for %v", left)
		}
		mustUnlock(t, next.lease)
		ok(t, l.Close())
		if _, err := short.Lock(t.Context(), "k"); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("a variant of a closed Locker: %v", err)
		}
	})
}

// An outage fails local waiters one by one, and later ones are granted the lock.
func TestOutageWithLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		var waiting []*pending
		for range 40 {
			waiting = append(waiting, start(func() (*lock.Lease, error) {
				lease, err := l.Lock(t.Context(), "k")
				if err == nil {
					_ = lease.Unlock(t.Context())
				}
				return lease, err
			}))
		}
		w.Hook(storetest.Failing(errDown, storetest.AcquireLease, storetest.ReleaseLeases, storetest.RenewLeases), nil)
		_ = lease.Unlock(t.Context())
		failed := 0
		for _, p := range waiting {
			if !p.returned() {
				t.Fatal("still waits")
			}
			if p.err != nil {
				failed++
			}
		}
		if failed != 25 { // all but the fifteen hand-offs
			t.Errorf("%d have failed", failed)
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

// Lockers with many goroutines that wait and time out: one holder at a time, growing fences, and
// nothing left in the store.
func TestStorm(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, func(t *testing.T, w *wiretap) {
			random := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			roll := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			var (
				holders, grants int
				lastFence       int64
				wg              sync.WaitGroup
			)
			for range 4 {
				l := newLocker(t, w, lock.WithTTL(100*time.Millisecond))
				for range 8 {
					wg.Go(func() {
						for range 20 {
							time.Sleep(time.Duration(roll(50)) * time.Millisecond)
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+roll(300))*time.Millisecond)
							acquire := []func(context.Context, string) (*lock.Lease, error){l.Lock, l.Lock, l.TryLock}[roll(3)]
							lease, err := acquire(ctx, "k")
							if err != nil {
								cancel()
								continue
							}
							mu.Lock()
							if holders++; holders > 1 {
								t.Error("two holders")
							}
							grants++
							if f := lease.Fence().Number; f <= lastFence {
								t.Errorf("fence %d after %d", f, lastFence)
							} else {
								lastFence = f
							}
							mu.Unlock()
							time.Sleep(time.Duration(roll(20)) * time.Millisecond)
							mu.Lock()
							holders--
							mu.Unlock()
							if err := lease.Unlock(ctx); err != nil {
								t.Errorf("Unlock: %v", err)
							}
							cancel()
						}
					})
				}
			}
			wg.Wait()
			synctest.Wait()
			wantFree(t, w, "k")
			if grants < 50 {
				t.Error(fmt.Sprint("only ", grants, " grants"))
			}
		})
	}
}
