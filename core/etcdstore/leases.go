package etcdstore

import (
	"context"
	"math"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// waitingFor is the length of the lease of requests that wait, in seconds.
	waitingFor = 5
	// slack is how much longer than its TTL the lease of a hold is, in seconds, so that the keep-alives
	// of each second are enough for renewals.
	slack = 1
	// keepEvery is how often leases are kept alive, and idleFor how long those without entries are.
	keepEvery = time.Second
	idleFor   = 5 * time.Second
	// tombstonesFor is how long a tombstone is kept at least, in seconds. Its lease is twice as long,
	// and shared by those of a minute.
	tombstonesFor = 60
)

// kindOfLease is what a lease is for: waiting requests, or holds of TTLs of up to some seconds.
type kindOfLease struct {
	waits   bool
	seconds int64
}

var waits = kindOfLease{true, waitingFor}

// kindFor returns the kind of the lease for holds of a TTL.
func kindFor(ttl time.Duration) kindOfLease {
	return kindOfLease{seconds: int64(math.Ceil(ttl.Seconds())) + slack}
}

// lease is a lease of the server. The store's mu guards it, but for its ID.
type lease struct {
	kind     kindOfLease
	id       clientv3.LeaseID
	ttl      time.Duration // as the server has granted it
	sent     time.Time     // when the last keep-alive was sent that the server has answered
	used     time.Time     // when an entry was last about to be put on it
	attached map[*request]struct{}
	dead     bool
	keeping  chan struct{} // closed when the keep-alive in flight has ended; nil while there is none
}

// lasts returns until when entries on the lease are there, as a deadline for what is counted from a
// later time than the lease is. The caller holds the store's mu.
func (l *lease) lasts(from time.Time) time.Time {
	end := l.sent.Add(l.ttl)
	if drift := from.Sub(l.sent) / 50; drift > 0 {
		end = end.Add(-drift)
	}
	return end
}

// covers reports whether entries on the lease are there for so long from a time.
func (s *Store) covers(l *lease, from time.Time, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !l.dead && !l.lasts(from).Before(from.Add(ttl))
}

// leases are the leases of a process.
type leases struct {
	store *Store

	// The store's mu guards these.
	alive   map[kindOfLease]*lease
	asking  map[kindOfLease]chan struct{} // closed when the request for one has ended
	keeping bool                          // the goroutine runs
	graves  clientv3.LeaseID              // the lease of tombstones
	dug     time.Time                     // when it was requested
	digging chan struct{}                 // closed when the request for it has ended; nil while there is none
}

// get returns a lease for entries that are about to be put. Entries on it last for most of its length.
func (a *leases) get(ctx context.Context, kind kindOfLease) (*lease, error) {
	s := a.store
	for {
		s.mu.Lock()
		now := time.Now()
		if l := a.alive[kind]; l != nil && !l.dead && now.Before(l.sent.Add(l.ttl*3/4)) {
			l.used = now
			s.mu.Unlock()
			return l, nil
		}
		other := a.asking[kind]
		if other == nil {
			if a.asking == nil {
				a.asking, a.alive = make(map[kindOfLease]chan struct{}), make(map[kindOfLease]*lease)
			}
			mine := make(chan struct{})
			a.asking[kind] = mine
			s.mu.Unlock()
			l, err := a.ask(ctx, kind)
			s.mu.Lock()
			delete(a.asking, kind)
			close(mine)
			s.mu.Unlock()
			return l, err
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask asks the server for a lease. One that has entries, and is near its end, is kept alive first.
func (a *leases) ask(ctx context.Context, kind kindOfLease) (*lease, error) {
	s := a.store
	s.mu.Lock()
	old := a.alive[kind]
	s.mu.Unlock()
	if old != nil && a.keepAlive(ctx, old) == nil {
		return old, nil
	}
	sent := time.Now()
	op := opKeep
	if kind.waits {
		op = opLease
	}
	reply, err := run(ctx, s, op, func(ctx context.Context, _ bool) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, kind.seconds)
	})
	if err != nil {
		return nil, err
	}
	l := &lease{
		kind: kind, id: reply.ID, ttl: time.Duration(reply.TTL) * time.Second, sent: sent, used: time.Now(), attached: make(map[*request]struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.alive[kind] = l
	if !a.keeping {
		a.keeping = s.start(a.keep)
	}
	return l, nil
}

// keep keeps the leases alive that have entries, until there are none.
func (a *leases) keep() {
	s := a.store
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.life.Done():
			return
		}
		s.mu.Lock()
		now := time.Now()
		for kind, l := range a.alive {
			switch {
			case len(l.attached) == 0 && now.Sub(l.used) > idleFor:
				delete(a.alive, kind) // it ends by itself
			case l.keeping == nil && now.Sub(l.sent) >= keepEvery*3/4:
				s.start(func() { _ = a.keepAlive(s.life, l) })
			}
		}
		if a.keeping = len(a.alive) > 0; !a.keeping {
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// keepAlive keeps a lease alive, or waits for the keep-alive in flight, which may have been sent before.
func (a *leases) keepAlive(ctx context.Context, l *lease) error {
	s := a.store
	s.mu.Lock()
	if l.dead {
		s.mu.Unlock()
		return errDead
	}
	if other := l.keeping; other != nil {
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.dead {
			return errDead
		}
		return nil
	}
	mine := make(chan struct{})
	l.keeping = mine
	s.mu.Unlock()
	sent := time.Now()
	// The caller's context does not count: the lease is that of others, too.
	reply, err := run(s.life, s, opKeep, func(ctx context.Context, _ bool) (*clientv3.LeaseKeepAliveResponse, error) {
		reply, err := s.client.KeepAliveOnce(ctx, l.id)
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		return reply, err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	l.keeping = nil
	close(mine)
	switch {
	case err == nil && reply == nil:
		a.bury(l, nil)
		return errDead
	case err == nil:
		if sent.After(l.sent) {
			l.sent, l.ttl = sent, time.Duration(reply.TTL)*time.Second
		}
	case time.Now().After(l.sent.Add(l.ttl)) && s.life.Err() == nil:
		a.bury(l, err)
	}
	return err
}

var errDead = store.Unavailable(store.OtherCause, "etcd: a lease of this process has ended")

// bury ends a lease that the server has ended, or that may have ended since the server was silent for so
// long, for which err is the reason. Its holds are lost, and its waiting requests are queued anew, or fail
// with err. The caller holds the store's mu.
func (a *leases) bury(l *lease, err error) {
	if l.dead {
		return
	}
	s := a.store
	l.dead = true
	if a.alive[l.kind] == l {
		delete(a.alive, l.kind)
	}
	var lost []string
	for r := range l.attached {
		switch {
		case r.stage == holding && err == nil:
			lost = append(lost, r.req.ID)
			s.endRequest(r, nil)
		case r.stage == waiting:
			s.endRequest(r, err)
		}
	}
	if len(lost) > 0 {
		s.start(func() {
			for _, id := range lost {
				s.lost.Call(id)
			}
		})
	}
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

// revokeUnused revokes the leases without entries. Those with holds end by themselves, since a holder
// may still work.
func (a *leases) revokeUnused(ctx context.Context) {
	s := a.store
	var unused []clientv3.LeaseID
	s.mu.Lock()
	for _, l := range a.alive {
		held := false
		for r := range l.attached {
			held = held || r.stage != waiting
		}
		if l.dead = true; !held {
			unused = append(unused, l.id)
		}
	}
	s.mu.Unlock()
	for _, id := range unused {
		if _, err := run(ctx, s, opRelease, func(ctx context.Context, _ bool) (*clientv3.LeaseRevokeResponse, error) {
			return s.client.Revoke(ctx, id)
		}); err != nil {
			return // they end by themselves
		}
	}
}
