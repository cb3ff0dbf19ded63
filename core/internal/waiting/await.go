package waiting

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// shortTTL is the TTL below which a pushed grant is confirmed before it is used.
const shortTTL = 100 * time.Millisecond

// Await implements store.Leases's AwaitLease for a store. It waits for a push, while the process sends
// heartbeats. A grant that has almost run out, or that is to be confirmed, costs one more call.
func (p *Process[R]) Await(ctx context.Context, req store.LeaseRequest, record R) (store.Grant, error) {
	if p.store.Hooks.Begun() {
		return store.Grant{}, store.ErrClosed
	}
	if ctx.Err() != nil {
		return store.Grant{}, lease.Ended(ctx)
	}
	if req.Weight > req.Capacity-req.Reserve {
		return store.Grant{}, store.ErrWithdrawn
	}
	req.Queue, req.MaxWaiting = true, 0
	confirmed := req.Confirmed || req.TTL < shortTTL
	over := p.store.Hooks.Over()
	p.listen()
	w := p.await(&req, record)
	defer p.leave(w)
	if p.startBeating() {
		p.store.Start(p.sendBeats)
	}
	for {
		select {
		case <-ctx.Done():
			return store.Grant{}, lease.Ended(ctx)
		case <-over:
			return store.Grant{}, store.ErrClosed
		case <-w.woken:
		}
		granted, ask, err := p.next(w, func(g *pushedGrant) bool {
			return !confirmed && time.Until(g.sent.Add(g.span)) >= g.span/4
		})
		switch {
		case err != nil:
			return store.Grant{}, err
		case granted != nil:
			return store.Grant{
				Sent: granted.sent, Fence: granted.first, LastFence: granted.last, Place: granted.place, TTL: granted.span, Untaken: true,
			}, nil
		case !ask:
			continue
		}
		if req.Place == 0 {
			req.Place = w.place
		}
		reply, err := p.store.Acquire(ctx, req, record)
		p.answered(w, record, &reply, err)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			return reply.Grant, nil
		case err == nil && reply.Outcome == store.Queued:
		case err == nil: // it was withdrawn, or its weight does not fit any more
			return store.Grant{}, store.ErrWithdrawn
		case ctx.Err() != nil:
			return store.Grant{}, lease.Ended(ctx)
		case reply.Over:
			return store.Grant{}, err
		default:
			p.askAgain(w, err)
		}
	}
}
