// Package renewal keeps leases alive: it renews the holds of a process in batches, each at a third
// of its time to live, with one timer and no goroutine while there is nothing to do.
package renewal

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Hold is what a Keeper keeps alive.
type Hold interface {
	comparable
	// TTL is the time to live that a renewal gives.
	TTL() time.Duration
	// Renewed is called after a renewal that was sent at that time and that the store confirmed.
	Renewed(sent time.Time)
	// Lost is called when the store says that the hold is not held any more. The keeper has
	// forgotten it by then.
	Lost()
}

// maxBatch bounds what one call of renew is given.
const maxBatch = 100

// Keeper renews holds until they are removed or lost.
type Keeper[H Hold] struct {
	// Renew asks the store to renew the holds of a batch, and says for each whether it is held.
	// On an error those that it says are held have been renewed, and the others are tried again.
	renew func(context.Context, []H) ([]bool, error)

	mu    sync.Mutex
	holds map[H]*entry[H]
	queue queue[H]
	timer *time.Timer
	rings time.Time // when the timer does, if not zero
	spare sync.Pool // of *entry[H]
	// running counts batches that are under way; Wait waits for it.
	running sync.WaitGroup
}

type entry[H Hold] struct {
	hold  H
	due   time.Time
	index int // in the queue; -1 while its batch is under way
}

// NewKeeper returns a keeper that renews with the given function.
func NewKeeper[H Hold](renew func(context.Context, []H) ([]bool, error)) *Keeper[H] {
	return &Keeper[H]{renew: renew, holds: make(map[H]*entry[H])}
}

// Add starts renewing a hold whose present time to live began at the given time.
func (k *Keeper[H]) Add(h H, sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, _ := k.spare.Get().(*entry[H])
	if e == nil {
		e = new(entry[H])
	}
	e.hold, e.due = h, sent.Add(h.TTL()/3)
	k.holds[h] = e
	heap.Push(&k.queue, e)
	k.arm()
}

// Remove stops renewing a hold. A renewal that is under way may still be told to it.
func (k *Keeper[H]) Remove(h H) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.holds[h]
	if !ok {
		return
	}
	delete(k.holds, h)
	if e.index >= 0 { // else its batch has it still
		heap.Remove(&k.queue, e.index)
		*e = entry[H]{}
		k.spare.Put(e)
	}
}

// Len is the number of holds that are kept alive.
func (k *Keeper[H]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.holds)
}

// Wait waits until no renewal is under way.
func (k *Keeper[H]) Wait() { k.running.Wait() }

// arm sets the timer for the first hold that is due, unless it rings before that anyway. It is not
// stopped for a hold that is removed: most are before they are due, and the next hold would set it
// again. The caller holds mu.
func (k *Keeper[H]) arm() {
	if len(k.queue) == 0 {
		return
	}
	due := k.queue[0].due
	if !k.rings.IsZero() && !due.Before(k.rings) {
		return
	}
	k.rings = due
	if k.timer == nil {
		k.timer = time.AfterFunc(time.Until(due), k.tick)
		return
	}
	k.timer.Reset(time.Until(due))
}

// Rest stops the timer if nothing is kept alive.
func (k *Keeper[H]) Rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 && k.timer != nil {
		k.timer.Stop()
		k.rings = time.Time{}
	}
}

// tick sends what is due, in batches that do not wait for each other.
func (k *Keeper[H]) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rings = time.Time{}
	now := time.Now()
	for len(k.queue) > 0 && !k.queue[0].due.After(now) {
		var batch []*entry[H]
		for len(batch) < maxBatch && len(k.queue) > 0 && !k.queue[0].due.After(now) {
			batch = append(batch, heap.Pop(&k.queue).(*entry[H]))
		}
		k.running.Go(func() { k.send(batch) })
	}
	k.arm()
}

func (k *Keeper[H]) send(batch []*entry[H]) {
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
	k.mu.Lock()
	for i, e := range batch {
		if k.holds[e.hold] != e {
			continue // removed meanwhile
		}
		switch {
		case i < len(held) && held[i]:
			e.due = sent.Add(e.hold.TTL() / 3)
			heap.Push(&k.queue, e)
			renewed = append(renewed, e.hold)
		case err != nil: // soon again: there may be two more chances before the lease ends
			e.due = time.Now().Add(e.hold.TTL() / 12)
			heap.Push(&k.queue, e)
		default:
			delete(k.holds, e.hold)
			lost = append(lost, e.hold)
		}
	}
	k.arm()
	k.mu.Unlock()

	for _, h := range renewed {
		h.Renewed(sent)
	}
	for _, h := range lost {
		h.Lost()
	}
}

// queue is a heap of entries, the first due at its top.
type queue[H Hold] []*entry[H]

func (q queue[H]) Len() int           { return len(q) }
func (q queue[H]) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue[H]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue[H]) Push(x any) {
	e := x.(*entry[H])
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *queue[H]) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	e.index = -1
	return e
}
