package etcdstore

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// AwaitLease implements store.Leases. The waiting requests of a process for a key share a watch: of the
// entry that the first of them waits for, or of all entries if any may make room. A place that the
// server has lost is queued anew. If the server was silent for as long as the lease of waiting requests
// lasts, 5 s, the error matches store.ErrUnavailable.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	path := s.path(req.Name, req.Key)
	req.Queue, req.MaxWaiting = true, 0
	for {
		switch {
		case s.life.Err() != nil, s.hooks.Begun():
			return store.Grant{}, store.ErrClosed
		case ctx.Err() != nil:
			return store.Grant{}, ctx.Err()
		}
		s.mu.Lock()
		r := s.find(path, req.ID)
		if r != nil {
			s.expire(r, time.Now())
		}
		switch {
		case r == nil && s.isWithdrawn(req.ID):
			s.mu.Unlock()
			return store.Grant{}, store.ErrWithdrawn
		case r != nil && r.stage == holding:
			grant, confirm := r.grant(), r.untaken && req.Confirmed
			s.mu.Unlock()
			if confirm {
				return s.takeUp(ctx, r)
			}
			return grant, nil
		case r != nil && r.stage == waiting:
			err := s.wait(ctx, r) // unlocks mu
			if err != nil {
				return store.Grant{}, err
			}
			if req.Place == 0 {
				req.Place = r.req.Place
			}
			continue
		}
		s.mu.Unlock()
		again := req
		if r != nil { // an acquire is in flight, or its outcome is unknown
			again.Place = 0
		}
		reply, err := s.acquire(ctx, &again, opAwait)
		switch {
		case err != nil:
			return store.Grant{}, err
		case reply.Outcome == store.Granted:
			if reply.Place == 0 {
				reply.Place = req.Place
			}
			return reply.Grant, nil
		case reply.Outcome != store.Queued:
			return store.Grant{}, store.ErrWithdrawn
		}
	}
}

// wait waits until a request has another stage than waiting. The caller holds mu, which wait unlocks. It
// returns the error with which the wait ends, or nil.
func (s *Store) wait(ctx context.Context, r *request) error {
	r.awaiting++
	s.until(r, time.Time{})
	s.join(r.of)
	changed := r.changed
	s.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-s.hooks.Over():
	case <-s.life.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.awaiting--
	switch {
	case r.stage == ended:
		return r.err
	case r.stage != waiting:
		return nil
	}
	if r.awaiting == 0 {
		s.until(r, time.Now().Add(placeFor))
		s.leave(r.of)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}
