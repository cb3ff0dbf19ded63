package memstore

import (
	"context"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// latches are all latches of a store, with one mutex: a participant counts a latch down once, so
// contention is rare.
type latches struct {
	mu           sync.Mutex
	sets         expiry.Table[string, participants] // by the latch's name
	gates        map[gateKey]*gate
	participants int // of all sets
	limit        int
}

type participants map[string]struct{}

// gateKey identifies the waiters for a number of participants of a latch.
type gateKey struct {
	latch string
	count int
}

type gate struct {
	open    chan struct{} // closed when the count is reached
	waiting int
}

func (l *latches) init(limit int) {
	l.limit = limit
	l.gates = make(map[gateKey]*gate)
	l.sets = expiry.NewTable[string](limit, func(set *participants) { l.participants -= len(*set) })
}

// CountDownLatch implements store.Latches.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (arrived int, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return 0, err
	}
	l := &s.latches
	l.mu.Lock()
	defer l.mu.Unlock()
	now := s.now()
	set := l.set(req.Name, now)
	if _, ok := set[participant]; ok {
		return len(set), nil
	}
	if len(set) >= store.MaxParticipants || !l.room(now) {
		return 0, store.ErrFull
	}
	expires := now + micros(req.TTL)
	if set != nil {
		l.sets.Get(req.Name, now).Expires = expires
	} else {
		set = make(participants)
		l.sets.Add(strings.Clone(req.Name), set, expires, now)
	}
	set[strings.Clone(participant)] = struct{}{} // a substring of a request would keep the whole request in memory
	l.participants++
	if g := l.gates[gateKey{req.Name, len(set)}]; g != nil {
		close(g.open) // stays open even if the set expires
		delete(l.gates, gateKey{req.Name, len(set)})
	}
	return len(set), nil
}

// set returns the participants that have counted a latch down, or nil.
func (l *latches) set(name string, now int64) participants {
	if e := l.sets.Get(name, now); e != nil {
		return e.Value
	}
	return nil
}

// room reports whether there is room for one more participant, after a sweep of expired latches.
func (l *latches) room(now int64) bool {
	if l.participants >= l.limit {
		l.sets.Sweep(expiry.SweepFull, now)
	}
	return l.participants < l.limit
}

// InspectLatch implements store.Latches.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (arrived int, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	s.latches.mu.Lock()
	defer s.latches.mu.Unlock()
	return len(s.latches.set(req.Name, s.now())), nil
}

// AwaitLatch implements store.Latches.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	if err := s.acceptsNew(ctx); err != nil {
		return err
	}
	g := s.latches.enter(req, s.now)
	if g == nil {
		return nil
	}
	defer s.latches.leave(req, g)
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.hooks.Over():
		return store.ErrClosed
	}
}

// enter registers a waiter and returns its gate, or nil if the latch is open.
func (l *latches) enter(req store.LatchRequest, clock func() int64) *gate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.set(req.Name, clock())) >= req.Count {
		return nil
	}
	at := gateKey{req.Name, req.Count}
	g := l.gates[at]
	if g == nil {
		g = &gate{open: make(chan struct{})}
		l.gates[at] = g
	}
	g.waiting++
	return g
}

func (l *latches) leave(req store.LatchRequest, g *gate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.waiting--
	if at := (gateKey{req.Name, req.Count}); g.waiting == 0 && l.gates[at] == g {
		delete(l.gates, at)
	}
}
