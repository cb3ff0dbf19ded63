package semaphore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/errand"
	"github.com/lockkeeper/lockkeeper/core/internal/redo"
	"github.com/lockkeeper/lockkeeper/core/internal/renewal"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// pool is the permits that the process has from one store.
type pool struct {
	store   store.Permits
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

func newPool(st store.Permits, t *telemetry.Semaphore, leases *telemetry.Leases) *pool {
	p := &pool{store: st, telemetry: t, leases: leases}
	p.keeper = renewal.NewKeeper(p.renew)
	p.returns = batch.NewQueue(p.releaseAll)
	p.undo = redo.NewReleases(p.releaseEach)
	return p
}

// renew renews permits in one batch.
func (p *pool) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	renewed, err := renewal.Due(ctx, holds, func(h *hold) store.PermitRef { return h.req }, p.store.RenewPermits)
	p.leases.Renewed(ctx, renewed, len(holds), err)
	return renewed, err
}

// add registers a permit until it is forgotten.
func (p *pool) add(h *hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.index = len(p.holds)
	p.holds = append(p.holds, h)
	p.telemetry.Active(context.Background(), h.weight)
}

// forget ends the renewal of a permit. It may be called again.
func (p *pool) forget(h *hold) {
	p.keeper.Remove(h)
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
	if !p.returns.Add(req) {
		p.giveBackLater([]store.PermitRef{req})
	}
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
