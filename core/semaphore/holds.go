package semaphore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// pool is the permits that the process has from one store.
type pool struct {
	store    store.Permits
	keeper   *lease.Keeper[*hold]
	releases *background.Releaser[store.PermitRef]
	calls    background.Group // to release

	telemetry *telemetry.Semaphore
	leases    *telemetry.Leases

	mu    sync.Mutex
	holds []*hold
}

func newPool(st store.Permits, t *telemetry.Semaphore, leases *telemetry.Leases) *pool {
	p := &pool{store: st, telemetry: t, leases: leases}
	p.keeper = lease.NewKeeper(p.renew)
	p.releases = background.NewReleaser(st.ReleasePermits, func(ref store.PermitRef) time.Duration { return ref.TTL })
	return p
}

// renew renews permits in a batch.
func (p *pool) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	renewed, err := lease.Due(ctx, holds, func(h *hold) store.PermitRef { return h.req }, p.store.RenewPermits)
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

// forget removes a permit from the local state, and ends its renewal. It may be called again.
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

// release releases a permit in the store, even if ctx is cancelled. It reports whether the store
// still had it. If the store does not reply, the release is retried in the background.
func (p *pool) release(ctx context.Context, req store.PermitRef) (bool, error) {
	p.calls.Begin()
	defer p.calls.End()
	reqs := []store.PermitRef{req}
	held, err := p.store.ReleasePermits(context.WithoutCancel(ctx), reqs)
	if err != nil {
		p.releases.Retry(reqs, nil)
		return false, err
	}
	return len(held) == 1 && held[0], nil
}

// releaseAsync releases a permit, a place in the queue, or a request without a reply, in the
// background. If there are too many, they expire.
func (p *pool) releaseAsync(req store.PermitRef) { p.releases.Add(req) }

const (
	// maxReleases is how many permits shutdown releases in a call, and maxCalls in how many calls
	// at a time.
	maxReleases = 100
	maxCalls    = 16
)

// shutdown releases the held permits, and waits for releases in flight.
func (p *pool) shutdown(ctx context.Context) error {
	p.mu.Lock()
	holds := slices.Clone(p.holds)
	p.mu.Unlock()
	var reqs []store.PermitRef
	for _, h := range holds {
		if h.endLocal() {
			reqs = append(reqs, h.req)
		}
	}

	var (
		wg     sync.WaitGroup
		slots  = make(chan struct{}, maxCalls)
		mu     sync.Mutex
		closed error
	)
	for part := range slices.Chunk(reqs, maxReleases) {
		if ctx.Err() != nil { // no time left to wait for the store
			p.releases.Retry(part, nil)
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			held, err := p.store.ReleasePermits(context.WithoutCancel(ctx), part)
			switch {
			case errors.Is(err, store.ErrClosed):
				mu.Lock()
				closed = err
				mu.Unlock()
			case err != nil:
				p.releases.Retry(part, held)
			}
		})
	}
	wg.Wait()
	p.keeper.Rest()
	return errors.Join(closed, p.calls.Wait(ctx), p.releases.Wait(ctx), p.releases.Drain(ctx))
}
