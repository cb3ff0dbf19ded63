package lease

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Hold is a hold with a lease that a Keeper renews.
type Hold interface {
	comparable
	// TTL returns the TTL that a renewal sets.
	TTL() time.Duration
	// Renewed is called after a renewal that was sent at this time and confirmed by the store.
	Renewed(sent time.Time)
	// Lost is called when the store reports that the hold has ended. The keeper has removed it
	// before.
	Lost()
}

const (
	// maxBatch bounds the holds in a call of renew.
	maxBatch = 100
	// few is the usual maximum of batches in flight, so that a store with many due or overdue holds
	// replies to each of them in time. If none ends for patience, another one is sent, up to most:
	// a part of the store may not reply, and block the others. After a batch without a single
	// renewal the maximum is one, and grows by one with each successful batch.
	few, most = 4, 16
	patience  = 25 * time.Millisecond
)

// Parts of a TTL.
const (
	// retryPart is when a failed renewal is retried, or after a quarter of the rest if that is
	// sooner, but not before retryLeast.
	retryPart, retryLeast = 12, 60
	// spreadPart is by how much renewals are sent earlier at most, so that holds that were acquired
	// together are not renewed together.
	spreadPart = 6
	// earlyPart is by how much a hold is renewed earlier at most to fill a batch.
	earlyPart = 24
)

// Keeper renews holds until they are removed or lost, in the order of their ends.
type Keeper[H Hold] struct {
	// renew renews the holds of a batch in the store, and reports for each whether it is held. With
	// an error, those reported as held were renewed, and the others are retried.
	renew func(context.Context, []H) ([]bool, error)

	mu       sync.Mutex
	holds    map[H]*entry[H]
	waiting  queue[H] // not due, by due time
	ready    queue[H] // due, by end
	inFlight int      // batches
	started  time.Time
	limit    int     // of batches in flight, 1 to few
	added    int     // holds
	offset   float64 // of the last hold, as a part of the maximum
	timer    *time.Timer
	rings    time.Time // when the timer fires; zero if it is not set
	spare    sync.Pool // of *entry[H]
	// running counts batches in flight; Wait waits for it.
	running sync.WaitGroup
}

type entry[H Hold] struct {
	hold      H
	due, ends time.Time
	watched   bool // not renewed, and removed when it is due
	failed    bool // its last renewal failed
	in        *queue[H]
	index     int // in that queue; -1 while its batch is in flight
}

// NewKeeper returns a keeper that renews with the given function.
func NewKeeper[H Hold](renew func(context.Context, []H) ([]bool, error)) *Keeper[H] {
	k := &Keeper[H]{renew: renew, holds: make(map[H]*entry[H]), limit: few}
	k.ready.byEnd = true
	return k
}

// Add starts renewing a hold whose current TTL began at the given time.
func (k *Keeper[H]) Add(h H, sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.added%maxBatch == 0 { // holds of a batch stay together
		k.offset = rand.Float64()
	}
	k.added++
	k.add(h, sent.Add(h.TTL()/3-k.spread(h, k.offset)), sent.Add(h.TTL()), false)
}

// spread returns how much earlier than at a third of its TTL a hold is renewed: zero in a process
// with few holds. The caller holds mu.
func (k *Keeper[H]) spread(h H, offset float64) time.Duration {
	if len(k.holds) < maxBatch {
		return 0
	}
	return time.Duration(offset * float64(h.TTL()/spreadPart))
}

// Watch removes a hold that is not renewed when it ends: it is then in a batch, and renew reports
// that it is not held.
func (k *Keeper[H]) Watch(h H, end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(h, end, end, true)
}

// add is called with mu held.
func (k *Keeper[H]) add(h H, due, ends time.Time, watched bool) {
	e, _ := k.spare.Get().(*entry[H])
	if e == nil {
		e = new(entry[H])
	}
	e.hold, e.due, e.ends, e.watched = h, due, ends, watched
	k.holds[h] = e
	k.waiting.put(e)
	k.arm(time.Now())
}

// Remove stops renewing a hold. Renewed may still be called for a renewal in flight.
func (k *Keeper[H]) Remove(h H) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.holds[h]
	if !ok {
		return
	}
	delete(k.holds, h)
	if e.index >= 0 { // otherwise its batch still has it
		heap.Remove(e.in, e.index)
		*e = entry[H]{}
		k.spare.Put(e)
	}
}

// Len returns the number of holds.
func (k *Keeper[H]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.holds)
}

// Wait blocks until no renewal is in flight.
func (k *Keeper[H]) Wait() { k.running.Wait() }

// arm sets the timer for the first due hold, or for another batch, unless it fires before that. It
// is not stopped when a hold is removed: most are removed before they are due, and the next hold
// would set it again. The caller holds mu.
func (k *Keeper[H]) arm(now time.Time) {
	var next time.Time
	if k.waiting.Len() > 0 {
		next = k.waiting.entries[0].due
	}
	if k.ready.Len() > 0 && k.limit == few && k.inFlight < most {
		if more := k.started.Add(patience); next.IsZero() || more.Before(next) {
			next = more
		}
	}
	if next.IsZero() || !k.rings.IsZero() && !next.Before(k.rings) {
		return
	}
	k.rings = next
	if k.timer == nil {
		k.timer = time.AfterFunc(next.Sub(now), k.tick)
		return
	}
	k.timer.Reset(next.Sub(now))
}

// Rest stops the timer if there are no holds.
func (k *Keeper[H]) Rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting.Len()+k.ready.Len() == 0 && k.timer != nil {
		k.timer.Stop()
		k.rings = time.Time{}
	}
}

func (k *Keeper[H]) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rings = time.Time{}
	k.send(time.Now())
}

// send sends batches of due holds, up to the maximum in flight. The caller holds mu.
func (k *Keeper[H]) send(now time.Time) {
	for k.waiting.Len() > 0 {
		first := k.waiting.entries[0]
		early := first.due.Sub(now)
		fills := k.ready.Len()%maxBatch != 0 && !first.watched && early <= first.hold.TTL()/earlyPart
		if early > 0 && !fills {
			break
		}
		k.ready.put(k.waiting.take())
	}
	for k.ready.Len() > 0 && k.maySend(now) {
		batch := make([]*entry[H], 0, min(k.ready.Len(), maxBatch))
		for len(batch) < cap(batch) {
			batch = append(batch, k.ready.take())
		}
		k.inFlight++
		k.started = now
		k.running.Go(func() { k.renewBatch(batch) })
	}
	k.arm(now)
}

func (k *Keeper[H]) maySend(now time.Time) bool {
	return k.inFlight < k.limit || k.limit == few && k.inFlight < most && now.Sub(k.started) >= patience
}

func (k *Keeper[H]) renewBatch(batch []*entry[H]) {
	holds := make([]H, len(batch))
	shortest := batch[0].hold.TTL()
	for i, e := range batch {
		holds[i] = e.hold
		shortest = min(shortest, e.hold.TTL())
	}
	sent := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), shortest/3)
	held, err := k.renew(ctx, holds)
	cancel()

	var renewed, lost []H
	offset := rand.Float64()
	k.mu.Lock()
	now := time.Now()
	for i, e := range batch {
		if k.holds[e.hold] != e {
			continue // removed since
		}
		ttl := e.hold.TTL()
		switch {
		case i < len(held) && held[i]:
			next := sent.Add(ttl / 3)
			if e.failed || sent.Sub(e.due) > ttl/earlyPart { // late or failed with many others: spread them again
				next = next.Add(-k.spread(e.hold, offset))
			}
			e.due, e.ends, e.failed = next, sent.Add(ttl), false
			k.waiting.put(e)
			renewed = append(renewed, e.hold)
		case err != nil:
			e.due, e.failed = now.Add(max(min(ttl/retryPart, e.ends.Sub(now)/4), ttl/retryLeast)), true
			k.waiting.put(e)
		default:
			delete(k.holds, e.hold)
			lost = append(lost, e.hold)
		}
	}
	k.inFlight--
	if err != nil && len(renewed) == 0 {
		k.limit = 1
	} else {
		k.limit = min(k.limit+1, few)
	}
	k.send(now)
	k.mu.Unlock()

	for _, h := range renewed {
		h.Renewed(sent)
	}
	for _, h := range lost {
		h.Lost()
	}
}

// queue is a heap of entries by due time, or by end.
type queue[H Hold] struct {
	entries []*entry[H]
	byEnd   bool
}

func (q *queue[H]) put(e *entry[H]) {
	e.in = q
	heap.Push(q, e)
}

func (q *queue[H]) take() *entry[H] { return heap.Pop(q).(*entry[H]) }

// Len implements heap.Interface.
func (q *queue[H]) Len() int { return len(q.entries) }

// Less implements heap.Interface.
func (q *queue[H]) Less(i, j int) bool {
	a, b := q.entries[i], q.entries[j]
	if q.byEnd {
		return a.ends.Before(b.ends)
	}
	return a.due.Before(b.due)
}

// Swap implements heap.Interface.
func (q *queue[H]) Swap(i, j int) {
	q.entries[i], q.entries[j] = q.entries[j], q.entries[i]
	q.entries[i].index, q.entries[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue[H]) Push(x any) {
	e := x.(*entry[H])
	e.index = len(q.entries)
	q.entries = append(q.entries, e)
}

// Pop implements heap.Interface.
func (q *queue[H]) Pop() any {
	last := len(q.entries) - 1
	e := q.entries[last]
	q.entries[last] = nil
	q.entries = q.entries[:last]
	e.index = -1
	return e
}
