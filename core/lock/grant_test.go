package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// pushing is a store whose waiters are granted a short time, as by a push.
type pushing struct {
	*wiretap
	mu      sync.Mutex
	granted time.Time
	renewed []time.Duration // since the grant
	down    int             // how many renewals fail
}

const pushed = 2 * time.Second

func (p *pushing) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	grant, err := p.wiretap.AwaitLease(ctx, req)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granted = time.Now()
	if !req.Confirmed {
		grant.TTL, grant.Untaken = pushed, true
	}
	return grant, err
}

func (p *pushing) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewed = append(p.renewed, time.Since(p.granted))
	if p.down--; p.down >= 0 {
		return nil, errDown
	}
	return p.wiretap.RenewLeases(ctx, refs)
}

// renewals returns when the renewals were sent, and has the next ones fail.
func (p *pushing) renewals(down int) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.renewed
	p.renewed, p.down = nil, down
	return sent
}

// waited returns a lease of another process's lock, after a wait.
func waited(t *testing.T, p *pushing, opts ...lock.Option) *lock.Lease {
	t.Helper()
	held := mustLock(t, newLocker(t, p), "k")
	waits := start(func() (*lock.Lease, error) { return newLocker(t, p, opts...).Lock(t.Context(), "k") })
	mustUnlock(t, held)
	if !waits.returned() || waits.err != nil {
		t.Fatalf("Lock: %v", waits.err)
	}
	return waits.lease
}

// A pushed grant is taken up by its first renewal, which is repeated, and then renewed as others are.
func TestPushedGrant(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		opts []lock.Option
		down int
		want []time.Duration
	}{
		"renewed":         {nil, 0, []time.Duration{50 * ms, 50*ms + ttl/3}},
		"repeated":        {nil, 3, []time.Duration{50 * ms, 300 * ms, 550 * ms, 800 * ms, 800*ms + ttl/3}},
		"without renewal": {[]lock.Option{lock.WithoutRenewal()}, 0, []time.Duration{50 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				p := &pushing{wiretap: w, down: c.down}
				lease := waited(t, p, c.opts...)
				if left := time.Until(lease.ValidUntil()); left > pushed {
					t.Errorf("valid for %v", left)
				}
				time.Sleep(ttl/3 + time.Second)
				wantValid(t, lease)
				if sent := p.renewals(0); !slices.Equal(sent, c.want) {
					t.Errorf("renewed after %v, want %v", sent, c.want)
				}
				if left := time.Until(lease.ValidUntil()); left < ttl/2 {
					t.Errorf("valid for %v", left)
				}
				time.Sleep(ttl)
				if c.opts != nil {
					wantEnded(t, lease, lock.ErrExpired)
					return
				}
				mustUnlock(t, lease)
				wantFree(t, w, "k")
			})
		})
	}
}

// A pushed grant that is not taken up ends with its own time, and a short hold takes up nothing.
func TestPushedGrantThatIsNotTakenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		p := &pushing{wiretap: w, down: 100}
		lease := waited(t, p)
		time.Sleep(pushed)
		wantEnded(t, lease, lock.ErrExpired)
		if n := len(p.renewals(0)); n < 7 || n > 8 {
			t.Errorf("%d tries", n)
		}
		_ = lease.Unlock(t.Context())
		lease = waited(t, p)
		time.Sleep(49 * time.Millisecond)
		mustUnlock(t, lease)
		time.Sleep(ttl)
		if sent := p.renewals(0); len(sent) > 0 {
			t.Errorf("renewed after %v", sent)
		}
	})
}

// A lease that the store reports as lost is released at once: a late renewal would hold without a
// holder.
func TestLostLeaseIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w), "k")
		w.lose(t)
		released := w.Calls(storetest.ReleaseLeases)
		time.Sleep(ttl/3 + time.Second)
		wantEnded(t, lease, lock.ErrLost)
		if n := w.Calls(storetest.ReleaseLeases) - released; n != 1 {
			t.Errorf("released %d times", n)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// With a lock-delay the holder's deadline is the lease, the store's is later, and Unlock after the
// lease is too late.
func TestLockDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		const delay = time.Minute
		l := newLocker(t, w, lock.WithLockDelay(delay))
		lease := mustLock(t, l, "k")
		if left := time.Until(lease.ValidUntil()); left > ttl {
			t.Errorf("valid for %v", left)
		}
		for name, other := range map[string]*lock.Locker{"in the process": l, "another": newLocker(t, w)} {
			var held *lock.HeldError
			if _, err := other.TryLock(t.Context(), "k"); !errors.As(err, &held) || held.Remaining <= delay {
				t.Errorf("%s: %v, %+v", name, err, held)
			}
		}
		mustUnlock(t, lease) // without a delay

		w.Hook(storetest.Failing(errDown, storetest.RenewLeases), nil)
		lease = mustLock(t, l, "k")
		next := start(func() (*lock.Lease, error) { return newLocker(t, w).Lock(t.Context(), "k") })
		time.Sleep(ttl + delay/2)
		wantEnded(t, lease, lock.ErrExpired)
		if next.returned() {
			t.Fatal("granted during the delay")
		}
		w.Hook(nil, nil)
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrExpired) {
			t.Errorf("Unlock during the delay: %v", err)
		}
		if !next.returned() || next.err != nil { // the holder says that it has finished
			t.Fatalf("the next: %v", next.err)
		}
		mustUnlock(t, next.lease)
	})
}

// unsure is a store that says of every release that the hold has ended.
type unsure struct{ *wiretap }

func (s unsure) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	was, err := s.wiretap.ReleaseLeases(ctx, refs)
	clear(was)
	return was, err
}

// A release that may be a repeat counts as one while the lease lasts.
func TestReleaseThatMayBeARepeat(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, unsure{w}, lock.WithoutRenewal())
		mustUnlock(t, mustLock(t, l, "k"))
		lease := mustLock(t, l, "k")
		time.Sleep(time.Until(lease.ValidUntil()))
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("after the lease: %v", err)
		}
	})
}

// With WithFair every caller has its own place in the store, and nothing is handed on.
func TestFairCallersHaveTheirOwnPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithFair(), lock.WithHolder("me"))
		held := mustLock(t, l, "k")
		var waiting []*pending
		for range 3 {
			waiting = append(waiting, start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") }))
		}
		time.Sleep(time.Second)
		state := must(l.Inspect(t.Context(), "k"))
		if want := (lock.Waiter{Label: "me", Age: time.Second}); len(state.Waiters) != 3 || state.Waiters[0] != want || state.Holders[0].Age != time.Second {
			t.Errorf("%+v", state)
		}
		for _, p := range waiting {
			mustUnlock(t, held)
			synctest.Wait()
			if !p.returned() || p.err != nil {
				t.Fatalf("%v", p.err)
			}
			held = p.lease
		}
		mustUnlock(t, held)
		if n := w.Calls(storetest.ReleaseLeases); n != 4 {
			t.Errorf("%d releases of 4 leases", n)
		}
	})
}
