package zkstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// AwaitLease implements store.Leases. One goroutine for each key waits for all requests of the
// process: on the entry that keeps the first of them from its grant, or, for a semaphore, on all
// entries of the key. It looks at the queue every second while its request is the next one, and every
// five seconds otherwise, in case that an event is lost. A place that no call awaits is kept for
// three seconds.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.Grant{}, err
	}
	p := s.placeOf(req.Name, req.Key)
	if req.Weight > req.Capacity-req.Reserve || s.entries.wasWithdrawn(p, req.ID) {
		return store.Grant{}, store.ErrWithdrawn
	}
	if err := s.accepts(ctx, &req); err != nil {
		return store.Grant{}, err
	}
	e, added, err := s.enter(ctx, p, &req)
	if err != nil {
		return store.Grant{}, err
	}
	if added { // its place is lost
		req.Queue, req.MaxWaiting = true, 0
		reply, err := s.acquire(ctx, e, &req)
		if err != nil || reply.Outcome == store.Granted {
			return reply.Grant, err
		}
	}
	return s.await(ctx, e)
}

// await blocks until an entry waits no longer, or ctx ends.
func (s *Store) await(ctx context.Context, e *entry) (store.Grant, error) {
	s.entries.mu.Lock()
	e.awaiting++
	if e.stage == waiting {
		s.follow(e)
	}
	s.entries.mu.Unlock()
	defer func() {
		s.entries.mu.Lock()
		defer s.entries.mu.Unlock()
		if e.awaiting--; e.awaiting == 0 && e.stage == waiting {
			s.keep(e, unawaited)
		}
	}()
	select {
	case <-e.changed:
	case <-ctx.Done():
		return store.Grant{}, ctx.Err()
	case <-s.hooks.Over():
		return store.Grant{}, store.ErrClosed
	case <-s.life.Done():
		return store.Grant{}, store.ErrClosed
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if e.stage != holding {
		if e.err == nil {
			return store.Grant{}, store.ErrWithdrawn
		}
		return store.Grant{}, e.err
	}
	return e.grant(), nil
}

// follow has a goroutine look at the queue of an entry's key. The caller holds the mutex of entries.
func (s *Store) follow(e *entry) {
	k := s.entries.keys[e.place.path]
	if k == nil {
		return
	}
	k.wake()
	if !k.following {
		k.following = s.start(func() { s.followKey(k) })
	}
}

// Beats, in case that an event is lost.
const (
	nextBeat  = time.Second     // of a process whose request is the next one
	otherBeat = 5 * time.Second // of others
	beatsEach = 2000            // keys a second at most
)

func (s *Store) followKey(k *key) {
	pause, refreshed := leastPause, time.Now()
	for {
		s.entries.mu.Lock()
		list := k.awaited()
		if len(list) == 0 || s.life.Err() != nil {
			k.following = false
			s.entries.mu.Unlock()
			return
		}
		keys := len(s.entries.keys)
		s.entries.mu.Unlock()
		done := s.telemetry.Begin(s.life, opWatch)
		next, err := s.advance(s.life, k, list)
		done.End(s.life, err)
		wait := max(nextBeat, time.Duration(keys)*time.Second/beatsEach)
		if !next {
			wait = max(otherBeat, wait)
		}
		if err == nil {
			pause = leastPause
		} else {
			wait, pause = pause, min(2*pause, mostPause)
			s.giveUp(list)
		}
		timer := time.NewTimer(wait - rand.N(wait/8))
		select {
		case <-k.kick:
		case <-timer.C:
		case <-s.life.Done():
		}
		timer.Stop()
		if time.Since(refreshed) > nextBeat*3/4 { // events may have been lost
			refreshed = time.Now()
			s.entries.mu.Lock()
			clear(k.facts)
			s.entries.mu.Unlock()
		}
	}
}

// awaited returns the entries that wait and are awaited, in the order of their places. The caller
// holds the mutex of entries.
func (k *key) awaited() (list []*entry) {
	for _, e := range k.entries {
		if e.stage == waiting && e.awaiting > 0 {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return int(min(max(a.number-b.number, -1), 1)) })
	return list
}

// giveUp ends the waits of a process that had no connection for as long as its session.
func (s *Store) giveUp(list []*entry) {
	longest := s.config.session
	silent := s.link.silence()
	for _, e := range list {
		s.entries.mu.Lock()
		if e.session != nil {
			longest = e.session.length
		}
		s.entries.mu.Unlock()
		if silent > longest {
			s.leave(e, fmt.Errorf("%w: no connection for %v: the place in the queue is lost", store.ErrUnavailable, silent.Round(time.Second)))
		}
	}
	s.sweepSoon()
}

// advance grants the requests of this process that hold, queues those anew whose nodes are gone, and
// watches what the first of the others waits for. It reports whether that one is the next of all.
func (s *Store) advance(ctx context.Context, k *key, waiters []*entry) (next bool, err error) {
	sent, list, err := s.observe(ctx, k)
	if err != nil {
		return false, err
	}
	anew, err := s.queueAnew(ctx, waiters, list)
	if err != nil {
		return false, err
	}
	if anew {
		k.wake() // to look again
		return false, nil
	}
	q := s.queueOf(k.place, list, true)
	for _, e := range s.inServerOrder(waiters) {
		held, err := q.holds(ctx, s, e)
		if errors.Is(err, errVoid) {
			k.wake()
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if held {
			s.granted(e, q.nameOf(e), sent)
			continue
		}
		if gave, err := s.giveWayToAll(ctx, k.place, q.list); gave || err != nil {
			k.wake()
			return false, err
		}
		return s.watchBefore(ctx, q, e)
	}
	return false, nil
}

// observe reads the queue of a key, after the leader has shown that the session is alive: a server
// that is cut off from its leader shows nodes of sessions that have ended.
func (s *Store) observe(ctx context.Context, k *key) (sent time.Time, list []child, err error) {
	sent = time.Now()
	if err := s.sync(ctx, reads); err != nil {
		return sent, nil, err
	}
	if isLock(k.name) {
		list, err = s.children(ctx, k.place, reads)
	} else {
		list, err = s.childrenWatched(ctx, k.place)
	}
	return sent, list, err
}

// inServerOrder returns entries in the order of their nodes.
func (s *Store) inServerOrder(list []*entry) []*entry {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b *entry) int { return int(a.node.seq - b.node.seq) })
	return sorted
}

// queueAnew puts the entries that have no node in the queue again, in the order of their places. It
// reports whether there were any.
func (s *Store) queueAnew(ctx context.Context, waiters []*entry, list []child) (anew bool, err error) {
	current := s.link.session()
	for _, e := range waiters {
		s.entries.mu.Lock()
		there := e.node.name != "" && slices.ContainsFunc(list, func(c child) bool { return c.name == e.node.name })
		known, waits, made, c := e.session != nil && e.session == current, e.stage == waiting, e.made, e.node
		s.entries.mu.Unlock()
		if !waits || there && known {
			continue
		}
		anew = true
		if there && isClosed(made) {
			if _, err = s.arrived(ctx, e, c); !errors.Is(err, errVoid) {
				if err != nil {
					return anew, err
				}
				continue
			}
		}
		if !s.entries.claim(e) { // a request is in flight
			return anew, errPending
		}
		if _, _, err := s.put(ctx, e); err != nil && !errors.Is(err, errReleased) {
			return anew, err
		}
	}
	return anew, nil
}

// errPending is the error of an entry whose creation is still in flight.
var errPending = store.Unavailable(store.Timeout, "the request of an entry is still in flight")
