package etcdstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	if s.condemned[path+req.ID] != nil { // the deletion would take the new entry, too
		s.mu.Unlock()
		return store.LeaseReply{}, errCondemned
	}
	r := s.ask(path, req)
	r.asking++
	s.mu.Unlock()
	a := &acquisition{store: s, op: op, path: path, req: req, of: r}
	reply, err := a.do(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	r = a.of
	r.asking--
	if r.asking > 0 || r.stage != asked {
		return reply, err
	}
	if err != nil {
		// The step may be in flight. Unless the request is repeated or released before, its
		// entry is deleted as one that no call awaits.
		if r.unknown = r.unknown || ctx.Err() != nil || errors.Is(err, store.ErrUnconfirmed); r.unknown {
			r.late = true
			s.until(r, time.Now().Add(placeFor))
		} else {
			s.forget(r)
		}
	} else {
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
	base  int64 // of the fences of the entry that is tried
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

	errCondemned = store.Unavailable(store.OtherCause, "etcd: an earlier entry of the request is still being deleted")
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
	a.base = base
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
