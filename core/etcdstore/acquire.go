package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// AcquireLease implements store.Leases. An exclusive request takes one write: a transaction that puts the
// entry, and reads those of the key. One that does not queue, and is not exclusive, or has a reserve, is a
// read and a write, which succeeds if no entry of the key has changed in between.
func (s *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if s.hooks.Begun() {
		return store.LeaseReply{}, store.ErrClosed
	}
	return s.acquire(ctx, &req, opAcquire)
}

func (s *Store) acquire(ctx context.Context, req *store.LeaseRequest, op operation) (store.LeaseReply, error) {
	if ctx.Err() != nil {
		return store.LeaseReply{}, ctx.Err()
	}
	path := s.path(req.Name, req.Key)
	if req.Weight > req.Capacity-req.Reserve { // it leaves the queue, if it is there
		_, err := s.ReleaseLeases(ctx, []store.LeaseRef{req.Ref(0)})
		return store.LeaseReply{Outcome: store.Taken}, err
	}
	s.settle(ctx, path)
	s.mu.Lock()
	if s.find(path, req.ID) == nil && s.isWithdrawn(req.ID) {
		s.mu.Unlock()
		return store.LeaseReply{Outcome: store.Withdrawn}, nil
	}
	r := s.ask(path, req)
	s.mu.Unlock()
	a := &acquisition{store: s, op: op, path: path, req: req, of: r}
	reply, err := a.do(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	r = a.of
	if err != nil && r.stage == asked {
		// The step may be under way to the server. Unless the request is repeated or released before, its
		// entry is deleted as one that no call awaits.
		if r.unknown = r.unknown || ctx.Err() != nil || errors.Is(err, store.ErrUnconfirmed); r.unknown {
			r.late = true
			s.until(r, time.Now().Add(placeFor))
		} else {
			s.forget(r)
		}
	} else if r.stage == asked {
		s.forget(r)
	}
	return reply, err
}

// acquisition is one call to acquire a lease.
type acquisition struct {
	store *Store
	op    operation
	path  string
	req   *store.LeaseRequest
	of    *request
}

// seen is what a step has found.
type seen struct {
	*snapshot
	wrote     bool // the step has written the entry
	tombstone bool
	base      int64 // of fences
}

// mostTries bounds the tries of a step that wants that no entry changes in between.
const mostTries = 50

var (
	errMoved = store.Unavailable(store.OtherCause, "etcd: the entries of the key change too often")
	errAgain = errors.New("the step is to be tried again")
)

// do tries steps until one has an outcome.
func (a *acquisition) do(ctx context.Context) (store.LeaseReply, error) {
	for try := range mostTries {
		if try > 2 && !backoff.Sleep(ctx, time.Duration(rand.Int64N(int64(min(try, 10))*int64(time.Millisecond)))) { //nolint:gosec // jitter
			return store.LeaseReply{}, ctx.Err()
		}
		reply, err := a.once(ctx)
		if !errors.Is(err, errAgain) {
			return reply, err
		}
	}
	return store.LeaseReply{}, errMoved
}

func (a *acquisition) once(ctx context.Context) (store.LeaseReply, error) {
	s := a.store
	base, err := s.fenceBase(ctx)
	if err != nil {
		return store.LeaseReply{}, err
	}
	on, err := s.leases.get(ctx, waits)
	if err != nil {
		return store.LeaseReply{}, err
	}
	s.mu.Lock()
	fresh := a.of.stage == asked && !a.of.unknown
	s.mu.Unlock()
	e := newEntry(a.req)
	e.at, e.base, e.process = a.path+a.req.ID, base, s.process
	if len(s.config.secret) == 0 {
		e.key = a.req.Key
	}
	sent := time.Now()
	var found *seen
	switch {
	case fresh && a.req.Place == 0 && a.req.Reserve == 0 && a.req.Queue:
		found, err = a.put(ctx, &e, on, clientv3.Compare(clientv3.CreateRevision(e.at), "=", 0))
	case fresh && a.req.Place == 0 && a.req.Reserve == 0 && a.req.Weight == a.req.Capacity:
		found, err = a.put(ctx, &e, on, clientv3.Compare(clientv3.CreateRevision(a.path), "=", 0).WithPrefix())
	default:
		return a.look(ctx, &e, on)
	}
	if err != nil {
		return store.LeaseReply{}, err
	}
	if _, there := found.entries[e.ID]; there {
		found.wrote = true // perhaps by an earlier try, whose reply was lost
	}
	return a.judge(ctx, found, on, sent)
}

// put puts the entry on a lease, if the conditions hold, and returns the entries of the key.
func (a *acquisition) put(ctx context.Context, e *entry, on *lease, conditions ...clientv3.Cmp) (*seen, error) {
	s := a.store
	tombstone := s.tombstone(a.path, e.ID)
	conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(tombstone), "=", 0), s.sameBase(e.base))
	all := clientv3.OpGet(a.path, clientv3.WithPrefix())
	found, err := run(ctx, s, a.op, func(ctx context.Context, repeated bool) (*seen, error) {
		if repeated { // the earlier try may be carried out at any time, also after the release
			s.mu.Lock()
			a.of.late = true
			s.mu.Unlock()
		}
		reply, err := s.client.Txn(ctx).If(conditions...).
			Then(clientv3.OpPut(e.at, e.value(), clientv3.WithLease(on.id)), all).
			Else(all, clientv3.OpGet(tombstone, clientv3.WithKeysOnly()), clientv3.OpGet(s.fenceKey())).Commit()
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		if err != nil {
			return nil, err
		}
		if reply.Succeeded {
			return &seen{snapshotOf(reply.Header.Revision, reply.Responses[1].GetResponseRange().Kvs), true, false, e.base}, nil
		}
		return a.state(reply), nil
	})
	if err == nil && found == nil {
		s.mu.Lock()
		s.leases.bury(on, nil)
		s.mu.Unlock()
		return nil, errAgain
	}
	return found, err
}

// state returns what a transaction has found that has only read.
func (a *acquisition) state(reply *clientv3.TxnResponse) *seen {
	kvs := func(i int) []*mvccpb.KeyValue { return reply.Responses[i].GetResponseRange().Kvs }
	return &seen{snapshotOf(reply.Header.Revision, kvs(0)), false, len(kvs(1)) > 0, baseOf(kvs(2))}
}

// judge decides by what a step has found that may have put the entry.
func (a *acquisition) judge(ctx context.Context, found *seen, on *lease, sent time.Time) (store.LeaseReply, error) {
	s, req := a.store, a.req
	e, there := found.entries[req.ID]
	switch {
	case found.tombstone:
		return store.LeaseReply{Outcome: store.Withdrawn}, nil
	case found.base != s.base.Load() && found.base != 0:
		s.base.Store(found.base)
		return store.LeaseReply{}, errAgain
	case !there && !found.wrote:
		return a.refusal(found.snapshot, found.queue(), store.Taken), nil
	case !there:
		return store.LeaseReply{}, errAgain // another entry that this release cannot read, or one that has just expired
	}
	q := found.queue()
	if q.Holding(req.ID) {
		return a.granted(ctx, &e, on, sent)
	}
	if found.wrote && req.Place == 0 {
		full := req.MaxWaiting > 0 && len(q.Waiting)-1 >= req.MaxWaiting
		if full || !req.Queue {
			reply := a.refusal(found.snapshot, q, store.Taken)
			reply.QueueFull = full
			reply.Waiting--
			s.mu.Lock()
			a.of.hang(on)
			a.of.stage = waiting // so that it leaves no tombstone
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
	return cmp.Or(r.err, error(errDead))
}

// of returns the lease of this process with an ID, or nil. The caller holds the store's mu.
func (a *leases) of(id clientv3.LeaseID) *lease {
	for _, l := range a.alive {
		if l.id == id {
			return l
		}
	}
	return nil
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

// look reads the entries of the key first, and then writes the request's, if none of them has changed.
func (a *acquisition) look(ctx context.Context, e *entry, on *lease) (store.LeaseReply, error) {
	s, req := a.store, a.req
	found, err := run(ctx, s, a.op, func(ctx context.Context, _ bool) (*seen, error) {
		reply, err := s.client.Txn(ctx).Then(clientv3.OpGet(a.path, clientv3.WithPrefix()),
			clientv3.OpGet(s.tombstone(a.path, e.ID), clientv3.WithKeysOnly()), clientv3.OpGet(s.fenceKey())).Commit()
		if err != nil {
			return nil, err
		}
		return a.state(reply), nil
	})
	if err != nil {
		return store.LeaseReply{}, err
	}
	if own, ok := found.entries[e.ID]; ok && !found.tombstone {
		return a.repeat(ctx, found, &own, on)
	}
	s.mu.Lock()
	if r := a.of; r.stage == waiting || r.stage == holding { // its entry is gone
		lost := r.stage == holding
		s.endRequest(r, nil)
		a.of = s.ask(a.path, req)
		if lost {
			s.start(func() { s.lost.Call(req.ID) })
		}
	}
	s.mu.Unlock()
	if found.tombstone || found.base != e.base {
		return a.judge(ctx, found, on, time.Now())
	}
	q := found.queue()
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(a.path), "<", found.revision+1).WithPrefix()}
	fits := req.Place == 0 && q.Fits(e.Entry)
	switch {
	case req.Place != 0:
		conditions = append(conditions, anew(e, found.snapshot, q)...)
		if !req.Queue && !a.wouldHold(found.snapshot, e) {
			return a.refusal(found.snapshot, q, store.Taken), nil
		}
	case fits && e.Reserve > 0:
		e.Order, e.Held = q.Next(), true
	case !fits && !req.Queue:
		return a.refusal(found.snapshot, q, store.Taken), nil
	case !fits && req.MaxWaiting > 0 && len(q.Waiting) >= req.MaxWaiting:
		reply := a.refusal(found.snapshot, q, store.Taken)
		reply.QueueFull = true
		return reply, nil
	}
	sent := time.Now()
	after, err := a.put(ctx, e, on, conditions...)
	if err != nil {
		return store.LeaseReply{}, err
	}
	if _, there := after.entries[e.ID]; !there && !after.tombstone {
		return store.LeaseReply{}, errAgain
	}
	return a.judge(ctx, after, on, sent)
}

// wouldHold reports whether an entry with an Order would hold at once.
func (a *acquisition) wouldHold(seen *snapshot, e *entry) bool {
	with := &snapshot{seen.revision, map[string]entry{}}
	for id, other := range seen.entries {
		with.entries[id] = other
	}
	it := *e
	it.Created = seen.revision + 1
	with.entries[e.ID] = it
	return with.queue().Holding(e.ID)
}

// repeat decides about a request whose entry is there.
func (a *acquisition) repeat(ctx context.Context, found *seen, own *entry, on *lease) (store.LeaseReply, error) {
	s, req := a.store, a.req
	q := found.queue()
	s.mu.Lock()
	holds := a.of.stage == holding || q.Holding(req.ID)
	s.mu.Unlock()
	change := *own
	switch {
	case holds:
		return a.granted(ctx, own, on, time.Now())
	case own.Capacity != req.Capacity:
		change.Capacity = req.Capacity
	case own.Reserve > 0 && q.Fits(own.Entry):
		change.Order, change.Held = q.Next(), true
	default:
		return a.queued(found.snapshot, q, own, on)
	}
	// The lease is that of the entry: it may have been put on another one than the present.
	if _, err := s.rewrite(ctx, &change, found.revision, a.path); err != nil {
		return store.LeaseReply{}, err
	}
	return store.LeaseReply{}, errAgain // and see what has become of it
}

// rewrite writes a changed entry, if no entry of its key has changed since a revision. It reports
// whether it has.
func (s *Store) rewrite(ctx context.Context, e *entry, since int64, path string) (bool, error) {
	reply, err := run(ctx, s, opAwait, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		reply, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(path), "<", since+1).WithPrefix(),
			clientv3.Compare(clientv3.CreateRevision(e.at), "=", e.Created)).
			Then(clientv3.OpPut(e.at, e.value(), clientv3.WithLease(e.on))).Commit()
		if isLeaseGone(err) {
			return &clientv3.TxnResponse{}, nil
		}
		return reply, err
	})
	return err == nil && reply.Succeeded, err
}

// refusal returns the reply to a request that is not granted.
func (a *acquisition) refusal(seen *snapshot, q *position.Queue, outcome store.AcquireOutcome) store.LeaseReply {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return a.store.refusalLocked(seen, q, a.req, outcome)
}
