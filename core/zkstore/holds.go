package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// hold returns the hold of a reference, or nil if this process has none with this fence: it has
// expired here, or ended with its session.
func (s *Store) hold(ref store.LeaseRef) *entry {
	e := s.entries.find(s.placeOf(ref.Name, ref.Key).path, ref.ID)
	if e == nil {
		return nil
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if e.stage != holding || e.fence != ref.Fence || !time.Now().Before(e.until) || e.session.ended() {
		return nil
	}
	return e
}

// RenewLeases implements store.Leases: one request to the leader, and then one for each hold, all of
// them together. The session is the lease of all holds, and this process ends each of them itself
// when its TTL is over.
func (s *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) (held []bool, err error) {
	held = make([]bool, len(refs))
	if err := s.calls.over(ctx); err != nil {
		return held, err
	}
	done := s.telemetry.Begin(ctx, opRenew)
	defer func() { done.End(ctx, err) }()
	type renewal struct {
		i int
		e *entry
	}
	var list []renewal
	for i, ref := range refs {
		if ref.TTL > 0 {
			if current := s.link.session(); current != nil && ref.TTL > current.longest() {
				return held, current.tooLong(ref.TTL)
			}
		}
		if e := s.hold(ref); e != nil {
			list = append(list, renewal{i, e})
		}
	}
	if len(list) == 0 {
		return held, nil
	}
	s.telemetry.Batch(ctx, len(list))
	sent := time.Now()
	if err := s.sync(ctx, renews); err != nil {
		return held, err
	}
	err = each(list, func(r renewal) (err error) {
		held[r.i], err = s.renew(ctx, r.e, refs[r.i].TTL, sent)
		return err
	})
	return held, err
}

// renew extends a hold, after the leader has shown that the session was alive after it was sent. A
// renewal with another TTL writes it, so that others see it.
func (s *Store) renew(ctx context.Context, e *entry, ttl time.Duration, sent time.Time) (held bool, err error) {
	s.entries.mu.Lock()
	same := e.ttl == ttl
	s.entries.mu.Unlock()
	if same {
		held, err = s.there(ctx, e)
	} else {
		held, err = s.change(ctx, e, func(f *facts) { f.ttl = ttl })
	}
	if err != nil || !held {
		return false, err
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	return s.extend(e, ttl, sent), nil
}

// extend extends a hold, unless it has ended. The caller holds mu.
func (s *Store) extend(e *entry, ttl time.Duration, sent time.Time) bool {
	if e.stage != holding || !time.Now().Before(e.until) {
		return false
	}
	e.sent, e.ttl = sent, ttl
	s.keep(e, ttl)
	return true
}

// there reports whether the node of a hold is there, and belongs to the present session. If it is
// not, the hold has ended.
func (s *Store) there(ctx context.Context, e *entry) (bool, error) {
	s.entries.mu.Lock()
	path, of := e.path(), e.session
	s.entries.mu.Unlock()
	stat, err := s.exists(ctx, path, renews)
	if err != nil {
		return false, err
	}
	if stat != nil && stat.EphemeralOwner == of.id && !of.ended() {
		return true, nil
	}
	s.vanished(e, path)
	return false, nil
}

// vanished records that the node of a hold is gone.
func (s *Store) vanished(e *entry, path string) {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if e.stage == holding && e.path() == path {
		s.entries.set(e, gone)
	}
}

// VerifyLease implements store.LeaseVerifier: a request to the leader, and another one.
func (s *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (held bool, err error) {
	if err := s.calls.over(ctx); err != nil {
		return false, err
	}
	done := s.telemetry.Begin(ctx, opInspect)
	defer func() { done.End(ctx, err) }()
	e := s.hold(ref)
	if e == nil {
		return false, nil
	}
	if err := s.sync(ctx, reads); err != nil {
		return false, err
	}
	return s.there(ctx, e)
}

// DowngradeLease implements store.LeaseDowngrader: one request. Waiters of a lock notice at once, and
// those of a semaphore in other processes within a second.
func (s *Store) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (held bool, err error) {
	if err := s.calls.over(ctx); err != nil {
		return false, err
	}
	done := s.telemetry.Begin(ctx, opRelease)
	defer func() { done.End(ctx, err) }()
	e := s.hold(ref)
	if e == nil {
		return false, nil
	}
	sent := time.Now()
	if held, err := s.change(ctx, e, func(f *facts) {
		f.weight = min(f.weight, weight)
		f.ttl = ref.TTL
	}); err != nil || !held {
		return false, err
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if k := s.entries.keys[e.place.path]; k != nil {
		k.wake()
	}
	return s.extend(e, ref.TTL, sent), nil
}

// change changes the data of an entry's node, and reports whether the node was there. Only this
// process writes it, and a session's requests are carried out in order. After an error the node may
// have the old data or the new ones, and this process goes by the old ones.
func (s *Store) change(ctx context.Context, e *entry, change func(*facts)) (bool, error) {
	e.writing.Lock()
	defer e.writing.Unlock()
	s.entries.mu.Lock()
	path, f := e.path(), e.facts()
	s.entries.mu.Unlock()
	change(f)
	var err error
	for range 2 { // once more if the connection breaks
		_, err = call(ctx, s.calls, finishes, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, f.encode(), -1) }, nil)
		if !errors.Is(err, errLost) {
			break
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		s.vanished(e, path)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	e.weight, e.capacity, e.ttl = f.weight, f.capacity, f.ttl
	return true, nil
}
