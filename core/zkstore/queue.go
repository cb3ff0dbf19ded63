package zkstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// queue is the queue of a key as it was read: its entries in the server's order, with the facts of
// the holders and of the first waiter. The others wait, since there are no reserves.
type queue struct {
	place
	list  []child
	facts map[string]*facts // by name
	own   map[string]*entry // of this process, by name
	names map[*entry]string
}

// queueOf returns a queue with the facts of this process's entries, and, for its waiters, with those
// that were read before: an entry only becomes lighter, so older facts grant nothing too early.
func (s *Store) queueOf(p place, list []child, forWaiters bool) *queue {
	q := &queue{p, list, make(map[string]*facts), make(map[string]*entry), make(map[*entry]string)}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	for _, c := range list {
		if e := s.entries.nodes[p.path+"/"+c.name]; e != nil {
			q.facts[c.name], q.own[c.name], q.names[e] = e.facts(), e, c.name
		}
	}
	k := s.entries.keys[p.path]
	if k == nil || !forWaiters {
		return q
	}
	read := make(map[string]*facts, len(list)) // without entries that are gone
	for _, c := range list {
		if f := k.facts[c.name]; f != nil && q.own[c.name] == nil {
			q.facts[c.name], read[c.name] = f, f
		}
	}
	k.facts = read
	return q
}

// index returns where an entry stands, or -1.
func (q *queue) index(name string) int {
	for i := range q.list {
		if q.list[i].name == name {
			return i
		}
	}
	return -1
}

// atOnce is how many facts are read together.
const atOnce = 32

// read reads the facts of all holds and of the first waiter, and returns how many of the entries
// hold. An entry that is gone is removed from the list.
func (q *queue) read(ctx context.Context, s *Store) (holds int, err error) {
	for {
		known := 0
		for known < len(q.list) && q.facts[q.list[known].name] != nil {
			known++
		}
		if holds = len(q.position(known).Holds); holds < known || known == len(q.list) {
			return holds, nil
		}
		if err := q.readSome(ctx, s, q.list[known:min(known+atOnce, len(q.list))]); err != nil {
			return 0, err
		}
	}
}

// readSome reads the facts of some entries.
func (q *queue) readSome(ctx context.Context, s *Store, list []child) error {
	found := make([]*facts, len(list))
	indices := make([]int, 0, len(list))
	for i, c := range list {
		if q.facts[c.name] == nil {
			indices = append(indices, i)
		}
	}
	err := each(indices, func(i int) (err error) {
		found[i], err = s.get(ctx, q.path+"/"+list[i].name, reads)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil
		case errors.Is(err, errForeign):
			found[i] = &facts{weight: list[i].weight, capacity: store.MaxCapacity, fences: 1}
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	gone := make(map[string]bool)
	s.entries.mu.Lock()
	k := s.entries.keys[q.path]
	for _, i := range indices {
		name := list[i].name
		if found[i] == nil {
			gone[name] = true
			continue
		}
		q.facts[name] = found[i]
		if k != nil {
			k.facts[name] = found[i]
		}
	}
	s.entries.mu.Unlock()
	if len(gone) > 0 {
		rest := make([]child, 0, len(q.list))
		for _, c := range q.list {
			if !gone[c.name] {
				rest = append(rest, c)
			}
		}
		q.list = rest
	}
	return nil
}

// position returns the state of the first n entries, whose facts are known.
func (q *queue) position(n int) *position.Queue {
	entries := make([]position.Entry, n)
	for i, c := range q.list[:n] {
		f := q.facts[c.name]
		entries[i] = position.Entry{ID: c.name, Created: int64(i), Weight: f.weight, Capacity: f.capacity}
	}
	return position.Of(entries)
}

// blocker returns the nearest entry before one of this process that excludes it in any case; -1 if
// there is none. For a lock that is all there is to know: the one before a writer, and the nearest
// writer before a reader. Names have the weights that entries have begun with, and facts those after
// a downgrade.
func (q *queue) blocker(i int, weight, capacity int) int {
	for i--; i >= 0; i-- {
		c := q.list[i]
		other := c.weight
		if f := q.facts[c.name]; f != nil {
			other = min(other, f.weight)
		}
		if other+weight > capacity {
			return i
		}
	}
	return -1
}

// nameOf returns the name of the node by which the queue has an entry of this process, "" if it does
// not have it.
func (q *queue) nameOf(e *entry) string { return q.names[e] }

// holds reports whether an entry of this process holds, as far as the queue shows it. For that it may
// read more of it.
func (q *queue) holds(ctx context.Context, s *Store, e *entry) (bool, error) {
	s.entries.mu.Lock()
	weight, capacity := e.weight, e.capacity
	s.entries.mu.Unlock()
	name := q.nameOf(e)
	if isLock(q.name) {
		for {
			i := q.index(name)
			if i < 0 {
				return false, errVoid
			}
			b := q.blocker(i, weight, capacity)
			if b < 0 {
				return true, nil
			}
			before := q.list[b]
			if q.facts[before.name] != nil || 1+weight > capacity { // not even a downgrade of it would do
				return false, nil
			}
			if err := q.readSome(ctx, s, q.list[b:b+1]); err != nil {
				return false, err
			}
		}
	}
	held, err := q.read(ctx, s)
	i := q.index(name)
	if err == nil && i < 0 {
		err = errVoid
	}
	return err == nil && i < held, err
}

func isLock(name string) bool { return kindOf(name) == "l" }

// refusal describes the queue to a request that was not granted: everything but the outcome, and how
// many wait before it.
func (q *queue) refusal(ctx context.Context, s *Store, e *entry) (reply store.LeaseReply, before int, err error) {
	held, err := q.read(ctx, s)
	if err != nil {
		return reply, 0, err
	}
	s.entries.mu.Lock()
	weight, capacity := e.weight, e.capacity
	s.entries.mu.Unlock()
	name := q.nameOf(e)
	i := q.index(name)
	if i < 0 {
		return reply, 0, errVoid
	}
	holders := q.position(held).Holds
	for j := held; j < len(q.list); j++ {
		if j == i || q.list[j].place == trying {
			continue
		}
		reply.Waiting++
		if j < i {
			before++
		}
	}
	var ends []end
	for _, h := range holders {
		if h.ID == name {
			continue
		}
		f := q.facts[h.ID]
		if reply.InUse == 0 {
			reply.Holder = f.label
		}
		reply.InUse += h.Weight
		ends = append(ends, end{q.remaining(s, h.ID), h.Weight})
	}
	reply.Remaining = freed(ends, reply.InUse+weight-capacity)
	return reply, before, nil
}

// remaining returns until when a hold lasts: exactly for one of this process, and at most for
// others.
func (q *queue) remaining(s *Store, name string) time.Duration {
	if e := q.own[name]; e != nil {
		s.entries.mu.Lock()
		defer s.entries.mu.Unlock()
		if e.stage == holding {
			return max(time.Until(e.until), 0)
		}
	}
	return q.facts[name].ttl
}

// end is how long a hold lasts.
type end struct {
	in     time.Duration
	weight int
}

// freed returns when holds of a weight have ended, of all of them if that is not enough.
func freed(ends []end, weight int) (in time.Duration) {
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.in, b.in) })
	for _, e := range ends {
		in = e.in
		if weight -= e.weight; weight <= 0 {
			break
		}
	}
	return in
}
