package etcdstore

import (
	"cmp"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
)

// mostConditions bounds the conditions of a transaction, of which the server takes 128.
const mostConditions = 100

// anew gives an entry that is queued anew at its Place the order of that place, and a fence between those
// of its neighbours. It returns the conditions under which no waiter behind it has been granted since: one
// that is granted writes nothing, so that only the entries that keep it waiting tell. Where there is no
// room, the entry stands at the end of the queue.
func anew(e *entry, seen *snapshot, q *position.Queue) []clientv3.Cmp {
	e.Order = q.Anew(e.Entry)
	if e.Order == "" || e.Reserve > 0 {
		return nil
	}
	conditions, ok := stillWaits(seen, q)
	if !ok || !fenceBetween(e, seen, q) {
		e.Order = ""
		return nil
	}
	return conditions
}

// stillWaits returns the conditions under which the first waiter without a reserve still waits, and with
// it all that stand behind it.
func stillWaits(seen *snapshot, q *position.Queue) (conditions []clientv3.Cmp, ok bool) {
	if len(q.Waiting) == 0 || q.Waiting[0].Reserve > 0 {
		return nil, true
	}
	first := q.Waiting[0]
	ahead := int64(first.Weight)
	heaviest := slices.SortedFunc(slices.Values(q.Holds), func(a, b position.Entry) int { return cmp.Compare(b.Weight, a.Weight) })
	for _, hold := range heaviest {
		if ahead > int64(first.Capacity) {
			break
		}
		ahead += int64(hold.Weight)
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(seen.entries[hold.ID].at), "=", hold.Created))
	}
	return conditions, ahead > int64(first.Capacity) && len(conditions) <= mostConditions
}

// fenceBetween gives an entry with an Order a fence that is larger than those of all that hold, and smaller
// than those of all that wait behind it. It reports whether there is one.
func fenceBetween(e *entry, seen *snapshot, q *position.Queue) bool {
	last, next := int64(0), int64(0)
	for _, hold := range q.Holds {
		of := seen.entries[hold.ID]
		last = max(last, of.lastFence())
	}
	for _, w := range q.Waiting {
		of := seen.entries[w.ID]
		switch {
		case w.Reserve > 0:
		case position.Before(&e.Entry, &w):
			if next == 0 || of.firstFence() < next {
				next = of.firstFence()
			}
		default:
			last = max(last, of.lastFence())
		}
	}
	switch {
	case next == 0:
		return true // it is the last one
	case next-4 > last:
		e.fence = next - 4 // with room for others on both sides
	case next-1 > last:
		e.fence = next - 1
	default:
		return false
	}
	return true
}
