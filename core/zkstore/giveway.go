package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A request whose place is lost is queued anew at its number. The server's order cannot be changed,
// and only that order grants. So the waiters behind its number that are before it in that order give
// way: each process queues its own ones again. Those of this process do so at once, and those of
// others when they look at the queue.

// giveWay has this process's waiters give way to an entry that was queued anew, and returns the queue
// after that.
func (s *Store) giveWay(ctx context.Context, e *entry, list []child) ([]child, error) {
	s.entries.mu.Lock()
	number, node := e.number, e.node
	s.entries.mu.Unlock()
	moved, err := s.moveBehind(ctx, e.place, child{place: number, seq: node.seq}, e)
	if err != nil || !moved {
		return list, err
	}
	return s.children(ctx, e.place, reads)
}

// giveWayToAll has this process's waiters give way to the entries of a queue that were queued anew. It
// reports whether one of them did.
func (s *Store) giveWayToAll(ctx context.Context, p place, list []child) (gave bool, err error) {
	for _, other := range list {
		if other.place > 0 {
			moved, err := s.moveBehind(ctx, p, other, nil)
			if err != nil {
				return gave, err
			}
			gave = gave || moved
		}
	}
	return gave, nil
}

// moveBehind queues this process's waiters of a key again that are before an entry in the server's
// order, and behind it by their number.
func (s *Store) moveBehind(ctx context.Context, p place, to child, except *entry) (moved bool, err error) {
	s.entries.mu.Lock()
	var list []*entry
	if k := s.entries.keys[p.path]; k != nil {
		for _, e := range k.entries {
			if e != except && e.stage == waiting && e.number > to.place && (e.node.name == "" || to.seq-e.node.seq > 0 && e.node.name != to.name) {
				list = append(list, e)
			}
		}
	}
	s.entries.mu.Unlock()
	slices.SortFunc(list, func(a, b *entry) int { return int(min(max(a.number-b.number, -1), 1)) })
	for _, e := range list {
		moved = true
		if !s.entries.claim(e) { // it does so already, or leaves
			s.madeWithin(ctx, e)
			continue
		}
		if _, _, err := s.put(ctx, e); err != nil && !errors.Is(err, errReleased) {
			return moved, err
		}
	}
	return moved, nil
}

// madeWithin waits until no creation of an entry's node is in flight, for the store's timeout at most.
func (s *Store) madeWithin(ctx context.Context, e *entry) {
	s.entries.mu.Lock()
	made := e.made
	s.entries.mu.Unlock()
	select {
	case <-made:
	case <-ctx.Done():
	case <-time.After(s.config.timeout):
	}
}
