package etcdstore

import (
	"cmp"
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// judge decides by what a step has found that may have put the entry.
func (a *acquisition) judge(ctx context.Context, found *seen, on *lease, sent time.Time) (store.LeaseReply, error) {
	s, req := a.store, a.req
	e, there := found.entries[req.ID]
	switch {
	case found.tombstone:
		return store.LeaseReply{Outcome: store.Withdrawn}, nil
	case !there && found.base != a.base: // it was raised
		s.base.Store(found.base)
		return store.LeaseReply{}, errAgain
	case !there:
		return a.refusal(found.snapshot, found.queue()), nil
	}
	q := found.queue()
	if q.Holding(req.ID) {
		return a.granted(ctx, &e, on, sent)
	}
	if found.wrote && req.Place == 0 {
		full := req.MaxWaiting > 0 && len(q.Waiting)-1 >= req.MaxWaiting
		if full || !req.Queue {
			reply := a.refusal(found.snapshot, q)
			reply.QueueFull = full
			reply.Waiting--
			s.mu.Lock()
			a.of.hang(on)
			a.of.stage, a.of.entry = waiting, e // so that it leaves no tombstone
			s.condemn(a.of)
			s.mu.Unlock()
			s.settle(ctx, a.path)
			return reply, nil
		}
	}
	return a.queued(found.snapshot, q, &e, on)
}

// granted makes the request a hold.
func (a *acquisition) granted(ctx context.Context, e *entry, on *lease, sent time.Time) (store.LeaseReply, error) {
	s, r := a.store, a.of
	s.mu.Lock()
	if err := a.adopt(e, on); err != nil {
		s.mu.Unlock()
		return store.LeaseReply{}, err
	}
	if r.stage != holding {
		s.hold(r, sent)
	}
	confirm := r.untaken && a.req.Confirmed
	grant := r.grant()
	s.mu.Unlock()
	if confirm {
		var err error
		if grant, err = s.takeUp(ctx, r); err != nil {
			return store.LeaseReply{}, err
		}
	}
	return store.LeaseReply{Outcome: store.Granted, Grant: grant}, nil
}

// adopt notes the entry of the request, which the server has. The caller holds mu.
func (a *acquisition) adopt(e *entry, on *lease) error {
	r := a.of
	switch {
	case r.stage == ended: // released, or lost, while the step was in flight
		return errAgainOrGone(r)
	case r.stage == asked:
		if on.id != e.on { // an earlier try has put it on another lease
			if on = a.store.leases.of(e.on); on == nil {
				return errDead
			}
		}
		if on.dead {
			return errDead
		}
		r.hang(on)
		r.entry, r.unknown = *e, false
		r.stop()
	case e.mod > r.entry.mod:
		r.entry = *e
	}
	return nil
}

// errAgainOrGone is the error of a step whose request has ended in between.
func errAgainOrGone(r *request) error {
	return cmp.Or(r.err, errDead)
}

// queued notes that the request waits, and returns the reply.
func (a *acquisition) queued(seen *snapshot, q *position.Queue, e *entry, on *lease) (store.LeaseReply, error) {
	s, r := a.store, a.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := a.adopt(e, on); err != nil {
		return store.LeaseReply{}, err
	}
	if r.stage == asked {
		r.req.Place = cmp.Or(a.req.Place, placeOf(e, q))
		r.become(waiting)
	}
	r.req.Capacity = e.Capacity
	if r.awaiting == 0 {
		s.until(r, time.Now().Add(placeFor))
	}
	if l := r.of.line; l != nil {
		l.learn(seen)
	} else if r.of.seen == nil || r.of.seen.revision < seen.revision {
		r.of.seen = seen
	}
	reply := s.refusalLocked(seen, q, a.req, store.Queued)
	reply.Place = r.req.Place
	return reply, nil
}

// placeOf returns the number of a place that the server has given: larger than those of all that wait
// before it, some of which may have been queued anew at a number that is ahead.
func placeOf(e *entry, q *position.Queue) int64 {
	place := e.Created
	for _, w := range q.Waiting {
		if w.ID != e.ID && w.Created < e.Created {
			place = max(place, cmp.Or(w.Place, w.Created)+1)
		}
	}
	return place
}
