package memstore

import (
	"cmp"
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// placeFor is how long a place in the queue is kept while no call awaits it.
	placeFor = int64(3 * time.Second / time.Microsecond)
	// never is later than every time of the store's clock.
	never = int64(math.MaxInt64)
)

// leaseQueue has the waiters of a key: those with a smaller reserve first, and those with the same
// reserve by their place.
type leaseQueue struct {
	tiers     []*tier // that have waiters, by their reserve
	length    int
	awaited   list.List // requests that a call awaits
	unawaited list.List // the others, in the order of their expiry
}

// tier has the waiters with one reserve.
type tier struct {
	reserve int
	places  list.List // in their order
	weight  int64     // of all of them
}

func (t *tier) head() *lease { return front(&t.places) }

// tier returns the index of a tier in tiers, or the index for a new one.
func (q *leaseQueue) tier(reserve int) (index int, found bool) {
	return slices.BinarySearchFunc(q.tiers, reserve, func(t *tier, reserve int) int { return cmp.Compare(t.reserve, reserve) })
}

// push adds a request at its place, which is a number.
func (q *leaseQueue) push(r *lease, now int64) {
	i, found := q.tier(r.req.Reserve)
	if !found {
		q.tiers = slices.Insert(q.tiers, i, &tier{reserve: r.req.Reserve})
	}
	r.tier = q.tiers[i]
	r.tier.weight += int64(r.req.Weight)
	q.length++
	behind := r.tier.places.Back()
	for behind != nil && r.req.Place < behind.Value.(*lease).req.Place {
		behind = behind.Prev()
	}
	if behind == nil {
		r.place = r.tier.places.PushFront(r)
	} else {
		r.place = r.tier.places.InsertAfter(r, behind)
	}
	r.wake, r.sleepsUntil = make(chan struct{}, 1), never
	q.refresh(r, now)
}

func (q *leaseQueue) remove(r *lease) {
	q.unlist(r)
	t := r.tier
	t.places.Remove(r.place)
	t.weight -= int64(r.req.Weight)
	q.length--
	if t.places.Len() == 0 {
		i, _ := q.tier(t.reserve)
		q.tiers = slices.Delete(q.tiers, i, i+1)
	}
	r.place, r.tier = nil, nil
}

// refresh extends the place of a request for placeFor, or without limit while a call awaits it.
func (q *leaseQueue) refresh(r *lease, now int64) {
	if r.awaiting > 0 && r.until == never {
		return // another call awaits it already
	}
	q.unlist(r)
	if r.awaiting > 0 {
		r.until, r.liveness = never, q.awaited.PushBack(r)
	} else {
		r.until, r.liveness = now+placeFor, q.unawaited.PushBack(r)
	}
}

func (q *leaseQueue) unlist(r *lease) {
	if r.liveness != nil {
		q.awaited.Remove(r.liveness) // no effect if it is in the other list
		q.unawaited.Remove(r.liveness)
		r.liveness = nil
	}
}

// firstUnawaited returns the request whose place expires first, or nil.
func (q *leaseQueue) firstUnawaited() *lease { return front(&q.unawaited) }

// timekeeper returns the request whose calls sleep no longer than until the key's next deadline;
// nil if no call awaits any.
func (q *leaseQueue) timekeeper() *lease { return front(&q.awaited) }

func front(l *list.List) *lease {
	if e := l.Front(); e != nil {
		return e.Value.(*lease)
	}
	return nil
}

// before returns the weight of all waiters with a smaller reserve, which stand before a request,
// and whether one with the same reserve does, too. A request without a place would join the end.
func (q *leaseQueue) before(req *store.LeaseRequest) (weight int64, blocked bool) {
	for _, t := range q.tiers {
		if t.reserve < req.Reserve {
			weight += t.weight
		} else if t.reserve == req.Reserve {
			blocked = req.Place == 0 || t.head().req.Place < req.Place
		}
	}
	return weight, blocked
}

// list returns the first waiters.
func (q *leaseQueue) list(now int64) (waiters []store.LeaseWaiter) {
	for _, t := range q.tiers {
		for e := t.places.Front(); e != nil; e = e.Next() {
			if len(waiters) == store.MaxListed {
				return waiters
			}
			r := e.Value.(*lease)
			waiters = append(waiters, store.LeaseWaiter{
				Weight: r.req.Weight, Reserve: r.req.Reserve, Label: r.req.Label, Age: duration(now - r.since),
			})
		}
	}
	return waiters
}
