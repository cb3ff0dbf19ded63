package memstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var _ store.Permits = (*Store)(nil)

// AcquirePermits implements store.Permits.
func (s *Store) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.PermitReply{}, err
	}
	shard := shardOf(s, s.permits.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	reply, p, err := acquirePermit(shard, req, now)
	if err == nil && reply.Outcome == store.Queued && p.req.Capacity != req.Capacity {
		p.of.setCapacity(p, req.Capacity, now)
		reply, _, err = acquirePermit(shard, req, now)
	}
	return reply, err
}

// AwaitPermits implements store.Permits. A place without a call that awaits it is kept for three
// seconds. The request's Capacity and MaxWaiting are ignored if it is in the queue, and MaxWaiting
// also if it was.
func (s *Store) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.Grant{}, err
	}
	shard := shardOf(s, s.permits.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	req.Queue, req.MaxWaiting = true, 0
	reply, p, err := acquirePermit(shard, req, s.now())
	switch {
	case err != nil:
		return store.Grant{}, err
	case reply.Outcome == store.Granted:
		return reply.Grant, nil
	case reply.Outcome == store.Withdrawn:
		return store.Grant{}, store.ErrWithdrawn
	}
	if err := await(ctx, s, &shard.mu, p.of, p); err != nil {
		return store.Grant{}, err
	}
	if p.withdrawn {
		return store.Grant{}, store.ErrWithdrawn
	}
	return p.grant, nil
}

// acquirePermit is AcquirePermits in a locked shard. It also returns the request if that is queued.
func acquirePermit(s *permitShard, req store.PermitRequest, now int64) (store.PermitReply, *permit, error) {
	id := s.requestID(req.Name, req.Key, req.ID)
	if s.released.get(id, now) != nil {
		return store.PermitReply{Outcome: store.Withdrawn}, nil, nil
	}
	l := s.at(req.Name, req.Key, now)
	if l == nil {
		l = &semaphoreState{shard: s, key: resourceKey{req.Name, req.Key}}
	}
	defer l.settle()
	if p := s.requests[id]; p != nil { // a repeat
		switch p.stage {
		case queued:
			l.queue.refresh(p, now)
			return l.refusal(store.Queued, now), p, nil
		case reserved:
			l.grant(p, now)
		}
		return store.PermitReply{Outcome: store.Granted, Grant: p.grant}, nil, nil
	}
	free := l.fits(&req) && (req.Barging || l.queue.len() == 0)
	if !free {
		full := req.MaxWaiting > 0 && l.queue.len() >= req.MaxWaiting
		if !req.Queue || full {
			reply := l.refusal(store.Taken, now)
			reply.QueueFull = req.Queue
			return reply, nil, nil
		}
	}
	if !s.room(now) {
		return store.PermitReply{}, nil, store.ErrFull
	}
	if s.find(l.key) != l {
		s.add(l.key, l)
	}
	p := &permit{waiter: waiter{id: id}, req: req, of: l}
	s.requests[id] = p
	if !free {
		l.enqueue(p, now)
		return l.refusal(store.Queued, now), p, nil
	}
	l.grant(p, now)
	return store.PermitReply{Outcome: store.Granted, Grant: p.grant}, nil, nil
}

// RenewPermits implements store.Permits.
func (s *Store) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		held[i] = s.renewPermit(req)
	}
	return held, nil
}

func (s *Store) renewPermit(req store.PermitRef) (held bool) {
	shard := shardOf(s, s.permits.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(req.Name, req.Key, now)
	p := shard.requests[shard.requestID(req.Name, req.Key, req.ID)]
	if p == nil || p.stage != holding {
		return false
	}
	p.extend(now, req.TTL)
	l.settle()
	return true
}

// ReleasePermits implements store.Permits.
func (s *Store) ReleasePermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		held[i] = s.releasePermit(req)
	}
	return held, nil
}

func (s *Store) releasePermit(req store.PermitRef) (held bool) {
	shard := shardOf(s, s.permits.shards, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	id := shard.requestID(req.Name, req.Key, req.ID)
	if released := shard.released.get(id, now); released != nil { // a repeat
		return released.held
	}
	l := shard.at(req.Name, req.Key, now)
	p := shard.requests[id]
	held = p != nil && p.stage == holding
	shard.addTombstone(id, held, now)
	if p != nil {
		l.release(p, now)
	}
	return held
}

// InspectPermits implements store.Permits.
func (s *Store) InspectPermits(ctx context.Context, name, key string) (store.SemaphoreState, error) {
	if err := s.ready(ctx); err != nil {
		return store.SemaphoreState{}, err
	}
	shard := shardOf(s, s.permits.shards, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	l := shard.at(name, key, now)
	if l == nil {
		return store.SemaphoreState{Key: key}, nil
	}
	return l.state(now), nil
}

// ListPermits implements store.Permits.
func (s *Store) ListPermits(ctx context.Context, name string) iter.Seq2[store.SemaphoreState, error] {
	return listStates(ctx, s, &s.permits, name, func(l *semaphoreState, now int64) (store.SemaphoreState, bool) {
		state := l.state(now)
		return state, state.InUse > 0 || state.Waiting > 0
	})
}
