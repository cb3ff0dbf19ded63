package lease

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Lease is a caller's lease, and the context of the work under it. The mechanism's own lease
// contains it.
type Lease struct {
	Context
	hold     *Hold
	owner    any
	parent   context.Context // of its request
	fence    int64
	since    time.Time
	released atomic.Bool
	recorded bool // its end; guarded by the pool's mu
}

// Init sets the owner of a lease: its value in its context.
func (l *Lease) Init(owner any) { l.owner = owner }

// Owner returns the owner that Init has set.
func (l *Lease) Owner() any { return l.owner }

// Parent returns the context of its request.
func (l *Lease) Parent() context.Context { return l.parent }

// Value returns the lease's owner for the key of its mechanism.
func (l *Lease) Value(key any) any {
	if key == l.hold.pool.Key {
		return l.owner
	}
	return l.Context.Value(key)
}

// Key returns the key that is leased.
func (l *Lease) Key() string { return l.hold.ref[0].Key }

// Weight returns the weight of the hold.
func (l *Lease) Weight() int { return int(l.hold.weight.Load()) }

// Fence returns the number of the grant, or of its part that was handed on.
func (l *Lease) Fence() int64 { return l.fence }

// Granted returns when this lease began: when its hold was granted, or if it was handed on since,
// now. It is called once, by the caller that gets the lease.
func (l *Lease) Granted() time.Time {
	if l.fence == l.hold.ref[0].Fence {
		return l.hold.began
	}
	return time.Now()
}

// Of reports whether the lease is one of a pool.
func (l *Lease) Of(p *Pool) bool { return l.hold.pool == p }

// Ended returns the cause of the end of the hold, or of the time of its leases; nil if it has not
// ended.
func (l *Lease) Ended() error { return l.hold.term.Ended(l.hold.pool.ErrExpired) }

// Enter initialises another lease on the same hold, whose context ends with ctx and with the hold.
// If the hold has ended, it returns the cause instead.
func (l *Lease) Enter(ctx context.Context, entered *Lease) error {
	entered.hold, entered.fence = l.hold, l.fence
	return l.hold.term.Enter(ctx, &entered.Context, l.hold.pool.ErrExpired)
}

// Leave ends the lease's context, unless it has ended.
func (l *Lease) Leave() { l.hold.term.Leave(&l.Context, l.hold.pool.ErrReleased) }

// Close marks the lease as released. It returns false if it was before.
func (l *Lease) Close() bool { return l.released.CompareAndSwap(false, true) }

// Lost reports whether the hold has ended before it was released.
func (l *Lease) Lost() bool { return !l.hold.term.Valid() }

// End ends the hold, or hands it on. All of its leases were left before. See Release.
func (l *Lease) End(ctx context.Context) error { return l.hold.pool.end(ctx, l.hold, false) }

// Release releases a lease that is the only one on its hold. It returns
//   - nil if it was held until now;
//   - ErrLost if it was not;
//   - ErrExpired if it has a lock-delay and has run out;
//   - ErrReleased if it was released before;
//   - an error that matches store.ErrUnavailable: then the release is retried in the background.
func (l *Lease) Release(ctx context.Context) error {
	if !l.Close() {
		return l.hold.pool.ErrReleased
	}
	l.Leave()
	return l.End(ctx)
}

// ReleaseAsync is Release in the background.
func (l *Lease) ReleaseAsync() {
	if l.Close() {
		l.Leave()
		_ = l.hold.pool.end(context.Background(), l.hold, true)
	}
}

// Verify checks in the store that the lease is held.
func (l *Lease) Verify(ctx context.Context) error {
	return l.VerifyBy(ctx, store.Verify)
}

// VerifyBy is Verify by a step of the caller's.
func (l *Lease) VerifyBy(ctx context.Context, step func(ctx context.Context, st store.Leases, ref store.LeaseRef) (bool, error)) error {
	if l.Err() != nil {
		return context.Cause(l)
	}
	h := l.hold
	held, err := step(ctx, h.pool.store, h.ref[0])
	return h.answered(held, err)
}

// answered returns the error of a step by the store's answer.
func (h *Hold) answered(held bool, err error) error {
	if err != nil || held {
		return err
	}
	h.lost(h.pool.ErrLost)
	return h.pool.ErrLost
}

// Downgrade reduces the weight of the hold, which is then not handed on. After an error that
// matches store.ErrUnavailable the weight may be the old or the new one.
func (l *Lease) Downgrade(ctx context.Context, weight int) error {
	h := l.hold
	p := h.pool
	able, err := store.As[store.LeaseDowngrader](p.store)
	if err != nil {
		return err
	}
	sent := time.Now()
	held, err := able.DowngradeLease(context.WithoutCancel(ctx), h.ref[0], weight)
	if err := h.answered(held, err); err != nil {
		return err
	}
	h.Renewed(sent)
	if !h.config.Renew { // its end has moved
		p.keeper.Watch(h, h.term.ValidUntil())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := int(h.weight.Swap(int64(weight)))
	if p.holds[h.ref[0].ID] == h {
		p.inUse += weight - was
	}
	if q := h.queue; q != nil { // waiters of the process may wait for its former weight
		q.drop(h)
		p.kick(q)
	}
	return nil
}

// Inspect returns the state of a key, with the labels that users set.
func (p *Pool) Inspect(ctx context.Context, key string) (store.LeaseState, error) {
	if err := p.CheckKey(key); err != nil {
		return store.LeaseState{}, err
	}
	able, err := store.As[store.LeaseLister](p.store)
	if err != nil {
		return store.LeaseState{}, err
	}
	state, err := able.InspectLease(ctx, p.name, key)
	return unlabelled(state), err
}

// List calls yield with the states of the keys that are held or waited for, until it returns false.
func (p *Pool) List(ctx context.Context, yield func(store.LeaseState, error) bool) {
	able, err := store.As[store.LeaseLister](p.store)
	if err != nil {
		yield(store.LeaseState{}, err)
		return
	}
	for state, err := range able.ListLeases(ctx, p.name) {
		if !yield(unlabelled(state), err) {
			return
		}
	}
}

// unlabelled cuts the spans from the labels of a state.
func unlabelled(s store.LeaseState) store.LeaseState {
	for i := range s.Holders {
		s.Holders[i].Label, _ = CutSpan(s.Holders[i].Label)
	}
	for i := range s.Waiters {
		s.Waiters[i].Label, _ = CutSpan(s.Waiters[i].Label)
	}
	return s
}

// Revoke ends the hold of a key with this fence, and reports whether there was one.
func (p *Pool) Revoke(ctx context.Context, key string, fence int64) (bool, error) {
	if err := p.CheckKey(key); err != nil {
		return false, err
	}
	able, err := store.As[store.LeaseRevoker](p.store)
	if err != nil {
		return false, err
	}
	return able.RevokeLease(ctx, p.name, key, fence)
}
