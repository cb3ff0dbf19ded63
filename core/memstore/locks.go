package memstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var _ store.Locks = (*Store)(nil)

// AcquireLock implements store.Locks.
func (s *Store) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.LockReply{}, err
	}
	shard := shardOf(s, s.locks.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	reply, _, err := acquireLock(shard, req, s.now())
	return reply, err
}

// AwaitLock implements store.Locks. A place without a call that awaits it is kept for three
// seconds.
func (s *Store) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.Grant{}, err
	}
	shard := shardOf(s, s.locks.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	req.Queue = true
	reply, r, err := acquireLock(shard, req, s.now())
	switch {
	case err != nil:
		return store.Grant{}, err
	case reply.Outcome == store.Granted:
		return reply.Grant, nil
	case reply.Outcome == store.Withdrawn:
		return store.Grant{}, store.ErrWithdrawn
	}
	if err := await(ctx, s, &shard.mu, r.of, r); err != nil {
		return store.Grant{}, err
	}
	if r.withdrawn {
		return store.Grant{}, store.ErrWithdrawn
	}
	return r.grant, nil
}

// acquireLock is AcquireLock in a locked shard. It also returns the request if that is queued.
func acquireLock(s *lockShard, req store.LockRequest, now int64) (store.LockReply, *request, error) {
	id := s.requestID(req.Name, req.Key, req.ID)
	if s.released.get(id, now) != nil {
		return store.LockReply{Outcome: store.Withdrawn}, nil, nil
	}
	l := s.at(req.Name, req.Key, now)
	if r := s.requests[id]; r != nil && r.stage == holding && !r.held(now) {
		// The hold has expired and is in its delay. This is a new request, which need not wait for
		// the delay.
		l.remove(r)
		l.admit(now)
		l.settle()
		l = s.find(resourceKey{req.Name, req.Key})
	}
	if l != nil {
		defer l.settle()
	}
	if r := s.requests[id]; r != nil { // a repeat
		switch r.stage {
		case queued:
			l.queue.refresh(r, now)
			return l.refusal(store.Queued, now), r, nil
		case reserved:
			l.hold(r, now)
		}
		return store.LockReply{Outcome: store.Granted, Grant: r.grant}, nil, nil
	}
	free := l == nil || l.queue.len() == 0 && l.admits(req.Shared)
	if !free && !req.Queue {
		return l.refusal(store.Taken, now), nil, nil
	}
	if !s.room(now) {
		return store.LockReply{}, nil, store.ErrFull
	}
	if l == nil {
		l = &lockState{shard: s, key: resourceKey{req.Name, req.Key}, nextEnd: never}
		s.add(l.key, l)
	}
	r := &request{waiter: waiter{id: id}, req: req, of: l, shared: req.Shared}
	s.requests[id] = r
	if !free {
		l.queue.push(r, now)
		return l.refusal(store.Queued, now), r, nil
	}
	l.hold(r, now)
	return store.LockReply{Outcome: store.Granted, Grant: r.grant}, nil, nil
}

// RenewLocks implements store.Locks.
func (s *Store) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		held[i] = s.onHold(req, func(l *lockState, r *request, now int64) { r.extend(now, req.TTL, req.Delay) })
	}
	return held, nil
}

// onHold calls f if the ID holds the lock, and reports whether it does.
func (s *Store) onHold(req store.LockRef, f func(*lockState, *request, int64)) bool {
	shard := shardOf(s, s.locks.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(req.Name, req.Key, now)
	r := shard.requests[shard.requestID(req.Name, req.Key, req.ID)]
	if r == nil || !r.held(now) {
		return false
	}
	f(l, r, now)
	l.settle()
	return true
}

// ReleaseLock implements store.Locks.
func (s *Store) ReleaseLock(ctx context.Context, req store.LockRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := shardOf(s, s.locks.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	id := shard.requestID(req.Name, req.Key, req.ID)
	if released := shard.released.get(id, now); released != nil { // a repeat
		return released.held, nil
	}
	l := shard.at(req.Name, req.Key, now)
	r := shard.requests[id]
	held := r != nil && r.held(now)
	shard.addTombstone(id, held, now)
	if r != nil {
		l.release(r, now)
	}
	return held, nil
}

// DowngradeLock implements store.Locks.
func (s *Store) DowngradeLock(ctx context.Context, req store.LockRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(req, func(l *lockState, r *request, now int64) {
		r.shared = true
		r.extend(now, req.TTL, req.Delay)
		l.admit(now)
	}), nil
}

// VerifyLock implements store.Locks.
func (s *Store) VerifyLock(ctx context.Context, req store.LockRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(req, func(*lockState, *request, int64) {}), nil
}

// InspectLock implements store.Locks.
func (s *Store) InspectLock(ctx context.Context, name, key string) (store.LockState, error) {
	if err := s.ready(ctx); err != nil {
		return store.LockState{}, err
	}
	shard := shardOf(s, s.locks.shards, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(name, key, now)
	if l == nil {
		return store.LockState{Key: key}, nil
	}
	return l.state(now), nil
}

// ListLocks implements store.Locks.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[store.LockState, error] {
	return listStates(ctx, s, &s.locks, name, func(l *lockState, now int64) (store.LockState, bool) {
		state := l.state(now)
		return state, len(state.Holders) > 0 || state.Waiting > 0
	})
}

// ForceUnlock implements store.Locks.
func (s *Store) ForceUnlock(ctx context.Context, name, key string, fence int64) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	id, ok := s.forceUnlock(name, key, fence)
	if ok {
		s.lost.Call(id)
	}
	return ok, nil
}

func (s *Store) forceUnlock(name, key string, fence int64) (id string, ok bool) {
	shard := shardOf(s, s.locks.shards, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(name, key, now)
	if l == nil {
		return "", false
	}
	for _, r := range l.holds {
		if r.held(now) && r.grant.Fence <= fence && fence <= r.grant.LastFence {
			shard.addTombstone(r.id, false, now) // a later release of its own is too late
			l.release(r, now)
			return r.id.id, true
		}
	}
	return "", false
}

// NotifyLost implements store.Locks: f is called for holds that ForceUnlock ends.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.lost.Add(f) }
