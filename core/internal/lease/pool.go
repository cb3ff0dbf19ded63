package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Mechanism is the mechanism that a Pool serves.
type Mechanism struct {
	Kind string // of the store's names
	Name string
	Key  any // of a lease as a value in its context

	ErrReleased, ErrExpired, ErrLost, ErrInvalidKey, ErrNotAcquired error

	// Busy returns the error of a request that was not granted. It matches ErrNotAcquired.
	Busy func(Busy) error
	// Capacity returns the capacity for a request, and how much of it the request leaves to others, or
	// an error if the request is invalid.
	Capacity func(c *Config, key string, weight int) (capacity, reserve int, err error)
	// Alloc returns memory for a lease, with its owner set, and for a hold if it is the first of
	// one.
	Alloc func(first bool) (*Lease, *Hold)
	// Reenter returns the lease that ctx already has, an error, or neither. It may be nil.
	Reenter func(ctx context.Context, key string, weight int) (*Lease, error)

	Telemetry *telemetry.Acquisitions
	Leases    *telemetry.Leases
}

// Busy describes a request that was not granted.
type Busy struct {
	Holder          string // the label
	InUse, Capacity int
	Waiting         int           // earlier waiters
	Remaining       time.Duration // until room may appear by itself
	Full            bool          // the queue has no room for it
	Cause           error         // of the end of its wait; nil if it did not wait
}

// Pool is a process's part of the leases of one mechanism: it requests, queues, renews, hands on
// and releases them.
type Pool struct {
	Mechanism
	store    store.Leases
	name     string // with the kind
	keeper   *Keeper[*Hold]
	releases *background.Releaser
	calls    background.Group // that may still get a grant, or release one
	detach   []func()
	renewed  background.Group // holds that are renewed
	closed   atomic.Bool      // Close was called

	closing context.Context // ends when the pool is closed, or its store is shut down
	close   context.CancelFunc

	mu        sync.Mutex
	holds     map[string]*Hold  // by ID
	queues    map[string]*queue // by key; those of a key are linked
	spare     []*queue
	inUse     int // the weights of all holds
	peak      int // the largest inUse since the last call of Peak
	shutdowns int // in progress
}

// NewPool returns an empty pool. A pool that is dropped without Close is collected when it has no
// holds, requests or unconfirmed releases, which refer to it. Its store does not refer to it.
func NewPool(st store.Leases, m Mechanism) *Pool {
	p := &Pool{Mechanism: m, store: st, name: m.Kind + m.Name, holds: make(map[string]*Hold), queues: make(map[string]*queue)}
	p.keeper = NewKeeper(p.renew)
	p.releases = background.NewReleaser(p.release)
	p.closing, p.close = context.WithCancel(context.Background())
	p.detach = []func(){hooks.AtShutdown(p, st.AtShutdown, (*Pool).shutdown)}
	if able, ok := st.(store.LeaseRevoker); ok {
		p.detach = append(p.detach, hooks.NotifyLost(p, able.NotifyLost, (*Pool).notifyLost))
	}
	return p
}

// renew renews holds in a batch.
func (p *Pool) renew(ctx context.Context, holds []*Hold) ([]bool, error) {
	renewed, err := p.store.RenewLeases(ctx, refs(holds))
	p.Leases.Renewed(ctx, renewed, len(holds), err)
	return renewed, err
}

// release releases leases in the background. It refers to the pool, so that a shutdown waits for
// unconfirmed releases.
func (p *Pool) release(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	return p.store.ReleaseLeases(ctx, refs)
}

// Peak returns the largest sum of the weights of all holds since its last call.
func (p *Pool) Peak() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	peak := p.peak
	p.peak = p.inUse
	return peak
}

// notifyLost is called by the store when a hold has ended.
func (p *Pool) notifyLost(id string) {
	p.mu.Lock()
	h := p.holds[id]
	p.mu.Unlock()
	if h != nil {
		h.Lost()
	}
}

func refs(holds []*Hold) []store.LeaseRef {
	refs := make([]store.LeaseRef, len(holds))
	for i, h := range holds {
		refs[i] = h.ref[0]
	}
	return refs
}

// closeTimeout is how long Close waits for holders, and for the store.
const closeTimeout = 5 * time.Second

// Close is a shutdown of at most 5 s. The second call does nothing.
func (p *Pool) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := p.shutdown(ctx)
	for _, f := range p.detach {
		f()
	}
	return err
}

// shutdown first ends the process's own requests and withdraws its places, so that it gets no more
// grants. It ends the contexts of its holds. Then it waits for their release, and renews them until
// ctx ends. A hold that still has a holder then expires: a release would let another holder begin
// beside it. Holds that are not renewed expire anyway, and are not waited for.
func (p *Pool) shutdown(ctx context.Context) error {
	p.close()
	p.mu.Lock()
	p.shutdowns++
	for _, q := range p.queues {
		for ; q != nil; q = q.next {
			p.withdraw(q, 0) // places first
		}
	}
	holds := slices.Collect(maps.Values(p.holds))
	p.mu.Unlock()
	for _, h := range holds {
		h.term.Stop(store.ErrClosed)
	}
	_ = p.calls.Wait(ctx) // one that is granted now is released, or has begun
	held := p.awaitHolders(ctx)
	inFlight := p.calls.Wait(ctx) // releases
	p.keeper.Rest()
	return errors.Join(held, inFlight, p.releases.Wait(ctx), p.releases.Drain(ctx))
}

// awaitHolders waits until all renewed holds were released or lost. The renewals end when the last
// shutdown's ctx ends.
func (p *Pool) awaitHolders(ctx context.Context) error {
	err := p.renewed.Wait(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shutdowns--; err == nil {
		return nil
	}
	left := 0
	for _, h := range p.holds {
		if !h.config.Renew {
			continue
		}
		if left++; p.shutdowns == 0 {
			h.term.Lapse()
			p.keeper.Watch(h, h.term.ValidUntil())
		}
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("%d leases are not released by their holders, and last until they expire: %w", left, context.Cause(ctx))
}
