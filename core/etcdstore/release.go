package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// previous returns the entry that a deletion has found, or nil.
func previous(kvs []*mvccpb.KeyValue) *entry {
	if len(kvs) != 1 {
		return nil
	}
	e, err := read(kvs[0])
	if err != nil {
		e = entry{}
		e.Created = kvs[0].CreateRevision
	}
	return &e
}

func isFull(err error) bool { return errors.Is(err, store.ErrFull) }

// releasing is one reference of a release.
type releasing struct {
	deletion
	ref   store.LeaseRef
	held  bool // until now, with its fence, as this process knows
	lease *lease
}

// ReleaseLeases implements store.Leases: a transaction for each 60 of them. If the server
// does not reply, the entries are deleted in the background as soon as it does.
func (s *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	outcomes := make([]store.ReleaseOutcome, len(refs))
	if err := s.ready(ctx); err != nil {
		return outcomes, err
	}
	all := make([]releasing, len(refs))
	s.mu.Lock()
	for i, ref := range refs {
		all[i] = s.release(ref)
	}
	s.mu.Unlock()
	for from := 0; from < len(all); from += inTransaction / 2 {
		part := all[from:min(from+inTransaction/2, len(all))]
		if err := s.sendReleases(ctx, part, outcomes[from:]); err != nil {
			s.mu.Lock()
			for _, r := range all[from:] {
				s.sentence(&condemned{deletion: r.deletion, lease: r.lease, done: make(chan struct{})})
			}
			s.mu.Unlock()
			return outcomes, err
		}
	}
	return outcomes, nil
}

// ready returns the error of a call of a store that is closed, or whose context has ended.
func (s *Store) ready(ctx context.Context) error {
	if s.life.Err() != nil {
		return store.ErrClosed
	}
	return ctx.Err()
}

// release ends a request in this process. The caller holds mu.
func (s *Store) release(ref store.LeaseRef) releasing {
	path := s.path(ref.Name, ref.Key)
	out := releasing{ref: ref, deletion: deletion{at: path + ref.ID}}
	r := s.find(path, ref.ID)
	if r == nil {
		s.withdraw(ref.ID)
		return out
	}
	out.lease = r.lease
	out.held = r.stage == holding && time.Now().Before(r.ends) && (ref.Fence == 0 || ref.Fence == r.entry.firstFence())
	out.deletion = s.deletionOf(r)
	if r.stage != holding {
		s.withdraw(ref.ID)
	}
	s.endRequest(r, store.ErrWithdrawn)
	return out
}

func (s *Store) sendReleases(ctx context.Context, part []releasing, outcomes []store.ReleaseOutcome) error {
	gone := make([]deletion, len(part))
	for i, r := range part {
		gone[i] = r.deletion
	}
	found, err := s.remove(ctx, gone)
	if err != nil {
		return err
	}
	for i, r := range part {
		before := found.before[i]
		switch {
		case before != nil && r.held:
			outcomes[i] = store.Released
		case before != nil && r.ref.Fence != 0 && before.firstFence() == r.ref.Fence && before.process != s.process:
			outcomes[i] = store.Released // of an earlier process
		case before == nil && (r.ref.Repeated || r.held && found.repeated):
			outcomes[i] = store.ReleaseUnknown
		default:
			outcomes[i] = store.NotHeld
		}
	}
	return nil
}
