package memstore

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

var _ lock.Store = (*Store)(nil)

// AcquireLock implements lock.Store.
func (s *Store) AcquireLock(ctx context.Context, req lock.AcquireRequest) (lock.AcquireReply, error) {
	if err := s.ready(ctx); err != nil {
		return lock.AcquireReply{}, err
	}
	shard := shardOf(s, s.locks, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	reply, _, err := shard.acquire(req, s.now())
	return reply, err
}

// AwaitLock implements lock.Store. A place that nobody awaits is kept for three seconds.
func (s *Store) AwaitLock(ctx context.Context, req lock.AcquireRequest) (lock.Grant, error) {
	if err := s.ready(ctx); err != nil {
		return lock.Grant{}, err
	}
	shard := shardOf(s, s.locks, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	req.Queue = true
	reply, r, err := shard.acquire(req, s.now())
	switch {
	case err != nil:
		return lock.Grant{}, err
	case reply.Outcome == lock.Granted:
		return reply.Grant, nil
	case reply.Outcome == lock.Withdrawn:
		return lock.Grant{}, lock.ErrWithdrawn
	}
	if err := s.await(ctx, shard, r); err != nil {
		return lock.Grant{}, err
	}
	if r.withdrawn {
		return lock.Grant{}, lock.ErrWithdrawn
	}
	return r.grant, nil
}

// await returns when the request is no longer in the queue. The shard is locked when it is called
// and when it returns, but not meanwhile.
func (s *Store) await(ctx context.Context, shard *lockShard, r *request) error {
	l := r.of
	r.awaiting++
	l.keepPlace(r, s.now())
	defer func() {
		r.awaiting--
		if r.awaiting > 0 {
			r.poke() // a wake-up is for one of them, and what ends this call may end the others
		}
		if r.stage == queued {
			l.keepPlace(r, s.now())
			l.settle()
		}
	}()
	var timer *time.Timer
	for {
		now := s.now()
		l.advance(now)
		r.sleeps = never
		if l.watcher() == r {
			r.sleeps = l.soonest
		}
		switch {
		case s.closed.Load():
			return outage.ErrClosed
		case r.stage != queued:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		var event <-chan time.Time
		if r.sleeps != never {
			d := time.Duration(r.sleeps-now) * time.Microsecond
			if timer == nil {
				timer = time.NewTimer(d)
				defer timer.Stop()
			} else {
				timer.Reset(d)
			}
			event = timer.C
		}
		shard.mu.Unlock()
		select {
		case <-r.wake:
		case <-event:
		case <-ctx.Done():
		case <-s.done:
		}
		shard.mu.Lock()
	}
}

// RenewLocks implements lock.Store.
func (s *Store) RenewLocks(ctx context.Context, reqs []lock.HoldRequest) ([]bool, error) {
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
func (s *Store) onHold(req lock.HoldRequest, f func(*lockState, *request, int64)) bool {
	shard := shardOf(s, s.locks, req.Key)
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

// ReleaseLock implements lock.Store.
func (s *Store) ReleaseLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := shardOf(s, s.locks, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	id := shard.requestID(req.Name, req.Key, req.ID)
	if released := shard.released.get(id, now); released != nil { // sent twice
		return released.held, nil
	}
	l := shard.at(req.Name, req.Key, now)
	r := shard.requests[id]
	held := r != nil && r.held(now)
	shard.released.add(id, held, now, &s.tombstones, s.maxRequests)
	if r != nil {
		l.end(r, now)
	}
	return held, nil
}

// DowngradeLock implements lock.Store.
func (s *Store) DowngradeLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(req, func(l *lockState, r *request, now int64) {
		r.shared = true
		r.extend(now, req.TTL, req.Delay)
		l.admit(now)
	}), nil
}

// VerifyLock implements lock.Store.
func (s *Store) VerifyLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	return s.onHold(req, func(*lockState, *request, int64) {}), nil
}

// InspectLock implements lock.Store.
func (s *Store) InspectLock(ctx context.Context, name, key string) (lock.State, error) {
	if err := s.ready(ctx); err != nil {
		return lock.State{}, err
	}
	shard := shardOf(s, s.locks, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(name, key, now)
	if l == nil {
		return lock.State{Key: key}, nil
	}
	return l.state(now), nil
}

// ListLocks implements lock.Store.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[lock.State, error] {
	return func(yield func(lock.State, error) bool) {
		for i := range s.locks {
			if err := s.ready(ctx); err != nil {
				yield(lock.State{}, err)
				return
			}
			for _, state := range s.locks[i].list(name, s.now) {
				if !yield(state, nil) {
					return
				}
			}
		}
	}
}

func (s *lockShard) list(name string, clock func() int64) []lock.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []lock.State
	now := clock()
	for i := len(s.order) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
		l := s.order[i]
		if l.key.name != name {
			continue
		}
		l.advance(now)
		if state := l.state(now); len(state.Holders) > 0 || state.Waiting > 0 {
			states = append(states, state)
		}
	}
	return states
}

// ForceUnlock implements lock.Store.
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
	shard := shardOf(s, s.locks, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(name, key, now)
	if l == nil {
		return "", false
	}
	for _, r := range l.holds {
		if r.held(now) && r.grant.Fence <= fence && fence <= r.grant.LastFence {
			shard.released.add(r.id, false, now, &s.tombstones, s.maxRequests) // its own release comes too late
			l.end(r, now)
			return r.id.id, true
		}
	}
	return "", false
}

// NotifyLost implements lock.Store: f is told of what ForceUnlock ended.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.lost.Add(f) }
