package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// RenewLeases implements store.Leases. The first renewal of a hold writes its entry anew, on the lease of
// its TTL. Later ones read whether the entries are there: a transaction for each 120 of them. The leases are
// kept alive once a second, and at once only for a renewal that needs it.
func (s *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	held := make([]bool, len(refs))
	if err := s.ready(ctx); err != nil {
		return held, err
	}
	by := make(map[kindOfLease][]*renewal)
	first := make(map[*request]int, len(refs))
	again := make(map[int]int) // references to the same hold as an earlier one
	s.mu.Lock()
	now := time.Now()
	for i, ref := range refs {
		r := s.held(ref, now)
		if r == nil {
			continue
		}
		if j, ok := first[r]; ok {
			again[i] = j
			continue
		}
		first[r] = i
		kind := kindFor(ref.TTL)
		by[kind] = append(by[kind], &renewal{of: r, ttl: ref.TTL, weight: r.entry.Weight, held: &held[i]})
	}
	s.mu.Unlock()
	var failed error
	for kind, renewals := range by {
		if err := s.renew(ctx, kind, renewals); err != nil {
			failed = err
		}
	}
	for i, j := range again {
		held[i] = held[j]
	}
	return held, failed
}

// held returns the hold that a reference names, if it has not ended, or nil. The caller holds mu.
func (s *Store) held(ref store.LeaseRef, now time.Time) *request {
	r := s.find(s.path(ref.Name, ref.Key), ref.ID)
	if r == nil || s.expire(r, now) || r.stage != holding || r.entry.firstFence() != ref.Fence {
		return nil
	}
	return r
}

// renewal is a renewal of a hold.
type renewal struct {
	of      *request
	ttl     time.Duration
	weight  int // of the hold from now on, if that is less
	held    *bool
	entry   entry // as last seen
	first   bool  // since the grant,
	granted int64 // at that time, in ms
}

// renew renews holds on a lease of a kind.
func (s *Store) renew(ctx context.Context, kind kindOfLease, all []*renewal) error {
	began := time.Now()
	longest := time.Duration(0)
	for _, r := range all {
		longest = max(longest, r.ttl)
	}
	on, err := s.leases.get(ctx, kind)
	if err == nil && !s.covers(on, began, longest) {
		err = s.leases.keepAlive(ctx, on)
		if err == nil && !s.covers(on, began, longest) { // it was one in flight
			err = s.leases.keepAlive(ctx, on)
		}
	}
	if err != nil {
		return err
	}
	var there, elsewhere []*renewal
	s.mu.Lock()
	for _, r := range all {
		if r.of.stage != holding { // since
			continue
		}
		r.entry, r.first, r.granted = r.of.entry, r.of.lease.kind.waits, r.of.granted.UnixMilli()
		if r.of.lease == on && r.weight >= r.entry.Weight {
			there = append(there, r)
		} else {
			elsewhere = append(elsewhere, r)
		}
	}
	s.mu.Unlock()
	for len(there) > 0 {
		part := there[:min(len(there), inTransaction)]
		there = there[len(part):]
		if err := s.confirm(ctx, on, part, began); err != nil {
			return err
		}
	}
	for try := 0; len(elsewhere) > 0 && try < 2*len(all)+mostTries; try++ {
		part := elsewhere[:min(len(elsewhere), inTransaction/2)]
		left, err := s.move(ctx, on, part, began)
		if err != nil {
			return err
		}
		elsewhere = append(left, elsewhere[len(part):]...)
	}
	return nil
}

// confirm renews holds whose entries are on the lease, if they are there.
func (s *Store) confirm(ctx context.Context, on *lease, part []*renewal, began time.Time) error {
	keys := make([]string, len(part))
	for i, r := range part {
		keys[i] = r.entry.at
	}
	kvs, err := s.gets(ctx, opRenew, keys)
	if err != nil {
		return err
	}
	s.telemetry.Batch(ctx, len(part))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range part {
		kv := kvs[i]
		s.renewed(r, kv != nil && kv.CreateRevision == r.entry.Created && clientv3.LeaseID(kv.Lease) == on.id, on, began)
	}
	return nil
}

// renewed notes the result of a renewal. The caller holds mu.
func (s *Store) renewed(r *renewal, there bool, on *lease, began time.Time) {
	h := r.of
	switch {
	case h.stage != holding || s.expire(h, time.Now()):
		return
	case !there:
		s.endRequest(h, nil)
		return
	}
	*r.held = true
	h.hang(on)
	h.req.TTL, h.untaken, h.sent = r.ttl, false, began
	s.until(h, began.Add(r.ttl))
}

// move writes entries anew, on a lease, and returns the ones that have changed in between.
func (s *Store) move(ctx context.Context, on *lease, part []*renewal, began time.Time) (left []*renewal, err error) {
	steps := make([]clientv3.Op, len(part))
	for i, r := range part {
		if r.entry.ttl = r.ttl; r.first {
			r.entry.since = r.granted
		}
		r.entry.Weight = min(r.entry.Weight, max(r.weight, 1))
		steps[i] = clientv3.OpTxn(
			[]clientv3.Cmp{
				clientv3.Compare(clientv3.CreateRevision(r.entry.at), "=", r.entry.Created),
				clientv3.Compare(clientv3.ModRevision(r.entry.at), "=", r.entry.mod),
			},
			[]clientv3.Op{clientv3.OpPut(r.entry.at, r.entry.value(), clientv3.WithLease(on.id))},
			[]clientv3.Op{clientv3.OpGet(r.entry.at)},
		)
	}
	reply, err := run(ctx, s, opRenew, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		reply, err := s.client.Txn(ctx).Then(steps...).Commit()
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		return reply, err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply == nil {
		s.leases.bury(on, nil)
		return nil, errDead
	}
	s.telemetry.Batch(ctx, len(part))
	for i, r := range part {
		one := reply.Responses[i].GetResponseTxn()
		if one.Succeeded {
			r.entry.mod, r.entry.on = reply.Header.Revision, on.id
			if r.of.entry.mod < r.entry.mod {
				r.of.entry = r.entry
			}
			s.renewed(r, true, on, began)
			continue
		}
		kv := only(one.Responses[0].GetResponseRange().Kvs)
		if kv == nil || kv.CreateRevision != r.entry.Created {
			s.renewed(r, false, on, began)
			continue
		}
		now, err := read(kv)
		if err != nil {
			return nil, err
		}
		if r.of.entry.mod < now.mod {
			r.of.entry = now
		}
		r.entry = now
		left = append(left, r)
	}
	return left, nil
}

// takeUp makes an untaken hold as long as its TTL, and returns the grant.
func (s *Store) takeUp(ctx context.Context, r *request) (store.Grant, error) {
	s.mu.Lock()
	ref := r.req.Ref(r.entry.firstFence())
	s.mu.Unlock()
	held, err := s.RenewLeases(ctx, []store.LeaseRef{ref})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		return store.Grant{}, err
	case !held[0] || r.stage != holding:
		return store.Grant{}, errDead
	}
	return r.grant(), nil
}

// DowngradeLease implements store.LeaseDowngrader: one write, which keeps the entry's place.
func (s *Store) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	s.mu.Lock()
	r := s.held(ref, time.Now())
	s.mu.Unlock()
	if r == nil {
		return false, nil
	}
	held := false
	err := s.renew(ctx, kindFor(ref.TTL), []*renewal{{of: r, ttl: ref.TTL, weight: weight, held: &held}})
	return held, err
}

// VerifyLease implements store.LeaseVerifier: one read.
func (s *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	s.mu.Lock()
	r := s.held(ref, time.Now())
	if r == nil {
		s.mu.Unlock()
		return false, nil
	}
	at, created := r.entry.at, r.entry.Created
	s.mu.Unlock()
	kvs, err := s.gets(ctx, opVerify, []string{at})
	if err != nil {
		return false, err
	}
	if there := kvs[0] != nil && kvs[0].CreateRevision == created; !there {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held(ref, time.Now()) == r, nil
}
