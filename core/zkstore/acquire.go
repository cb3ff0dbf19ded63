package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// AcquireLease implements store.Leases: three requests, the last two of them together. One that is not
// granted reads the data of the holds before it as well, and one that does not queue then removes its
// node. A TTL above four fifths of the negotiated session is an error that matches
// store.ErrMisconfigured, since the session could end before the hold. A request with a reserve is
// store.ErrNotSupported.
func (s *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (reply store.LeaseReply, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return reply, err
	}
	done := s.telemetry.Begin(ctx, opAcquire)
	defer func() { done.End(ctx, err) }()
	p := s.placeOf(req.Name, req.Key)
	if req.Weight > req.Capacity-req.Reserve {
		return s.impossible(ctx, p, &req)
	}
	if err := s.accepts(ctx, &req); err != nil {
		return reply, err
	}
	e, added, err := s.enter(ctx, p, &req)
	if err != nil {
		return reply, err
	}
	if !added {
		return s.repeat(ctx, e, &req)
	}
	return s.acquire(ctx, e, &req)
}

// enter returns the entry of a request, and whether it is new. One that has expired is removed before,
// as are all of the key that have ended.
func (s *Store) enter(ctx context.Context, p place, req *store.LeaseRequest) (e *entry, added bool, err error) {
	s.settle(ctx, p.path)
	for range 3 {
		e, added = s.entries.add(p, req)
		if added || !s.entries.leaves(e) || s.entries.wasWithdrawn(p, req.ID) {
			return e, added, nil
		}
		if _, err := s.remove(ctx, e); err != nil {
			return nil, false, err
		}
	}
	return e, added, nil
}

// accepts returns the error of a request that cannot be granted here.
func (s *Store) accepts(ctx context.Context, req *store.LeaseRequest) error {
	if req.Reserve > 0 {
		return fmt.Errorf("%w: ZooKeeper has no request that depends on the children of a node, as a reserve needs", store.ErrNotSupported)
	}
	current := s.link.session()
	if current == nil { // not connected yet
		if err := s.calls.breaker.Refuses(false); err != nil {
			return err
		}
		late := time.NewTimer(s.config.timeout)
		defer late.Stop()
		var err error
		if current, err = s.link.await(ctx, late.C); err != nil {
			admitted, _ := s.calls.breaker.Allow(false)
			return s.calls.failed(ctx, admitted, err)
		}
	}
	if req.TTL > current.longest() {
		return current.tooLong(req.TTL)
	}
	return nil
}

// impossible refuses a request whose weight does not fit. A place that it has is removed.
func (s *Store) impossible(ctx context.Context, p place, req *store.LeaseRequest) (reply store.LeaseReply, err error) {
	reply.Outcome = store.Taken
	if e := s.entries.find(p.path, req.ID); e != nil {
		s.entries.mu.Lock()
		held := e.stage == holding
		s.entries.mu.Unlock()
		if held {
			return s.held(e)
		}
		s.leave(e, store.ErrWithdrawn)
		_, err = s.remove(ctx, e)
	}
	return reply, err
}

// acquire puts a new request into the queue, and decides what becomes of it.
func (s *Store) acquire(ctx context.Context, e *entry, req *store.LeaseRequest) (store.LeaseReply, error) {
	list, sent, err := s.put(ctx, e)
	if err == nil && req.Place != 0 {
		list, err = s.giveWay(ctx, e, list)
	}
	var reply store.LeaseReply
	if err == nil {
		reply, err = s.decide(ctx, e, req, list, sent, false)
	}
	if err != nil {
		s.leave(e, err)
		s.sweepSoon()
		return reply, s.unlessVoid(err)
	}
	return reply, nil
}

// unlessVoid returns the error of a request whose node has vanished with its session.
func (s *Store) unlessVoid(err error) error {
	if errors.Is(err, errVoid) {
		return store.Unavailable(store.OtherCause, "the session has ended during the request")
	}
	return err
}

// decide grants, queues or refuses a request by a queue that was read after a request was sent at
// that time.
func (s *Store) decide(
	ctx context.Context, e *entry, req *store.LeaseRequest, list []child, sent time.Time, repeated bool,
) (reply store.LeaseReply, err error) {
	var before int
	late := time.Now().Add(s.config.timeout / 4)
	for pause := time.Millisecond; ; pause *= 2 {
		q := s.queueOf(e.place, list, false)
		held, err := q.holds(ctx, s, e)
		if err != nil {
			return reply, err
		}
		if held && s.granted(e, q.nameOf(e), sent) {
			return s.held(e)
		}
		reply, before, err = q.refusal(ctx, s, e)
		if err != nil {
			return reply, err
		}
		if req.Queue || before > 0 || reply.InUse+req.Weight > req.Capacity || time.Now().After(late) {
			break
		}
		// Only requests are before it that do not queue either. Each of them holds or leaves in a moment.
		if err := s.rest(ctx, pause); err != nil {
			return reply, err
		}
		if list, err = s.children(ctx, e.place, reads); err != nil {
			return reply, err
		}
	}
	full := req.Queue && !repeated && req.MaxWaiting > 0 && req.Place == 0 && before >= req.MaxWaiting
	if full || !req.Queue && !repeated {
		reply.Outcome, reply.QueueFull = store.Taken, full
		s.leave(e, store.ErrWithdrawn)
		_, _ = s.remove(ctx, e) // or in the background: it was never queued
		return reply, nil
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	switch {
	case e.stage == holding: // since
		reply.Outcome, reply.Grant = store.Granted, e.grant()
		return reply, nil
	case e.stage >= leaving:
		return reply, errReleased
	}
	s.entries.set(e, waiting)
	if e.awaiting == 0 {
		s.keep(e, unawaited)
	} else {
		s.follow(e)
	}
	reply.Outcome, reply.Place = store.Queued, e.number
	return reply, nil
}

// granted makes an entry a hold by its node of this name. Its TTL counts from a request that was sent
// at that time. It reports false if the entry has left, or has another node.
func (s *Store) granted(e *entry, name string, sent time.Time) bool {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	switch {
	case e.stage > waiting:
		return e.stage == holding
	case e.node.name != name || e.session == nil || e.session.ended():
		return false
	case e.stage == creating && e.fresh:
		e.number = 0 // it has not waited
	}
	e.sent, e.granted = sent, time.Now()
	s.entries.set(e, holding)
	s.keep(e, e.ttl)
	return true
}

// rest waits for a time, or until ctx ends.
func (s *Store) rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.life.Done():
		return store.ErrClosed
	}
}

// held returns the grant of a hold.
func (s *Store) held(e *entry) (reply store.LeaseReply, err error) {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if e.stage != holding {
		return reply, store.Unavailable(store.OtherCause, "the hold has ended during the request")
	}
	reply.Outcome, reply.Grant = store.Granted, e.grant()
	return reply, nil
}

// repeat is the acquire of a request that was made before.
func (s *Store) repeat(ctx context.Context, e *entry, req *store.LeaseRequest) (reply store.LeaseReply, err error) {
	s.entries.mu.Lock()
	made := e.made
	s.entries.mu.Unlock()
	select {
	case <-made: // by the first request
	case <-ctx.Done():
		return reply, ctx.Err()
	case <-time.After(s.config.timeout):
		return reply, unconfirmed(writes, store.Timeout, "the first request is still in flight")
	}
	s.entries.mu.Lock()
	at := e.stage
	changes := at == waiting && e.capacity != req.Capacity
	s.entries.mu.Unlock()
	switch at {
	case holding:
		return s.held(e)
	case leaving, gone, creating:
		return store.LeaseReply{Outcome: store.Withdrawn}, nil
	}
	for range 2 {
		sent, list, err := s.look(ctx, e)
		if err != nil {
			return reply, s.unlessVoid(err)
		}
		if reply, err = s.decide(ctx, e, req, list, sent, true); err != nil {
			return reply, s.unlessVoid(err)
		}
		if reply.Outcome != store.Queued || !changes {
			break
		}
		changes = false
		there, err := s.change(ctx, e, func(f *facts) { f.capacity = req.Capacity })
		if err == nil && !there {
			err = s.unlessVoid(errVoid)
		}
		if err != nil {
			return reply, err
		}
	}
	return reply, nil
}

// look reads the queue of a request that waits. The session was alive after the returned time.
func (s *Store) look(ctx context.Context, e *entry) (sent time.Time, list []child, err error) {
	sent = time.Now()
	if err := s.sync(ctx, reads); err != nil {
		return sent, nil, err
	}
	list, err = s.children(ctx, e.place, reads)
	return sent, list, err
}
