package zkstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// contest has goroutines of several stores compete for locks, and checks that no valid leases
// overlap, that fenced writes come in order, and that each goroutine gets its turn.
type contest struct {
	t    *testing.T
	keys []resource
	all  sync.WaitGroup
	ttl  time.Duration
}

// resource is what a lock protects.
type resource struct {
	mu     sync.Mutex
	holder *lock.Lease // nil if it was released
	last   int64       // the largest fence of a write
	grants int
	latest time.Time // of a grant
}

func newContest(t *testing.T, keys int) *contest {
	return &contest{t: t, keys: make([]resource, keys), ttl: 3 * time.Second}
}

// run starts goroutines on each store, which compete until ctx ends.
func (c *contest) run(ctx context.Context, goroutines int, stores ...*Store) {
	c.t.Helper()
	for _, s := range stores {
		l, err := lock.New(s, "locks", lock.WithTTL(c.ttl))
		must(c.t, err)
		for range goroutines {
			c.all.Go(func() {
				for ctx.Err() == nil {
					c.turn(ctx, l)
				}
			})
		}
	}
}

// turn acquires one of the locks, writes, and releases it.
func (c *contest) turn(ctx context.Context, l *lock.Locker) {
	i := rand.IntN(len(c.keys))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(50+rand.IntN(3000))*time.Millisecond)
	defer cancel()
	lease, err := l.Lock(ctx, fmt.Sprint(i))
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) {
			c.t.Errorf("Lock: %v", err)
		}
		if errors.Is(err, store.ErrUnavailable) {
			<-time.After(20 * time.Millisecond)
		}
		return
	}
	r := &c.keys[i]
	r.granted(c.t, lease)
	<-time.After(rand.N(10 * time.Millisecond))
	r.released(c.t, lease)
	if err := lease.Unlock(context.Background()); err != nil && !errors.Is(err, store.ErrUnavailable) &&
		!errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrExpired) {
		c.t.Errorf("Unlock: %v", err)
	}
}

func (r *resource) granted(t *testing.T, lease *lock.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !now.Before(lease.ValidUntil()) { // this goroutine was late
		return
	}
	if h := r.holder; h != nil && h.Context().Err() == nil && now.Before(h.ValidUntil()) {
		t.Errorf("fence %d was granted while %d was valid for %v more", lease.Fence().Number, h.Fence().Number, h.ValidUntil().Sub(now))
	}
	r.holder, r.latest = lease, now
	r.grants++
	if n := lease.Fence().Number; n > r.last {
		r.last = n
	} else {
		t.Errorf("a write with fence %d after one with %d", n, r.last)
	}
}

func (r *resource) released(t *testing.T, lease *lock.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holder != lease && lease.Context().Err() == nil {
		t.Errorf("fence %d is valid, and %d was granted", lease.Fence().Number, r.last)
	}
	if r.holder == lease {
		r.holder = nil
	}
}

// progress waits until every lock was granted after a time.
func (c *contest) progress(since time.Time, within time.Duration) {
	c.t.Helper()
	for i := range c.keys {
		r := &c.keys[i]
		testpace.Eventually(c.t, within, fmt.Sprintf("lock %d is granted again", i), func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.latest.After(since)
		})
	}
}

// end waits until all goroutines have ended, and checks that there were so many grants of each lock.
func (c *contest) end(least int) {
	c.t.Helper()
	c.all.Wait()
	for i := range c.keys {
		if n := c.keys[i].grants; n < least {
			c.t.Errorf("lock %d was granted %d times", i, n)
		}
	}
}
