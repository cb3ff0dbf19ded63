package semaphore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/errand"
	"github.com/lockkeeper/lockkeeper/core/internal/redo"
	"github.com/lockkeeper/lockkeeper/core/internal/renewal"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// fallback is what [WithFallback] sets.
type fallback struct {
	store store.Permits
	share float64
}

// pool is the permits that the process has from one store.
type pool struct {
	store   store.Permits
	leased  bool // they expire unless they are renewed
	newID   func() string
	keeper  *renewal.Keeper[*hold]
	returns *batch.Queue[store.PermitRef]
	undo    *redo.Releases[store.PermitRef]
	calls   errand.Group // to release
	detach  func()

	telemetry *telemetry.Semaphore
	leases    *telemetry.Leases

	mu    sync.Mutex
	holds []*hold
}

// poolOf returns the pool of a store: the same one if a store is named again.
func (c *core) poolOf(st store.Permits) *pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reflect.ValueOf(st).Comparable() {
		for _, p := range c.pools {
			if p.store == st {
				return p
			}
		}
	}
	return c.addPool(st, naming.NewID)
}

// localPool returns the pool of a store in the process.
func (c *core) localPool() *pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local == nil {
		st := newLocalStore()
		c.local = c.addPool(st, st.newID)
		c.local.leased = false
	}
	return c.local
}

// addPool is called with mu held.
func (c *core) addPool(st store.Permits, newID func() string) *pool {
	p := &pool{store: st, leased: true, newID: newID, telemetry: c.telemetry, leases: c.leases}
	p.keeper = renewal.NewKeeper(p.renew)
	p.returns = batch.NewQueue(p.releaseAll)
	p.undo = redo.NewReleases(p.releaseEach)
	shutdown := p.shutdown
	if len(c.pools) == 0 { // without its store the Semaphore is closed; without a fallback it is not
		shutdown = c.shutdown
	}
	p.detach = st.AtShutdown(shutdown)
	c.pools = append(c.pools, p)
	return p
}

// renew renews permits in one batch.
func (p *pool) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	renewed, err := renewal.Due(ctx, holds, func(h *hold) store.PermitRef { return h.req }, p.store.RenewPermits)
	p.leases.Renewed(ctx, renewed, len(holds), err)
	return renewed, err
}

// add keeps a permit in mind until it is forgotten. If it is no lease, and longest is not zero, it ends
// after that.
func (p *pool) add(h *hold, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.index = len(p.holds)
	p.holds = append(p.holds, h)
	p.telemetry.Active(context.Background(), h.weight)
	if !p.leased && longest > 0 {
		h.alarm = time.AfterFunc(longest, h.expire)
	}
}

// forget ends the renewal of a permit. It may be called again.
func (p *pool) forget(h *hold) {
	if p.leased {
		p.keeper.Remove(h)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.index < 0 {
		return
	}
	last := len(p.holds) - 1
	p.holds[h.index] = p.holds[last]
	p.holds[h.index].index = h.index
	p.holds[last] = nil
	p.holds = p.holds[:last]
	h.index = -1
	p.telemetry.Active(context.Background(), -h.weight)
	if h.alarm != nil {
		h.alarm.Stop()
	}
}

// release gives a permit back to the store, whatever the caller's context says. It reports whether the
// store still had it. If the store does not answer, it is asked again in the background.
func (p *pool) release(ctx context.Context, req store.PermitRef) (bool, error) {
	p.calls.Begin()
	defer p.calls.End()
	reqs := []store.PermitRef{req}
	held, err := p.store.ReleasePermits(context.WithoutCancel(ctx), reqs)
	if err != nil {
		p.giveBackLater(reqs)
		return false, err
	}
	return len(held) == 1 && held[0], nil
}

// giveBack releases, in the background, what nobody wants any more: a permit, a place in the queue, or
// a request of which nothing is known. If there is too much of that, it expires.
func (p *pool) giveBack(req store.PermitRef) {
	if p.leased {
		if !p.returns.Add(req) {
			p.giveBackLater([]store.PermitRef{req})
		}
		return
	}
	_, _ = p.release(context.Background(), req)
}

// releaseAll releases a batch of what was given back.
func (p *pool) releaseAll(reqs []store.PermitRef) {
	if held, err := p.store.ReleasePermits(context.Background(), reqs); err != nil {
		p.giveBackLater(unknown(reqs, held))
	}
}

// giveBackLater goes on until the store confirms it, or the last of the leases is over anyway.
func (p *pool) giveBackLater(reqs []store.PermitRef) {
	longest := time.Duration(0)
	for _, req := range reqs {
		longest = max(longest, req.TTL)
	}
	p.undo.Add(time.Now().Add(longest+time.Second), reqs...)
}

// releaseEach releases permits, and returns those that are left after an error.
func (p *pool) releaseEach(ctx context.Context, reqs []store.PermitRef) ([]store.PermitRef, error) {
	held, err := p.store.ReleasePermits(ctx, reqs)
	if err != nil {
		return unknown(reqs, held), err
	}
	return nil, nil
}

// unknown are those of some requests that the store, in an answer with an error, has not confirmed.
func unknown(reqs []store.PermitRef, held []bool) []store.PermitRef {
	var left []store.PermitRef
	for i, req := range reqs {
		if i >= len(held) || !held[i] {
			left = append(left, req)
		}
	}
	return left
}

const (
	// maxReleases is how many permits shutdown releases in a call, and maxCalls in how many calls at a
	// time.
	maxReleases = 100
	maxCalls    = 16
)

// shutdown releases what is held, and finishes what is in flight.
func (p *pool) shutdown(ctx context.Context) error {
	p.mu.Lock()
	holds := slices.Clone(p.holds)
	p.mu.Unlock()
	var reqs []store.PermitRef
	for _, h := range holds {
		if h.end() {
			reqs = append(reqs, h.req)
		}
	}

	var (
		wg     sync.WaitGroup
		room   = make(chan struct{}, maxCalls)
		mu     sync.Mutex
		closed error
	)
	for part := range slices.Chunk(reqs, maxReleases) {
		if ctx.Err() != nil { // no time is left to wait for the store
			p.giveBackLater(part)
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			held, err := p.store.ReleasePermits(context.WithoutCancel(ctx), part)
			switch {
			case errors.Is(err, store.ErrClosed):
				mu.Lock()
				closed = err
				mu.Unlock()
			case err != nil:
				p.giveBackLater(unknown(part, held))
			}
		})
	}
	wg.Wait()
	p.keeper.Rest()
	return errors.Join(closed, p.calls.Wait(ctx), p.returns.Wait(ctx), p.undo.Drain(ctx))
}
