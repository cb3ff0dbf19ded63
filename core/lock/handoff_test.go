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

// The goroutines of a process hand a lock on among themselves, in the order in which they came, and
// the store sees one in sixteen.
func TestHandOn(t *testing.T) {
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
				order = append(order, i) // the lock is what makes this no race
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
		if got, want := w.Calls(storetest.ReleaseLock), (waiters+1+15)/16; got != want {
			t.Errorf("the store was asked to release %d times for %d leases, want %d", got, waiters+1, want)
		}
		wantFree(t, w, "k")
	})
}

// A process that has the lock gives it up for another after sixteen passes, or 50 ms.
func TestHandOnIsBounded(t *testing.T) {
	for name, holding := range map[string]time.Duration{"passes": 0, "time": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				mine, other := newLocker(t, w), newLocker(t, w)
				var (
					mu    sync.Mutex
					turns []string
					wg    sync.WaitGroup
				)
				work := func(who string, l *lock.Locker) {
					wg.Go(func() {
						lease := mustLock(t, l, "k")
						time.Sleep(holding)
						mu.Lock()
						turns = append(turns, who)
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
				for turns[before] != "other" {
					before++
				}
				want := map[string]int{"passes": 15, "time": 3}[name] // and the first one's
				if before != want {
					t.Errorf("the other process had its turn after %d, want %d", before, want)
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

// The place in the store's queue is the line's: it does not go with the one who asked for it.
func TestWhoAskedLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		holder, l, rival := newLocker(t, w), newLocker(t, w), newLocker(t, w)
		lease := mustLock(t, holder, "k")
		asked, cancel := context.WithCancel(t.Context())
		first := start(func() (*lock.Lease, error) { return l.Lock(asked, "k") })
		second := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		behind := start(func() (*lock.Lease, error) { return rival.Lock(t.Context(), "k") })
		cancel()
		if !first.returned() || !errors.Is(first.err, context.Canceled) {
			t.Fatalf("who asked: %v", first.err)
		}
		mustUnlock(t, lease)
		if !second.returned() || behind.returned() {
			t.Fatalf("the second in line: %v, the rival: %v", second.returned(), behind.returned())
		}
		mustUnlock(t, second.lease)
		if !behind.returned() {
			t.Fatal("the rival waits")
		}
		mustUnlock(t, behind.lease)
		wantFree(t, w, "k")
	})
}

// When all have left, the line's place goes too.
func TestEverybodyLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		holder, l := newLocker(t, w), newLocker(t, w)
		lease := mustLock(t, holder, "k")
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []*pending
		for range 5 {
			waiting = append(waiting, start(func() (*lock.Lease, error) { return l.Lock(ctx, "k") }))
		}
		if s, _ := l.Inspect(t.Context(), "k"); s.Waiting != 1 {
			t.Errorf("%d places in the store's queue, want one for the line", s.Waiting)
		}
		var held *lock.HeldError
		if _, err := l.TryLock(t.Context(), "k"); !errors.As(err, &held) || held.Waiting != 5 {
			t.Errorf("TryLock behind them: %+v", held)
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

// A holder that does not release what has expired does not stop its process.
func TestExpiredHolderInLine(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		stuck := mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		time.Sleep(ttl + time.Second)
		if !next.returned() || next.err != nil {
			t.Fatalf("the next in line: %v", next.err)
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

// A hand-on takes the remaining validity with it.
func TestHandOnKeepsTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal(), lock.WithTTL(time.Second))
		first := mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		time.Sleep(40 * time.Millisecond)
		until := first.ValidUntil()
		mustUnlock(t, first)
		if !next.returned() || w.Calls(storetest.AcquireLock) != 1 {
			t.Fatalf("handed on: %v, %d requests", next.returned(), w.Calls(storetest.AcquireLock))
		}
		if !next.lease.ValidUntil().Equal(until) {
			t.Errorf("valid for %v, the hold for %v", time.Until(next.lease.ValidUntil()), time.Until(until))
		}
		time.Sleep(time.Until(until))
		wantEnded(t, next.lease, lock.ErrExpired)
	})
}

// Variants do not hand on to each other what would not suit them.
func TestVariantsHaveLinesOfTheirOwn(t *testing.T) {
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
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := short.Lock(t.Context(), "k"); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("a variant of a closed Locker: %v", err)
		}
	})
}

// An outage fails those who wait in line one by one, and the line goes on after it.
func TestOutageInLine(t *testing.T) {
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
		w.Hook(storetest.Failing(errDown, storetest.AcquireLock, storetest.ReleaseLock, storetest.RenewLocks), nil)
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
		if failed != 25 { // all but the fifteen that it was handed on to
			t.Errorf("%d have failed", failed)
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

// Many processes with many goroutines that come, leave and die: one holder at a time, fences that
// grow, and nothing left behind.
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
