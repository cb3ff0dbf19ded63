// Package position is the rule of store.Leases for a server that keeps entries in an order of its
// own, such as etcd and ZooKeeper. There a request is granted without a write: entries before it can
// only leave, or become lighter, so once it fits beside them it fits for as long as it is there.
//
// Two steps of such a store depend on more than the entries before: the grant of a request with a
// reserve, which every request without one overtakes, and a request that is queued anew at its old
// place. They write an order that they compute ([Queue.Next], [Queue.Anew]), and only if no entry
// of the key has changed since it was read.
//
// All functions are pure. They do not change the entries that they are given.
package position

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Entry is a request that waits or holds, as the server keeps it.
type Entry struct {
	ID       string
	Created  int64  // the server's order
	Order    string // where it was put instead; "" where the server has put it
	Place    int64  // the number at which it was queued anew; 0 is Created
	Weight   int
	Capacity int
	Reserve  int
	Held     bool // its grant was written, since it has a reserve
}

// order returns where the entry stands: the Created of eight bytes, or an Order between two others.
func (e *Entry) order() string {
	if e.Order != "" {
		return e.Order
	}
	return at(e.Created)
}

// at returns the order of an entry that was created at a number of the server's order.
func at(created int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(created))) //nolint:gosec // never negative
}

// number returns the number of the entry's place.
func (e *Entry) number() int64 { return cmp.Or(e.Place, e.Created) }

func compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.order(), b.order()), cmp.Compare(a.Created, b.Created))
}

// Before reports whether an entry with an Order stands before another one with the same reserve.
func Before(a, b *Entry) bool { return compare(*a, *b) < 0 }

// Queue is the state of a key.
type Queue struct {
	Holds   []Entry // in their order
	Waiting []Entry // in the order of the queue: by reserve, and then by order
	InUse   int     // the weights of Holds

	line []Entry // those without a reserve, and those whose grant was written: each counts for the later ones
}

// Of returns the state of a key that has these entries, which may be in any order.
func Of(entries []Entry) *Queue {
	q := &Queue{}
	for _, e := range entries {
		if e.Reserve == 0 || e.Held {
			q.line = append(q.line, e)
		} else {
			q.Waiting = append(q.Waiting, e)
		}
	}
	slices.SortFunc(q.line, compare)
	slices.SortFunc(q.Waiting, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Reserve, b.Reserve), compare(a, b)) })
	var waits []Entry
	ahead, blocked := int64(0), false
	for _, e := range q.line {
		ahead += int64(e.Weight)
		if e.Held || !blocked && ahead <= int64(e.Capacity) {
			q.Holds = append(q.Holds, e)
			q.InUse += e.Weight
			continue
		}
		blocked = true
		waits = append(waits, e)
	}
	q.Waiting = append(waits, q.Waiting...)
	return q
}

func find(in []Entry, id string) int {
	return slices.IndexFunc(in, func(e Entry) bool { return e.ID == id })
}

// Holding reports whether the entry with this ID holds.
func (q *Queue) Holding(id string) bool { return find(q.Holds, id) >= 0 }

// Has reports whether there is an entry with this ID.
func (q *Queue) Has(id string) bool { return q.Holding(id) || find(q.Waiting, id) >= 0 }

// Fits reports whether a request that joins the end of the queue would be granted, or, if an entry
// with its ID waits, whether that one can be granted. The grant of a request with a reserve is
// written, at [Queue.Next], and the answer about one holds only until an entry changes.
func (q *Queue) Fits(e Entry) bool {
	ahead := int64(q.InUse) + int64(e.Weight)
	for _, w := range q.Waiting {
		if w.ID == e.ID || w.Reserve > e.Reserve {
			break
		}
		if w.Reserve == e.Reserve {
			return false
		}
		ahead += int64(w.Weight)
	}
	return ahead <= int64(e.Capacity-e.Reserve)
}

// Next returns the Order of an entry that is granted now: behind all that hold, and before all that
// wait without a reserve. revision is that of the state: no entry was created or granted after it,
// and entries that are created after the grant have a larger one.
func (q *Queue) Next(revision int64) string {
	switch n := len(q.Holds); {
	case n == 0 && len(q.line) == 0:
		return ""
	case n == 0:
		return between("", q.line[0].order())
	case n == len(q.line):
		// Not behind the order of the last hold: that would become longer with each grant, as long as one
		// of them holds.
		return between(at(revision), "")
	default:
		return between(q.Holds[n-1].order(), q.line[n].order())
	}
}

// Anew returns the Order of a request that is queued anew at its Place: before all waiters with its
// reserve and a later number, and behind all others with its reserve and all that hold.
func (q *Queue) Anew(e Entry) string {
	before := ""
	if n := len(q.Holds); n > 0 && e.Reserve == 0 {
		before = q.Holds[n-1].order()
	}
	for _, w := range q.Waiting {
		switch {
		case w.Reserve != e.Reserve:
		case w.number() > e.number():
			return between(before, w.order())
		default:
			before = w.order()
		}
	}
	return ""
}

// between returns a string between two others, of which the first is smaller; "" as the second is
// larger than all that begin with the first.
func between(a, b string) string {
	if b == "" {
		return a + "\x80"
	}
	var s []byte
	for i, free := 0, false; ; i++ { // free: s is smaller than b
		x, y := 0, 256
		if i < len(a) {
			x = int(a[i])
		}
		if i < len(b) && !free {
			y = int(b[i])
		}
		if y-x > 1 {
			return string(append(s, byte((x+y)/2))) //nolint:gosec // less than 256
		}
		s = append(s, byte(x)) //nolint:gosec // likewise
		free = free || y > x
	}
}

// Behind returns the ID of the entry that keeps a waiter from its grant as long as it does not
// change: the nearest one before it that leaves no room for it, whatever the others do. For a lock
// that is the one before a writer, and the nearest writer before a reader. If there is no such entry,
// it returns "": then a change of any entry may be the one that grants the waiter. So it is for a
// request with a reserve.
func (q *Queue) Behind(id string) string {
	i := find(q.line, id)
	if i < 0 {
		return ""
	}
	for e := q.line[i]; i > 0; i-- {
		if before := q.line[i-1]; int64(before.Weight)+int64(e.Weight) > int64(e.Capacity) {
			return before.ID
		}
	}
	return ""
}
