package zkstore

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// InspectLease implements store.LeaseLister: one request, and one for each hold and waiter that it
// lists. It may be a little late, as what the store's server has seen may be. Of the holds of other
// processes the Age begins when they joined the queue, by the clocks of these, and the Remaining is
// at most what it says.
func (s *Store) InspectLease(ctx context.Context, name, key string) (state store.LeaseState, err error) {
	if err := s.calls.over(ctx); err != nil {
		return store.LeaseState{}, err
	}
	done := s.telemetry.Begin(ctx, opInspect)
	defer func() { done.End(ctx, err) }()
	return s.inspect(ctx, s.placeOf(name, key))
}

func (s *Store) inspect(ctx context.Context, p place) (state store.LeaseState, err error) {
	state.Key = p.key
	s.settle(ctx, p.path)
	var (
		q    *queue
		held int
	)
	for range 3 { // a queue whose entries have left while they were read may have others
		list, err := s.children(ctx, p, reads)
		if err != nil || len(list) == 0 {
			return state, err
		}
		q = s.queueOf(p, list, false)
		if held, err = q.read(ctx, s); err != nil {
			return state, err
		}
		if err := q.readSome(ctx, s, q.list[held:min(held+store.MaxListed, len(q.list))]); err != nil {
			return state, err
		}
		if len(q.list) == len(list) {
			break
		}
	}
	if held, err = q.read(ctx, s); err != nil {
		return state, err
	}
	holders := q.position(held)
	state.InUse, state.Waiting = holders.InUse, len(q.list)-held
	base, err := s.fenceBase(ctx)
	if err != nil {
		return state, err
	}
	for i, c := range q.list {
		f := q.facts[c.name]
		switch {
		case f == nil:
		case i < held && i < store.MaxListed:
			fence := base + f.czxid<<fenceBits
			state.Holders = append(state.Holders, store.LeaseHolder{
				Fence: fence, LastFence: fence + int64(f.fences) - 1, Weight: f.weight, Label: f.label,
				Age: q.age(s, c.name, true), Remaining: q.remaining(s, c.name),
			})
		case i >= held && i < held+store.MaxListed:
			state.Waiters = append(state.Waiters, store.LeaseWaiter{Weight: f.weight, Label: f.label, Age: q.age(s, c.name, false)})
		}
	}
	return state, nil
}

// age returns since when an entry has been there, and a hold of this process since its grant.
func (q *queue) age(s *Store, name string, held bool) time.Duration {
	since := q.facts[name].joined
	if e := q.own[name]; e != nil {
		s.entries.mu.Lock()
		since = e.joined
		if held && e.stage == holding {
			since = e.granted
		}
		s.entries.mu.Unlock()
	}
	return max(time.Since(since), 0)
}

// ListLeases implements store.LeaseLister. It takes a request for the name, and for each key those of
// InspectLease and one more.
func (s *Store) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return func(yield func(store.LeaseState, error) bool) {
		if err := s.calls.over(ctx); err != nil {
			yield(store.LeaseState{}, err)
			return
		}
		parent := s.nameOf(name)
		keys, err := call(ctx, s.calls, reads, func(c *zk.Conn) ([]string, error) {
			names, _, err := c.Children(parent)
			if errors.Is(err, zk.ErrNoNode) {
				return nil, nil
			}
			return names, err
		}, nil)
		if err != nil {
			yield(store.LeaseState{}, err)
			return
		}
		for _, of := range keys {
			state, err := s.inspectNode(ctx, name, parent+"/"+of, of)
			if err == nil && state.InUse+state.Waiting == 0 {
				continue
			}
			if !yield(state, err) || err != nil {
				return
			}
		}
	}
}

// inspectNode inspects the key of a container. If keys are secret, its name stands for the key.
func (s *Store) inspectNode(ctx context.Context, name, path, of string) (state store.LeaseState, err error) {
	done := s.telemetry.Begin(ctx, opInspect)
	defer func() { done.End(ctx, err) }()
	key, err := call(ctx, s.calls, reads, func(c *zk.Conn) ([]byte, error) {
		data, _, err := c.Get(path)
		return data, err
	}, nil)
	if errors.Is(err, zk.ErrNoNode) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	p := place{name, string(key), path}
	if len(s.config.secret) > 0 {
		p.key = of
	}
	return s.inspect(ctx, p)
}

// RevokeLease implements store.LeaseRevoker. Its holder is notified if it has held for 50 ms.
func (s *Store) RevokeLease(ctx context.Context, name, key string, fence int64) (ended bool, err error) {
	if err := s.calls.over(ctx); err != nil {
		return false, err
	}
	done := s.telemetry.Begin(ctx, opRelease)
	defer func() { done.End(ctx, err) }()
	p := s.placeOf(name, key)
	base, err := s.fenceBase(ctx)
	if err != nil {
		return false, err
	}
	s.settle(ctx, p.path)
	if err := s.sync(ctx, reads); err != nil {
		return false, err
	}
	list, err := s.children(ctx, p, reads)
	if err != nil {
		return false, err
	}
	q := s.queueOf(p, list, false)
	held, err := q.read(ctx, s)
	if err != nil {
		return false, err
	}
	for _, c := range q.list[:held] {
		f := q.facts[c.name]
		if first := base + f.czxid<<fenceBits; fence < first || fence >= first+int64(f.fences) {
			continue
		}
		return s.revoke(ctx, q, c)
	}
	return false, nil
}

func (s *Store) revoke(ctx context.Context, q *queue, c child) (bool, error) {
	e := q.own[c.name]
	if e == nil {
		err := s.delete(ctx, q.path+"/"+c.name)
		if errors.Is(err, errLost) {
			err = s.delete(ctx, q.path+"/"+c.name)
			if errors.Is(err, zk.ErrNoNode) {
				err = nil
			}
		}
		if errors.Is(err, zk.ErrNoNode) {
			return false, nil
		}
		return err == nil, err
	}
	was := s.leave(e, store.ErrWithdrawn)
	if _, err := s.remove(ctx, e); err != nil {
		return false, err
	}
	if was == holding {
		s.lost.Call(e.id)
	}
	return was == holding, nil
}

// NotifyLost implements store.LeaseRevoker: f is called for holds that another process has revoked,
// and for those of a session that has ended.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.lost.Add(f) }
