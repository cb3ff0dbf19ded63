package fallback

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// Leases returns a store of leases with a stand-in. It sends a semaphore's request that fails on
// primary with an outage ([store.Down]), while its context lasts, to standIn, usually a store in
// memory. A full, overloaded, misconfigured or closed primary is not down. A permit stays in the
// store that granted it. Locks are primary's alone: a lock that primary cannot see would not
// exclude anything.
//
// In the stand-in the capacity is the share of the whole that this process may have, rounded down,
// and at least 1; share is above 0 and at most 1. A reserve is scaled likewise. Without primary the
// processes do not know of each other, so the share bounds each process, and the fleet only by the
// sum of the shares. Permits that primary granted before add to that: more than the capacity may be
// in use, even if the shares add up to 1. Choose one divided by the number of processes, if it is
// known.
//
// If the request is for more than the share, or the stand-in fails too, the error is primary's.
// Inspect, List and ForceRelease reach primary alone. The result is shut down and closed with
// primary.
//
// Leases returns an error for a nil store and for a share out of its range.
func Leases(primary, standIn store.Leases, share float64) (store.Leases, error) {
	if err := check("Leases", primary, standIn, share); err != nil {
		return nil, err
	}
	return &leases{
		primary: primary, standIn: standIn, share: share, register: registerOf(primary), began: time.Now(),
		moved:       expiry.NewTable[string, struct{}](maxMoved, nil),
		withdrawals: background.NewReleaser(primary.ReleaseLeases),
	}, nil
}

const (
	// maxMoved bounds how many requests of this process the stand-in has at a time.
	maxMoved = 1 << 20
	// slack is for how long after its lease, or its release, a request still counts as the
	// stand-in's, since a step may be late or repeated.
	slack = time.Minute
)

// leases is a store of leases with a stand-in. It inherits other methods from primary.
type leases struct {
	primary
	standIn store.Leases
	share   float64
	register

	// withdrawals are releases on primary of requests that moved to the stand-in, and that primary
	// may have granted or queued.
	withdrawals *background.Releaser

	began time.Time
	mu    sync.Mutex
	moved expiry.Table[string, struct{}] // IDs of the requests that the stand-in has
}

// primary is an alias, so that the field is not exported.
type primary = store.Leases

var (
	_ store.Leases          = (*leases)(nil)
	_ store.LeaseDowngrader = (*leases)(nil)
	_ store.LeaseVerifier   = (*leases)(nil)
	_ store.LeaseLister     = (*leases)(nil)
	_ store.LeaseRevoker    = (*leases)(nil)
)

// AcquireLease implements store.Leases.
func (p *leases) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if p.has(req.ID) {
		return p.acquireInstead(ctx, req)
	}
	reply, err := p.primary.AcquireLease(ctx, req)
	if isLock(req.Name) || !store.Down(err) || ctx.Err() != nil {
		return reply, err
	}
	if errors.Is(err, store.ErrUnconfirmed) {
		p.withdrawals.Add(req.Ref(0))
	}
	return p.move(ctx, req, err)
}

// AwaitLease implements store.Leases. A request that loses its place in primary to an outage joins
// the stand-in's queue.
func (p *leases) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if !p.has(req.ID) {
		grant, err := p.primary.AwaitLease(ctx, req)
		if isLock(req.Name) || !store.Down(err) || ctx.Err() != nil {
			return grant, err
		}
		p.withdrawals.Add(req.Ref(0))
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
	grant, err := p.standIn.AwaitLease(ctx, p.part(req))
	if err == nil {
		p.keep(req.ID, req.TTL+slack)
	}
	return grant, err
}

// move sends a request to the stand-in after primary has failed it with err.
func (p *leases) move(ctx context.Context, req store.LeaseRequest, err error) (store.LeaseReply, error) {
	if !p.keep(req.ID, math.MaxInt64) {
		return store.LeaseReply{}, err
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
func (p *leases) acquireInstead(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	part := p.part(req)
	if part.Weight > part.Capacity-part.Reserve {
		return store.LeaseReply{}, errShare
	}
	reply, err := p.standIn.AcquireLease(ctx, part)
	if err == nil && reply.Outcome == store.Granted {
		p.keep(req.ID, req.TTL+slack)
	}
	return reply, err
}

// RenewLeases implements store.Leases.
func (p *leases) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	return split(p, refs, func(st store.Leases, moved bool, refs []store.LeaseRef) ([]bool, error) {
		held, err := st.RenewLeases(ctx, refs)
		for i, ref := range refs {
			if moved && i < len(held) && held[i] {
				p.keep(ref.ID, ref.TTL+slack)
			}
		}
		return held, err
	})
}

// ReleaseLeases implements store.Leases.
func (p *leases) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	return split(p, refs, func(st store.Leases, moved bool, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
		was, err := st.ReleaseLeases(ctx, refs)
		if moved && err == nil {
			for _, ref := range refs {
				p.keep(ref.ID, slack)
			}
		}
		return was, err
	})
}

// split calls f for the references of each store, the stand-in's (moved) first, since primary may
// be slow to fail. It returns the results in the order of refs.
func split[R any](p *leases, refs []store.LeaseRef, f func(store.Leases, bool, []store.LeaseRef) ([]R, error)) ([]R, error) {
	var (
		parts   [2][]store.LeaseRef // the stand-in's, primary's
		indexes [2][]int
		all     = make([]R, len(refs))
		failed  error
	)
	for i, ref := range refs {
		of := 1
		if p.has(ref.ID) {
			of = 0
		}
		parts[of], indexes[of] = append(parts[of], ref), append(indexes[of], i)
	}
	for of, st := range []store.Leases{p.standIn, p.primary} {
		if len(parts[of]) == 0 {
			continue
		}
		results, err := f(st, of == 0, parts[of])
		for j, result := range results {
			all[indexes[of][j]] = result
		}
		failed = errors.Join(failed, err)
	}
	return all, failed
}

// of returns the store that has a request.
func (p *leases) of(ref store.LeaseRef) store.Leases {
	if p.has(ref.ID) {
		return p.standIn
	}
	return p.primary
}

// DowngradeLease implements store.LeaseDowngrader.
func (p *leases) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	able, err := store.As[store.LeaseDowngrader](p.of(ref))
	if err != nil {
		return false, err
	}
	return able.DowngradeLease(ctx, ref, weight)
}

// VerifyLease implements store.LeaseVerifier.
func (p *leases) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	return store.Verify(ctx, p.of(ref), ref)
}

// NotifyLost implements store.LeaseRevoker.
func (p *leases) NotifyLost(f func(id string)) (remove func()) {
	var removes []func()
	for _, st := range []store.Leases{p.primary, p.standIn} {
		if able, ok := st.(store.LeaseRevoker); ok {
			removes = append(removes, able.NotifyLost(f))
		}
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
	}
}

// RevokeLease implements store.LeaseRevoker, on primary.
func (p *leases) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	able, err := store.As[store.LeaseRevoker](p.primary)
	if err != nil {
		return false, err
	}
	return able.RevokeLease(ctx, name, key, fence)
}

// InspectLease implements store.LeaseLister, on primary.
func (p *leases) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	able, err := store.As[store.LeaseLister](p.primary)
	if err != nil {
		return store.LeaseState{}, err
	}
	return able.InspectLease(ctx, name, key)
}

// ListLeases implements store.LeaseLister, on primary.
func (p *leases) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	able, err := store.As[store.LeaseLister](p.primary)
	if err != nil {
		return func(yield func(store.LeaseState, error) bool) { yield(store.LeaseState{}, err) }
	}
	return able.ListLeases(ctx, name)
}

// AtShutdown implements store.Hooks: f is called by primary's Shutdown.
func (p *leases) AtShutdown(f func(context.Context) error) (remove func()) {
	return p.primary.AtShutdown(func(ctx context.Context) error {
		return errors.Join(f(ctx), p.withdrawals.Wait(ctx), p.withdrawals.Drain(ctx))
	})
}

// part returns a request with this process's share of its capacity.
func (p *leases) part(req store.LeaseRequest) store.LeaseRequest {
	if p.share < 1 {
		const rounding = 1e-6 // 0.29 of 100 is 28.999999999999996
		req.Capacity = max(1, int(math.Floor(float64(req.Capacity)*p.share+rounding)))
		req.Reserve = int(math.Floor(float64(req.Reserve)*p.share + rounding))
	}
	return req
}

func (p *leases) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved.Len() > 0 && p.moved.Get(id, p.now()) != nil
}

// keep records that the stand-in has a request, for a time. It reports false if there is no room.
func (p *leases) keep(id string, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	expires := now + int64(min(d, math.MaxInt64-time.Duration(now)))
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

func (p *leases) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved.Remove(id)
}

func (p *leases) now() int64 { return int64(time.Since(p.began)) }

// isLock reports whether a name is that of a lock.
func isLock(name string) bool { return strings.HasPrefix(name, store.LockKind) }
