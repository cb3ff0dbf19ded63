package servertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// faultTTL is a lease that is not lost on a busy machine before a fault begins. Within it several
// renewals fail, each after faultTimeout.
const (
	faultTTL     = 3 * time.Second
	faultTimeout = 500 * time.Millisecond
)

// behindProxy returns a peer with a proxy before its server, and one without.
func behindProxy(t *testing.T) (proxied, direct peer, proxy *redistest.Proxy) {
	t.Helper()
	server := redistest.Start(t)
	proxy = redistest.NewProxy(t, server.Addr())
	client := connect(t, proxy.Addr())
	st := newStore(t, client, redisstore.WithTimeout(faultTimeout))
	return peer{newLocker(t, st, lock.WithTTL(faultTTL)), st, client}, newPeer(t, server, lock.WithTTL(faultTTL)), proxy
}

// renewedLock returns a lease that the store has renewed. On a busy machine a call may be too slow
// for the store, or all renewals of a lease for the lease, so that it takes several.
func renewedLock(t *testing.T, p peer, key string) (renewed *lock.Lease) {
	t.Helper()
	eventually(t, "a lease is renewed", func() bool {
		lease, err := p.Lock(t.Context(), key)
		if err != nil {
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("Lock: %v", err)
			}
			return false
		}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for first := lease.ValidUntil(); !lease.ValidUntil().After(first); {
			select {
			case <-tick.C:
			case <-lease.Context().Done():
				_ = lease.Unlock(t.Context())
				return false
			}
		}
		renewed = lease
		return true
	})
	return renewed
}

// However renewals fail, the context of a lease ends before the server may grant the lock to
// another.
func TestContextEndsBeforeTheKeyDoes(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*redistest.Proxy){
		"black hole":   (*redistest.Proxy).BlackHole,
		"cut":          func(p *redistest.Proxy) { p.BlackHole(); p.CutAll() },
		"late replies": func(p *redistest.Proxy) { p.Delay(2 * time.Second) },
		"lost replies": func(p *redistest.Proxy) {
			p.LoseReplies("evalsha", -1, redistest.Silence)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxied, direct, proxy := behindProxy(t)
			lease := renewedLock(t, proxied, "k")
			fault(proxy)
			// The reply describes the lease at some time after the request was sent, so kept is not
			// after its end on the server, however busy the machine is.
			var kept time.Time
			eventually(t, "the lease's context ends", func() bool {
				sent := time.Now()
				state, err := direct.Inspect(t.Context(), "k")
				if err != nil {
					t.Error(err)
				}
				if len(state.Holders) == 1 && state.Holders[0].Fence <= lease.Fence().Number {
					if until := sent.Add(state.Holders[0].Remaining); until.After(kept) {
						kept = until
					}
				}
				return lease.Context().Err() != nil
			})
			if end := lease.ValidUntil(); !end.Before(kept) {
				t.Errorf("the context ended %v after the lease on the server", end.Sub(kept))
			}
			if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrExpired) {
				t.Errorf("cause %v", cause)
			}
			next := must(direct.Lock(t.Context(), "k")) // after the lease
			if next.Fence().Number <= lease.Fence().Number {
				t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
			}
			mustUnlock(t, next)
			proxy.Mend()
			_ = lease.Unlock(t.Context())
		})
	}
}

// Lost replies block no caller for longer than a lease, for a busy machine a few seconds more: an
// orphan would be renewed for as long as its process lives.
func TestLostRepliesLeaveNoOrphans(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"cut": redistest.Cut, "silence": redistest.Silence} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxied, direct, proxy := behindProxy(t)
			_ = renewedLock(t, proxied, "warm").Unlock(t.Context())
			for range 10 {
				proxy.LoseReplies("evalsha", 1, loss) // of the acquire
				lease, err := proxied.Lock(t.Context(), "k")
				if err != nil {
					if !errors.Is(err, store.ErrUnavailable) {
						t.Fatalf("Lock: %v", err)
					}
					continue
				}
				wantValid(t, lease)
				proxy.LoseReplies("evalsha", 1, loss) // of the release
				if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("Unlock: %v", err)
				}
			}
			proxy.Mend()
			began := time.Now()
			lease := mustLock(t, direct.Locker, "k")
			if took := time.Since(began); took > faultTTL+patience {
				t.Errorf("the lock was free after %v", took)
			}
			mustUnlock(t, lease)
		})
	}
}

// While the server is silent, TryLock does not report another holder of a lock whose state is
// unknown. The test is not parallel, since it leaves no CPU time to others.
func TestTryLockWhileTheServerIsSilent(t *testing.T) {
	proxied, _, proxy := behindProxy(t)
	_ = renewedLock(t, proxied, "k").Unlock(t.Context())
	proxy.BlackHole()
	var (
		wg   sync.WaitGroup
		held atomic.Int64
	)
	for range 4000 {
		wg.Go(func() {
			_, err := proxied.TryLock(t.Context(), "k")
			if errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, store.ErrUnavailable) {
				held.Add(1)
			}
		})
	}
	wg.Wait()
	if n := held.Load(); n > 0 {
		t.Errorf("%d of 4000 calls do not return ErrUnavailable", n)
	}
	proxy.Mend()
}
