package etcdstore

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

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
		r.asking--
		a.of = s.ask(a.path, req)
		a.of.asking++
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
			return a.refusal(found.snapshot, q), nil
		}
	case fits && e.Reserve > 0:
		e.Order, e.Held = q.Next(found.revision), true
	case !fits && !req.Queue:
		return a.refusal(found.snapshot, q), nil
	case !fits && req.MaxWaiting > 0 && len(q.Waiting) >= req.MaxWaiting:
		reply := a.refusal(found.snapshot, q)
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
		change.Order, change.Held = q.Next(found.revision), true
	default:
		return a.queued(found.snapshot, q, own, on)
	}
	if err := s.rewrite(ctx, &change, found.revision, a.path); err != nil {
		return store.LeaseReply{}, err
	}
	return store.LeaseReply{}, errAgain // and see what has become of it
}

// rewrite writes a changed entry, on the lease that it is on, if no entry of its key has changed since a
// revision.
func (s *Store) rewrite(ctx context.Context, e *entry, since int64, path string) error {
	_, err := run(ctx, s, opAwait, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		reply, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(path), "<", since+1).WithPrefix(),
			clientv3.Compare(clientv3.CreateRevision(e.at), "=", e.Created)).
			Then(clientv3.OpPut(e.at, e.value(), clientv3.WithLease(e.on))).Commit()
		if isLeaseGone(err) {
			return &clientv3.TxnResponse{}, nil
		}
		return reply, err
	})
	return err
}

// refusal returns the reply to a request that is refused.
func (a *acquisition) refusal(seen *snapshot, q *position.Queue) store.LeaseReply {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return a.store.refusalLocked(seen, q, a.req, store.Taken)
}
