package etcdstore

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// condemned is an entry that is to be deleted, whatever becomes of the call that has ended it: the
// process's other entries keep its lease alive.
type condemned struct {
	deletion
	lease *lease // that it hangs on
	done  chan struct{}
}

// deletion is the deletion of an entry. Its request may be repeated, and reach the server when the same
// request has a new entry: one that has lost its place is queued anew with its ID. So it takes the entry
// of one revision. Unless that is not known: then the ID is not used again, by its tombstone, or since
// the process withdraws it.
type deletion struct {
	at        string
	created   int64  // the revision; 0 for any
	tombstone string // the key of one that it leaves; "" for none
}

// deletionOf returns the deletion of a request's entry. The caller holds mu.
func (s *Store) deletionOf(r *request) deletion {
	d := deletion{at: r.of.path + r.req.ID, created: r.entry.Created}
	if r.late || r.stage == asked {
		d.created, d.tombstone = 0, s.tombstone(r.of.path, r.req.ID)
	}
	return d
}

// sentence deletes an entry soon. The caller holds mu.
func (s *Store) sentence(c *condemned) {
	if s.condemned[c.at] != nil {
		return
	}
	s.condemned[c.at] = c
	if !s.sweeping {
		s.sweeping = s.start(s.sweep)
	}
}

// sweep deletes condemned entries until none is left.
func (s *Store) sweep() {
	pause := backoff.Growing{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond}
	for {
		batch := s.nextCondemned()
		if len(batch) == 0 {
			return
		}
		gone := make([]deletion, len(batch))
		for i, c := range batch {
			gone[i] = c.deletion
		}
		if _, err := s.remove(s.life, gone); err == nil {
			s.swept(batch)
			pause.Reset()
		} else if !backoff.Sleep(s.life, pause.Next()) {
			return
		}
	}
}

// nextCondemned returns entries to delete. Those whose lease has ended are deleted by the server.
func (s *Store) nextCondemned() (batch []*condemned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for at, c := range s.condemned {
		switch {
		case c.lease != nil && c.lease.dead && now.After(c.lease.sent.Add(2*c.lease.ttl)):
			delete(s.condemned, at)
			close(c.done)
		case len(batch) < inTransaction/2:
			batch = append(batch, c)
		}
	}
	s.sweeping = len(batch) > 0
	return batch
}

func (s *Store) swept(batch []*condemned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range batch {
		if s.condemned[c.at] == c {
			delete(s.condemned, c.at)
			close(c.done)
		}
	}
}

// settle ends the requests of a key whose time is over, and waits until their entries are gone, or for
// as long as a step takes.
func (s *Store) settle(ctx context.Context, path string) {
	var left []*condemned
	s.mu.Lock()
	if k := s.keys[path]; k != nil {
		now := time.Now()
		for _, r := range k.requests {
			s.expire(r, now)
		}
	}
	for _, c := range s.condemned {
		if len(c.at) > len(path) && c.at[:len(path)] == path {
			left = append(left, c)
		}
	}
	s.mu.Unlock()
	if len(left) == 0 || s.breaker.IsOpen() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	for _, c := range left {
		select {
		case <-c.done:
		case <-ctx.Done():
			return
		}
	}
}

// awaitSweep waits until all condemned entries are gone, or ctx ends.
func (s *Store) awaitSweep(ctx context.Context) {
	s.mu.Lock()
	left := make([]*condemned, 0, len(s.condemned))
	for _, c := range s.condemned {
		left = append(left, c)
	}
	s.mu.Unlock()
	for _, c := range left {
		select {
		case <-c.done:
		case <-ctx.Done():
			return
		}
	}
}

// removed is what a deletion has found: nil for what was not there.
type removed struct {
	before   []*entry
	repeated bool // an earlier try of the same call may have deleted what was there
	lost     bool // nothing was deleted: the server has lost the lease of tombstones
}

// remove deletes entries, and leaves tombstones. A server without room refuses transactions, also those
// that only delete, but not the deletion of a key, of any revision; then there are no tombstones.
func (s *Store) remove(ctx context.Context, gone []deletion) (removed, error) {
	var on clientv3.LeaseID
	full := false
	if slices.ContainsFunc(gone, func(d deletion) bool { return d.tombstone != "" }) {
		var err error
		if on, err = s.leases.forTombstones(ctx); err != nil && !isFull(err) {
			return removed{}, err
		}
		full = err != nil
	}
	var found removed
	var err error
	if !full {
		found, err = s.removeAll(ctx, gone, on)
	}
	switch {
	case found.lost:
		s.leases.noGraves(on)
		return s.remove(ctx, gone)
	case !full && !isFull(err):
		return found, err
	}
	found = removed{}
	for _, d := range gone {
		one, err := s.removeOne(ctx, d.at)
		if err != nil {
			return removed{}, err
		}
		found.before, found.repeated = append(found.before, one.before...), found.repeated || one.repeated
	}
	return found, nil
}

// removeAll is remove in one transaction, with tombstones on a lease.
func (s *Store) removeAll(ctx context.Context, gone []deletion, on clientv3.LeaseID) (removed, error) {
	steps := make([]clientv3.Op, 0, 2*len(gone))
	for _, d := range gone {
		step := clientv3.OpDelete(d.at, clientv3.WithPrevKV())
		if d.created != 0 {
			step = clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(d.at), "=", d.created)}, []clientv3.Op{step}, nil)
		}
		steps = append(steps, step)
	}
	for _, d := range gone {
		if d.tombstone != "" {
			steps = append(steps, clientv3.OpPut(d.tombstone, "", clientv3.WithLease(on)))
		}
	}
	return run(ctx, s, opRelease, func(ctx context.Context, repeated bool) (removed, error) {
		reply, err := s.client.Txn(ctx).Then(steps...).Commit()
		if isLeaseGone(err) {
			return removed{lost: true}, nil // an answer, and no failure
		}
		if err != nil {
			return removed{}, err
		}
		if len(gone) > 1 {
			s.telemetry.Batch(ctx, len(gone))
		}
		found := removed{repeated: repeated}
		for i, d := range gone {
			step := reply.Responses[i]
			if d.created != 0 {
				of := step.GetResponseTxn()
				if !of.Succeeded {
					found.before = append(found.before, nil)
					continue
				}
				step = of.Responses[0]
			}
			found.before = append(found.before, previous(step.GetResponseDeleteRange().PrevKvs))
		}
		return found, nil
	})
}

func (s *Store) removeOne(ctx context.Context, at string) (removed, error) {
	return run(ctx, s, opRelease, func(ctx context.Context, repeated bool) (removed, error) {
		reply, err := s.client.Delete(ctx, at, clientv3.WithPrevKV())
		if err != nil {
			return removed{}, err
		}
		return removed{before: []*entry{previous(reply.PrevKvs)}, repeated: repeated}, nil
	})
}
