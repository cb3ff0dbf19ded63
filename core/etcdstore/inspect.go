package etcdstore

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// listPage is how many entries are listed together.
const listPage = 1000

// remaining are the times that leases of other processes have left, as the server counts them, by ID.
type remaining map[clientv3.LeaseID]time.Duration

// InspectLease implements store.LeaseLister: one read, and one for each lease of another process, by whose
// rest the Remaining of its holds is bounded. Ages are those of the processes' own clocks.
func (s *Store) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	if err := s.ready(ctx); err != nil {
		return store.LeaseState{}, err
	}
	path := s.path(name, key)
	s.settle(ctx, path)
	kvs, revision, err := s.page(ctx, path, clientv3.GetPrefixRangeEnd(path), 0)
	if err != nil {
		return store.LeaseState{}, err
	}
	state, err := s.state(ctx, snapshotOf(revision, kvs), remaining{})
	state.Key = key
	return state, err
}

// ListLeases implements store.LeaseLister: a read for each 1,000 entries, and for each lease of another
// process. With WithSecret, the Key of each state is the hash of the key.
func (s *Store) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return func(yield func(store.LeaseState, error) bool) {
		from := s.names(name)
		end := clientv3.GetPrefixRangeEnd(from)
		left := remaining{}
		var kept []*mvccpb.KeyValue // of the last key of a page, which the next one may continue
		for more := true; more; {
			err := s.ready(ctx)
			var page []*mvccpb.KeyValue
			if err == nil {
				page, _, err = s.page(ctx, from, end, listPage)
			}
			if err != nil {
				yield(store.LeaseState{}, err)
				return
			}
			if more = len(page) == listPage; more {
				from = string(page[len(page)-1].Key) + "\x00"
			}
			kept = append(kept, page...)
			for len(kept) > 0 {
				path := pathOf(kept[0])
				n := 1
				for n < len(kept) && pathOf(kept[n]) == path {
					n++
				}
				if n == len(kept) && more {
					break
				}
				state, err := s.state(ctx, snapshotOf(0, kept[:n]), left)
				if kept = kept[n:]; len(state.Holders)+state.Waiting == 0 && err == nil {
					continue
				}
				if !yield(state, err) || err != nil {
					return
				}
			}
		}
	}
}

// pathOf returns the prefix of the entries of a key from the name of one.
func pathOf(kv *mvccpb.KeyValue) string {
	return string(kv.Key[:strings.LastIndexByte(string(kv.Key), '/')+1])
}

// page reads keys in a range: all of them if limit is 0.
func (s *Store) page(ctx context.Context, from, end string, limit int64) ([]*mvccpb.KeyValue, int64, error) {
	reply, err := run(ctx, s, opInspect, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit))
	})
	if err != nil {
		return nil, 0, err
	}
	return reply.Kvs, reply.Header.Revision, nil
}

// state returns the public state of a key by its entries.
func (s *Store) state(ctx context.Context, seen *snapshot, left remaining) (state store.LeaseState, err error) {
	s.mu.Lock()
	for id, e := range seen.entries {
		if s.condemned[e.at] != nil {
			delete(seen.entries, id) // it has ended
		}
		state.Key = cmp.Or(e.key, keyOf(e.at[:strings.LastIndexByte(e.at, '/')+1]))
	}
	s.mu.Unlock()
	q := seen.queue()
	state.InUse, state.Waiting = q.InUse, len(q.Waiting)
	now := time.Now()
	age := func(e *entry) time.Duration { return max(now.Sub(time.UnixMilli(e.since)), 0) }
	for _, hold := range q.Holds[:min(len(q.Holds), store.MaxListed)] {
		e := seen.entries[hold.ID]
		holder := store.LeaseHolder{Fence: e.firstFence(), LastFence: e.lastFence(), Weight: e.Weight, Label: e.label, Age: age(&e)}
		var own bool
		if holder.Remaining, own = s.ownRemaining(&e, &holder); !own {
			if holder.Remaining, err = s.othersRemaining(ctx, &e, left); err != nil {
				return state, err
			}
		}
		state.Holders = append(state.Holders, holder)
	}
	for _, w := range q.Waiting[:min(len(q.Waiting), store.MaxListed)] {
		e := seen.entries[w.ID]
		state.Waiters = append(state.Waiters, store.LeaseWaiter{Weight: e.Weight, Reserve: e.Reserve, Label: e.label, Age: age(&e)})
	}
	return state, nil
}

// ownRemaining returns how long a hold lasts, if it is one of this process, which has its age, too.
func (s *Store) ownRemaining(e *entry, holder *store.LeaseHolder) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(e.at[:len(e.at)-len(e.ID)], e.ID)
	if r == nil || r.stage != holding {
		return e.ttl, e.process == s.process
	}
	if holder != nil {
		holder.Age = time.Since(r.granted)
	}
	return max(time.Until(r.ends), 0), true
}

// othersRemaining returns how long a hold of another process lasts at most.
func (s *Store) othersRemaining(ctx context.Context, e *entry, left remaining) (time.Duration, error) {
	rest, ok := left[e.on]
	if !ok {
		reply, err := run(ctx, s, opInspect, func(ctx context.Context, _ bool) (*clientv3.LeaseTimeToLiveResponse, error) {
			return s.client.TimeToLive(ctx, e.on)
		})
		if err != nil {
			return 0, err
		}
		rest = max(time.Duration(reply.TTL)*time.Second, 0)
		left[e.on] = rest
	}
	return min(e.ttl, rest), nil
}

// refusalLocked returns the reply to a request that is not granted. The caller holds mu.
func (s *Store) refusalLocked(seen *snapshot, q *position.Queue, req *store.LeaseRequest, outcome store.AcquireOutcome) store.LeaseReply {
	reply := store.LeaseReply{Outcome: outcome, InUse: q.InUse, Waiting: len(q.Waiting)}
	if outcome == store.Queued {
		reply.Waiting--
	}
	if len(q.Holds) == 0 {
		return reply
	}
	first := seen.entries[q.Holds[0].ID]
	reply.Holder = first.label
	type end struct {
		weight int
		in     time.Duration
	}
	ends := make([]end, 0, len(q.Holds))
	for _, hold := range q.Holds {
		e := seen.entries[hold.ID]
		in := e.ttl
		if r := s.find(e.at[:len(e.at)-len(e.ID)], e.ID); r != nil && r.stage == holding {
			in = max(time.Until(r.ends), 0)
		}
		ends = append(ends, end{e.Weight, in})
	}
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.in, b.in) })
	over := int64(q.InUse) + int64(req.Weight) - int64(req.Capacity-req.Reserve)
	for _, e := range ends {
		reply.Remaining = e.in
		if over -= int64(e.weight); over <= 0 {
			break
		}
	}
	return reply
}
