package fallback

import (
	"context"
	"errors"
	"iter"
	"math"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// Permits returns a store of permits that sends to standIn, usually a store in memory, the requests
// that primary cannot answer: those that fail with an outage ([store.Down]) while their context lasts.
// A full, misconfigured or closed primary is not down. A permit stays in the store that granted it.
//
// In the stand-in the capacity is the share of the whole that this process may have, rounded down, and
// at least 1; share is above 0 and at most 1. A process that cannot reach the store does not know
// what the others do, so this bounds each of them, and the fleet only by their sum: together with the
// permits that primary granted before, more than the capacity may be in use, even if the shares add up
// to 1. Choose one divided by the number of processes, where that is known.
//
// A request for more than the share, or that the stand-in fails too, returns primary's error. Inspect
// and List report primary alone. The result is shut down and closed with primary.
//
// Permits returns an error for a nil store and for a share out of its range.
func Permits(primary, standIn store.Permits, share float64) (store.Permits, error) {
	if err := check("Permits", primary, standIn, share); err != nil {
		return nil, err
	}
	p := &permits{
		register: registerOf(primary), primary: primary, standIn: standIn, share: share, began: time.Now(),
		moved: expiry.NewTable[string, struct{}](maxMoved, nil),
	}
	p.withdrawals = background.NewReleaser(primary.ReleasePermits, func(ref store.PermitRef) time.Duration { return ref.TTL })
	return p, nil
}

const (
	// maxMoved bounds how many requests of this process the stand-in has at a time.
	maxMoved = 1 << 20
	// slack is for how long after its lease, or its release, a request is still known to be the
	// stand-in's, since a step may be late or repeated.
	slack = time.Minute
)

type permits struct {
	primary, standIn store.Permits
	share            float64
	register

	// On primary, of requests that it may have granted or queued, and that moved to the stand-in.
	withdrawals *background.Releaser[store.PermitRef]

	began time.Time
	mu    sync.Mutex
	moved expiry.Table[string, struct{}] // IDs of the requests that the stand-in has
}

var _ store.Permits = (*permits)(nil)

// AcquirePermits implements store.Permits.
func (p *permits) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	if p.has(req.ID) {
		return p.acquireInstead(ctx, req)
	}
	reply, err := p.primary.AcquirePermits(ctx, req)
	if !store.Down(err) || ctx.Err() != nil {
		return reply, err
	}
	if errors.Is(err, store.ErrUnconfirmed) {
		p.withdrawals.Add(req.Ref())
	}
	return p.move(ctx, req, err)
}

// AwaitPermits implements store.Permits. A request that loses its place in primary to an outage joins
// the stand-in's queue.
func (p *permits) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	if !p.has(req.ID) {
		grant, err := p.primary.AwaitPermits(ctx, req)
		if !store.Down(err) || ctx.Err() != nil {
			return grant, err
		}
		p.withdrawals.Add(req.Ref())
		queued := req
		queued.Queue, queued.MaxWaiting = true, 0 // it had a place
		reply, moveErr := p.move(ctx, queued, err)
		switch {
		case moveErr != nil:
			return store.Grant{}, moveErr
		case reply.Outcome == store.Granted:
			return reply.Grant, nil
		case reply.Outcome != store.Queued:
			return store.Grant{}, err
		}
	}
	grant, err := p.standIn.AwaitPermits(ctx, p.part(req))
	if err == nil {
		p.keep(req.ID, req.TTL+slack)
	}
	return grant, err
}

// move sends a request to the stand-in that primary has failed with an error.
func (p *permits) move(ctx context.Context, req store.PermitRequest, err error) (store.PermitReply, error) {
	if !p.keep(req.ID, math.MaxInt64) {
		return store.PermitReply{}, err
	}
	reply, standInErr := p.acquireInstead(ctx, req)
	nothingLeft := reply.Outcome == store.Taken || reply.Outcome == store.Withdrawn
	if standInErr != nil {
		nothingLeft = !errors.Is(standInErr, store.ErrUnconfirmed) && ctx.Err() == nil
	}
	if nothingLeft {
		p.forget(req.ID)
	}
	if errors.Is(standInErr, store.ErrUnavailable) {
		return reply, none(err, standInErr)
	}
	return reply, standInErr
}

// acquireInstead sends to the stand-in a request that is its own.
func (p *permits) acquireInstead(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	part := p.part(req)
	if part.Weight > part.Capacity {
		return store.PermitReply{}, errShare
	}
	reply, err := p.standIn.AcquirePermits(ctx, part)
	if err == nil && reply.Outcome == store.Granted {
		p.keep(req.ID, req.TTL+slack)
	}
	return reply, err
}

// RenewPermits implements store.Permits.
func (p *permits) RenewPermits(ctx context.Context, refs []store.PermitRef) ([]bool, error) {
	return p.split(refs, func(st store.Permits, moved bool, refs []store.PermitRef) ([]bool, error) {
		held, err := st.RenewPermits(ctx, refs)
		for i, ref := range refs {
			if moved && i < len(held) && held[i] {
				p.keep(ref.ID, ref.TTL+slack)
			}
		}
		return held, err
	})
}

// ReleasePermits implements store.Permits.
func (p *permits) ReleasePermits(ctx context.Context, refs []store.PermitRef) ([]bool, error) {
	return p.split(refs, func(st store.Permits, moved bool, refs []store.PermitRef) ([]bool, error) {
		held, err := st.ReleasePermits(ctx, refs)
		if moved && err == nil {
			for _, ref := range refs {
				p.keep(ref.ID, slack)
			}
		}
		return held, err
	})
}

// split calls f for the references of each store, the stand-in's (moved) first, since primary may be
// slow to fail. It returns the results in the order of refs.
func (p *permits) split(refs []store.PermitRef, f func(store.Permits, bool, []store.PermitRef) ([]bool, error)) ([]bool, error) {
	var (
		parts   [2][]store.PermitRef // the stand-in's, primary's
		indexes [2][]int
		held    = make([]bool, len(refs))
		failed  error
	)
	for i, ref := range refs {
		of := 1
		if p.has(ref.ID) {
			of = 0
		}
		parts[of], indexes[of] = append(parts[of], ref), append(indexes[of], i)
	}
	for of, st := range []store.Permits{p.standIn, p.primary} {
		if len(parts[of]) == 0 {
			continue
		}
		results, err := f(st, of == 0, parts[of])
		for j, result := range results {
			held[indexes[of][j]] = result
		}
		failed = errors.Join(failed, err)
	}
	return held, failed
}

// InspectPermits implements store.Permits: it reports primary.
func (p *permits) InspectPermits(ctx context.Context, name, key string) (store.SemaphoreState, error) {
	return p.primary.InspectPermits(ctx, name, key)
}

// ListPermits implements store.Permits: it reports primary.
func (p *permits) ListPermits(ctx context.Context, name string) iter.Seq2[store.SemaphoreState, error] {
	return p.primary.ListPermits(ctx, name)
}

// AtShutdown implements store.Hooks: f is called by primary's Shutdown.
func (p *permits) AtShutdown(f func(context.Context) error) (remove func()) {
	return p.primary.AtShutdown(func(ctx context.Context) error {
		return errors.Join(f(ctx), p.withdrawals.Wait(ctx), p.withdrawals.Drain(ctx))
	})
}

// part returns a request with this process's share of its capacity.
func (p *permits) part(req store.PermitRequest) store.PermitRequest {
	if p.share < 1 {
		const rounding = 1e-6 // 0.29 of 100 is 28.999999999999996
		req.Capacity = max(1, int(math.Floor(float64(req.Capacity)*p.share+rounding)))
	}
	return req
}

func (p *permits) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved.Len() > 0 && p.moved.Get(id, p.now()) != nil
}

// keep records that the stand-in has a request, for a time. It reports false if there is no room.
func (p *permits) keep(id string, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	expires := int64(math.MaxInt64)
	if d < math.MaxInt64 {
		expires = now + int64(d)
	}
	if e := p.moved.Get(id, now); e != nil {
		e.Expires = expires
		return true
	}
	if !p.moved.Room(1, now) {
		return false
	}
	p.moved.Add(id, struct{}{}, expires, now)
	return true
}

func (p *permits) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved.Remove(id)
}

func (p *permits) now() int64 { return int64(time.Since(p.began)) }
