package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A place is kept for three seconds after its last call, and a grant that no call awaits for two.
func TestLeasePlaces(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		holder, first, second := leaseOf(4, "holder"), leaseOf(4, "first"), leaseOf(4, "second")
		fence := l.acquire(holder, store.Granted).Fence
		l.acquire(first, store.Queued)
		l.acquire(second, store.Queued)
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := l.s.AwaitLease(ctx, first); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("AwaitLease: %v", err)
		}
		time.Sleep(2900 * time.Millisecond) // the second place has expired, the first has not
		if reply := l.acquire(second, store.Queued); reply.Waiting != 1 {
			t.Fatalf("%+v, want one place", reply)
		}
		l.release(holder, fence, store.Released)
		granted := time.Now()
		grant, err := l.s.AwaitLease(t.Context(), second)
		if err != nil || time.Since(granted) != 2*time.Second || grant.Sent.Sub(granted) != 2*time.Second {
			t.Fatalf("after %v: %+v, %v, want a grant after 2s", time.Since(granted), grant, err)
		}
	})
}

// Several calls may await a request, as after a retry, and all of them return its grant.
func TestLeaseAwaitedBySeveral(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		holder, waits := leaseOf(4, "holder"), leaseOf(4, "waits")
		fence := l.acquire(holder, store.Granted).Fence
		start := time.Now()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := l.s.AwaitLease(ctx, waits); !errors.Is(err, context.Canceled) {
				t.Errorf("the first call: %v", err)
			}
		})
		for range 4 {
			wg.Go(func() {
				grant, err := l.s.AwaitLease(t.Context(), waits)
				if err != nil || grant.Fence == 0 || grant.TTL != time.Minute || time.Since(start) != 10*time.Second {
					t.Errorf("AwaitLease after %v: %+v, %v", time.Since(start), grant, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		time.Sleep(10 * time.Second)
		l.release(holder, fence, store.Released)
		wg.Wait()
	})
}

// However the wait of the first waiter ends, the others are granted theirs when holds expire.
func TestExpiryWithoutTheFirstLease(t *testing.T) {
	for name, leave := range map[string]func(leases, store.LeaseRequest, context.CancelFunc){
		"it is granted":         func(leases, store.LeaseRequest, context.CancelFunc) {},
		"its wait is cancelled": func(_ leases, _ store.LeaseRequest, cancel context.CancelFunc) { cancel() },
		"it is withdrawn": func(l leases, req store.LeaseRequest, _ context.CancelFunc) {
			l.release(req, 0, store.NotHeld)
		},
		"its capacity is too small": func(l leases, req store.LeaseRequest, _ context.CancelFunc) {
			req.Capacity = 3
			l.acquire(req, store.Taken)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inLeases(t, func(t *testing.T, l leases) {
				start := time.Now()
				l.acquire(leaseOf(4, "holder"), store.Granted)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				first := leaseOf(4, "first")
				l.acquire(first, store.Queued)
				var wg sync.WaitGroup
				wg.Go(func() {
					if grant, err := l.s.AwaitLease(ctx, first); err == nil {
						time.Sleep(time.Second)
						l.release(first, grant.Fence, store.Released)
					}
				})
				for i := range 3 {
					req := leaseOf(4, fmt.Sprint(i))
					l.acquire(req, store.Queued)
					wg.Go(func() {
						if _, err := l.s.AwaitLease(t.Context(), req); err != nil {
							t.Errorf("AwaitLease: %v", err)
						}
						// it is not released, so that the next one waits for its expiry
					})
				}
				synctest.Wait()
				time.Sleep(30 * time.Second)
				leave(l, first, cancel)
				wg.Wait()
				want := 3 * time.Minute
				if name == "it is granted" {
					want += time.Second
				}
				if got := time.Since(start); got != want {
					t.Errorf("the last one was granted after %v, want %v", got, want)
				}
			})
		})
	}
}

// A renewal with a shorter TTL shortens the hold.
func TestShorterRenewal(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		holder, waits := leaseOf(4, "holder"), leaseOf(4, "waits")
		ref := holder.Ref(l.acquire(holder, store.Granted).Fence)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.s.AwaitLease(t.Context(), waits); err != nil || time.Since(start) != 15*time.Second {
				t.Errorf("AwaitLease after %v: %v", time.Since(start), err)
			}
		})
		time.Sleep(10 * time.Second)
		ref.TTL = 5 * time.Second
		if held, err := l.s.RenewLeases(t.Context(), []store.LeaseRef{ref}); err != nil || !held[0] {
			t.Errorf("RenewLeases: %v, %v", held, err)
		}
		if grant := l.acquire(holder, store.Granted).Grant; time.Until(grant.Sent.Add(grant.TTL)) != 5*time.Second {
			t.Errorf("a repeat returns %+v", grant)
		}
		wg.Wait()
	})
}

// A function for lost holds may call the store.
func TestRevokedWithoutAMutex(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		holder := leaseOf(4, "holder")
		grant := l.acquire(holder, store.Granted)
		var calls []string
		l.s.NotifyLost(func(id string) {
			held, err := l.s.VerifyLease(t.Context(), holder.Ref(grant.Fence))
			calls = append(calls, fmt.Sprintf("%s: %v, %v", id, held, err))
		})
		if ended, err := l.s.RevokeLease(t.Context(), "n", "k", grant.Fence); !ended || err != nil {
			t.Fatalf("RevokeLease: %v, %v", ended, err)
		}
		if len(calls) != 1 || calls[0] != "holder: false, <nil>" {
			t.Errorf("called with %q", calls)
		}
	})
}

func TestFencesOfLeases(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		last := time.Now().UnixMicro() - 1
		for i := range 2000 {
			req := leaseOf(4, fmt.Sprint(i))
			req.Fences = store.MaxFences
			grant := l.acquire(req, store.Granted)
			if grant.Fence <= last || i == 0 && grant.LastFence-grant.Fence != store.MaxFences-1 {
				t.Fatalf("fences %d to %d, after %d", grant.Fence, grant.LastFence, last)
			}
			last = grant.LastFence
			l.release(req, grant.Fence, store.Released)
		}
		// A store that is created later has larger fences.
		if lead := last - time.Now().UnixMicro(); lead > 15_000 {
			t.Errorf("the fences are %d µs ahead of the clock", lead)
		}
		least := last + 1_000_000
		ok(t, l.s.RaiseFence(t.Context(), "n", "k", least))
		if grant := l.acquire(leaseOf(4, "raised"), store.Granted); grant.Fence != least+1 {
			t.Errorf("fence %d, want %d", grant.Fence, least+1)
		}
	})
}

func TestListOfLeasesStopsWithItsContext(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		for i := range 1000 {
			req := leaseOf(1, "id")
			req.Key = fmt.Sprint(i)
			l.acquire(req, store.Granted)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := 0
		for _, err := range l.s.ListLeases(ctx, "n") {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("ListLeases: %v", err)
				}
				break
			}
			seen++
			cancel()
		}
		if seen == 0 || seen >= 1000 {
			t.Errorf("saw %d keys after the context had ended", seen)
		}
	})
}
