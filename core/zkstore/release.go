package zkstore

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ReleaseLeases implements store.Leases: one request for each reference, all of them together.
// Entries that it cannot remove are removed in the background, unless the session ends before.
func (s *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) (outcomes []store.ReleaseOutcome, err error) {
	outcomes = make([]store.ReleaseOutcome, len(refs))
	if err := s.calls.over(ctx); err != nil {
		return outcomes, err
	}
	done := s.telemetry.Begin(ctx, opRelease)
	defer func() { done.End(ctx, err) }()
	s.telemetry.Batch(ctx, len(refs))
	list := make([]releasing, len(refs))
	for i, ref := range refs { // in their order: one may repeat another
		list[i] = s.release(i, ref)
	}
	err = each(list, func(r releasing) (err error) {
		outcomes[r.i], err = s.released(ctx, r, refs[r.i].Repeated)
		return err
	})
	return outcomes, err
}

// releasing is an entry that leaves by a release.
type releasing struct {
	i    int
	e    *entry // nil if there is none
	was  stage
	held bool
}

// release has an entry leave.
func (s *Store) release(i int, ref store.LeaseRef) releasing {
	r := releasing{i: i, e: s.entries.find(s.placeOf(ref.Name, ref.Key).path, ref.ID)}
	if r.e == nil {
		return r
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	r.was = r.e.stage
	r.held = r.was == holding && (ref.Fence == 0 || ref.Fence == r.e.fence) && time.Now().Before(r.e.until) && !r.e.session.ended()
	if r.was == waiting && r.e.awaiting == 0 || r.was == creating {
		s.entries.withdraw(r.e)
	}
	if r.was < leaving {
		r.e.err = store.ErrWithdrawn
		s.entries.set(r.e, leaving)
	}
	return r
}

// released removes the node of an entry that leaves, and returns what the entry was.
func (s *Store) released(ctx context.Context, r releasing, repeated bool) (store.ReleaseOutcome, error) {
	if r.e == nil && repeated {
		return store.ReleaseUnknown, nil
	}
	if r.e == nil {
		return store.NotHeld, nil
	}
	removed, err := s.remove(ctx, r.e)
	switch {
	case err != nil:
		return store.ReleaseUnknown, err
	case r.held && removed:
		return store.Released, nil
	case r.was >= leaving && (repeated || removed):
		return store.ReleaseUnknown, nil
	}
	return store.NotHeld, nil
}
