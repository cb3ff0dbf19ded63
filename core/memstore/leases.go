package memstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// AcquireLease implements store.Leases.
func (s *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.LeaseReply{}, err
	}
	l, now := s.lockLease(req.Name, req.Key)
	defer l.unlock()
	reply, _, err := l.acquire(req, now)
	return reply, err
}

// AwaitLease implements store.Leases. A place without a call that awaits it is kept for three
// seconds, and a grant of one for two. The request's Capacity is ignored if it is in the queue.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.Grant{}, err
	}
	l, now := s.lockLease(req.Name, req.Key)
	defer l.unlock()
	req.Queue, req.MaxWaiting = true, 0
	if r := l.find(req.ID); r != nil {
		req.Capacity = r.req.Capacity
	} else if l.shard.isWithdrawn(req.ID, now) {
		return store.Grant{}, store.ErrWithdrawn
	}
	reply, r, err := l.acquire(req, now)
	switch {
	case err != nil:
		return store.Grant{}, err
	case reply.Outcome == store.Granted:
		return reply.Grant, nil
	case reply.Outcome == store.Taken:
		return store.Grant{}, store.ErrWithdrawn
	}
	if err := r.await(ctx); err != nil {
		return store.Grant{}, err
	}
	return r.grant(), nil
}

// RenewLeases implements store.Leases.
func (s *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(refs))
	for i, ref := range refs {
		held[i] = s.onHold(ref, func(r *lease, now int64) { r.extend(now, ref.TTL) })
	}
	return held, nil
}

// onHold calls f for a hold, and reports whether it is held.
func (s *Store) onHold(ref store.LeaseRef, f func(*lease, int64)) bool {
	l, now := s.lockLease(ref.Name, ref.Key)
	defer l.unlock()
	r := l.find(ref.ID)
	if r == nil || r.stage != holding || r.fence != ref.Fence {
		return false
	}
	f(r, now)
	return true
}

// ReleaseLeases implements store.Leases.
func (s *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	outcomes := make([]store.ReleaseOutcome, len(refs))
	if err := s.ready(ctx); err != nil {
		return outcomes, err
	}
	for i, ref := range refs {
		outcomes[i] = s.releaseLease(ref)
	}
	return outcomes, nil
}

func (s *Store) releaseLease(ref store.LeaseRef) store.ReleaseOutcome {
	l, now := s.lockLease(ref.Name, ref.Key)
	defer l.unlock()
	r := l.find(ref.ID)
	if r == nil && ref.Repeated {
		return store.ReleaseUnknown
	}
	if r == nil {
		return store.NotHeld
	}
	if r.stage == queued && !r.awaited {
		l.shard.recordWithdrawal(ref.ID, now)
	}
	held := r.stage == holding && (ref.Fence == 0 || ref.Fence == r.fence)
	l.release(r, now)
	if held {
		return store.Released
	}
	return store.NotHeld
}

// DowngradeLease implements store.LeaseDowngrader.
func (s *Store) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(ref, func(r *lease, now int64) {
		r.extend(now, ref.TTL)
		r.of.downgrade(r, weight, now)
	}), nil
}

// VerifyLease implements store.LeaseVerifier.
func (s *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(ref, func(*lease, int64) {}), nil
}

// InspectLease implements store.LeaseLister.
func (s *Store) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	if err := s.ready(ctx); err != nil {
		return store.LeaseState{}, err
	}
	l, now := s.lockLease(name, key)
	defer l.unlock()
	return l.state(now), nil
}

// ListLeases implements store.LeaseLister. No mutex is locked while it yields.
func (s *Store) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return func(yield func(store.LeaseState, error) bool) {
		for i := range s.leases.shards {
			if err := s.ready(ctx); err != nil {
				yield(store.LeaseState{}, err)
				return
			}
			for _, state := range s.leases.shards[i].states(name) {
				if !yield(state, nil) {
					return
				}
			}
		}
	}
}

// RevokeLease implements store.LeaseRevoker.
func (s *Store) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	id, ok := s.revokeLease(name, key, fence)
	if ok {
		s.lost.Call(id)
	}
	return ok, nil
}

func (s *Store) revokeLease(name, key string, fence int64) (id string, ok bool) {
	l, now := s.lockLease(name, key)
	defer l.unlock()
	for _, r := range l.holds.all {
		if r.fence <= fence && fence <= r.lastFence {
			l.release(r, now)
			return r.req.ID, true
		}
	}
	return "", false
}

// NotifyLost implements store.LeaseRevoker: f is called for holds that RevokeLease ends.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.lost.Add(f) }
