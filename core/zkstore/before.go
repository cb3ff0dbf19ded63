package zkstore

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"
)

// watchBefore watches what keeps an entry from its grant. It reports whether the entry is the next
// one.
func (s *Store) watchBefore(ctx context.Context, q *queue, e *entry) (next bool, err error) {
	s.entries.mu.Lock()
	weight, capacity := e.weight, e.capacity
	s.entries.mu.Unlock()
	name := q.nameOf(e)
	if !isLock(q.name) { // the children are watched
		held, err := q.read(ctx, s)
		return held < len(q.list) && q.list[held].name == name, err
	}
	b := q.blocker(q.index(name), weight, capacity)
	if b < 0 {
		s.wakeKey(q.path)
		return true, nil
	}
	before := q.list[b]
	next = !slices.ContainsFunc(q.list[:b], func(c child) bool { return c.weight+weight > capacity })
	if own := q.own[before.name]; own != nil { // this process knows of its end
		return next, nil
	}
	f, err := s.getWatched(ctx, q.path+"/"+before.name)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		s.wakeKey(q.path)
		return next, nil
	case errors.Is(err, errForeign):
		return next, nil
	case err != nil:
		return next, err
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if k := s.entries.keys[q.path]; k != nil {
		k.facts[before.name] = f
		if f.weight+weight <= capacity { // a downgrade has made room
			k.wake()
		}
	}
	return next, nil
}

func (s *Store) wakeKey(path string) {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if k := s.entries.keys[path]; k != nil {
		k.wake()
	}
}
