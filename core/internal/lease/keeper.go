package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Kept is something with a lease that a Keeper renews.
type Kept[H any] interface {
	// TTL returns the TTL that a renewal sets.
	TTL() time.Duration
	// Due reports whether to renew the lease. A lease that has ended in this process is not due:
	// its renewal would block others without a holder. It counts as lost.
	Due() bool
	// Renewed is called after a renewal that was sent at this time and confirmed by the store.
	Renewed(sent time.Time)
	// Lost is called when the store reports that the lease has ended, or when it is not due. The
	// keeper has removed it before.
	Lost()
	// Entry returns the memory of the keeper.
	Entry() *Entry[H]
}

const (
	// maxBatch bounds the leases in a call of renew.
	maxBatch = 100
	// few is the usual maximum of batches in flight, so that a store with many due or overdue
	// leases replies to each of them in time. If these do not end within patience, another one is
	// sent, up to most, so that a part of the store without replies does not block the rest. After
	// a batch without a single renewal the maximum is one, and grows by one with each successful
	// batch.
	few, most = 4, 16
	patience  = 25 * time.Millisecond
)

// A grant that is shorter than the TTL is taken up by its first renewal. It is sent after
// takeUpDelay, or after a third of the grant if that is less: so a short hold never sends it. If it
// fails, it is repeated after takeUpRetry.
const (
	takeUpDelay = 50 * time.Millisecond
	takeUpRetry = 250 * time.Millisecond
)

// Parts of a TTL.
const (
	// A failed renewal is retried after the part retryPart, or after a quarter of the rest if that
	// is sooner, but not before retryLeast.
	retryPart, retryLeast = 12, 60
	// spreadPart bounds how much earlier renewals are sent, so that leases that were acquired
	// together are not renewed together.
	spreadPart = 6
	// earlyPart bounds how much earlier a lease is renewed to fill a batch.
	earlyPart = 24
)

// Keeper renews leases until they are removed or lost, in the order of their ends.
type Keeper[H Kept[H]] struct {
	// renew renews a batch in the store, and reports for each lease whether it is held. With an
	// error, the leases reported as held were renewed, and the others are retried.
	renew func(context.Context, []H) ([]bool, error)

	mu       sync.Mutex
	kept     int                  // how many
	waiting  heap.Heap[*Entry[H]] // not due, by due time
	ready    heap.Heap[*Entry[H]] // due, by end
	inFlight int                  // batches
	started  time.Time
	limit    int     // of batches in flight, 1 to few
	added    int     // leases
	offset   float64 // of the last one, as a part of the maximum
	timer    *time.Timer
	rings    time.Time // when the timer fires; zero if it is not set
	// running counts batches in flight; Wait waits for it.
	running sync.WaitGroup
}

// Entry is a Keeper's state of a lease, in the lease's memory.
type Entry[H any] struct {
	of        H
	kept      bool
	watched   bool // not renewed any more, and removed when it is due
	once      bool // watched after its first renewal
	untaken   bool // the first renewal takes it up
	failed    bool // its last renewal failed
	due, ends time.Time
	ttl       time.Duration // from its last renewal
	ready     bool          // in the heap of due leases
	index     int           // in its heap; -1 while its batch is in flight
}

// NewKeeper returns a keeper that renews with the given function.
func NewKeeper[H Kept[H]](renew func(context.Context, []H) ([]bool, error)) *Keeper[H] {
	return &Keeper[H]{renew: renew, limit: few}
}

// Add starts renewing a lease whose current TTL began at the given time. It is called once for
// each.
func (k *Keeper[H]) Add(h H, sent time.Time) { k.AddFor(h, sent, h.TTL()) }

// AddFor is Add for a lease whose current TTL is not the one that a renewal sets.
func (k *Keeper[H]) AddFor(h H, sent time.Time, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.added%maxBatch == 0 { // leases of a batch stay together
		k.offset = rand.Float64()
	}
	k.added++
	e := h.Entry()
	*e = Entry[H]{of: h, ttl: ttl, due: sent.Add(ttl/3 - k.spread(ttl, k.offset)), ends: sent.Add(ttl)}
	k.add(e)
}

// TakeUp is Add for a lease that was granted for a shorter time. The first renewal sets its TTL. If
// once is set, there are no others.
func (k *Keeper[H]) TakeUp(h H, sent time.Time, granted time.Duration, once bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := h.Entry()
	*e = Entry[H]{
		of: h, ttl: granted, due: time.Now().Add(min(takeUpDelay, granted/3)), ends: sent.Add(granted), untaken: true, once: once,
	}
	k.add(e)
}

// spread returns how much earlier than at a third of its TTL a lease is renewed: zero in a process
// with few of them. The caller holds mu.
func (k *Keeper[H]) spread(ttl time.Duration, offset float64) time.Duration {
	if k.kept < maxBatch {
		return 0
	}
	return time.Duration(offset * float64(ttl/spreadPart))
}

// Watch is Add for a lease that is not renewed, and is removed when it ends. It may be called
// again, or after Add, with a later end.
func (k *Keeper[H]) Watch(h H, end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := h.Entry()
	if e.kept {
		if e.watched = true; e.index < 0 { // the end of its batch puts it back
			e.ends = end
			return
		}
		k.unqueue(e)
		k.kept--
	}
	*e = Entry[H]{of: h, ttl: h.TTL(), due: end, ends: end, watched: true}
	k.add(e)
}

// add is called with mu held.
func (k *Keeper[H]) add(e *Entry[H]) {
	e.kept = true
	k.kept++
	k.waiting.Push(e)
	k.arm(time.Now())
}

// unqueue is called with mu held.
func (k *Keeper[H]) unqueue(e *Entry[H]) {
	if e.ready {
		k.ready.Remove(e)
	} else {
		k.waiting.Remove(e)
	}
}

// Remove stops renewing a lease. Renewed may still be called for a renewal in flight.
func (k *Keeper[H]) Remove(h H) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := h.Entry()
	if !e.kept {
		return
	}
	k.drop(e)
	if e.index >= 0 { // otherwise its batch still has it
		k.unqueue(e)
	}
}

// drop is called with mu held.
func (k *Keeper[H]) drop(e *Entry[H]) {
	e.kept = false
	k.kept--
}

// Wait blocks until no renewal is in flight.
func (k *Keeper[H]) Wait() { k.running.Wait() }

// arm sets the timer for the first due lease, or for another batch, unless it fires before that. It
// is not stopped when a lease is removed: most leases are removed before they are due, and the next
// one would set it again. The caller holds mu.
func (k *Keeper[H]) arm(now time.Time) {
	var next time.Time
	if len(k.waiting) > 0 {
		next = k.waiting[0].due
	}
	if len(k.ready) > 0 && k.limit == few && k.inFlight < most {
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

// Rest stops the timer if there are no leases.
func (k *Keeper[H]) Rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiting)+len(k.ready) == 0 && k.timer != nil {
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

// send sends batches of due leases, up to the maximum in flight. The caller holds mu.
func (k *Keeper[H]) send(now time.Time) {
	var over []H
	for len(k.waiting) > 0 {
		first := k.waiting[0]
		early := first.due.Sub(now)
		fills := len(k.ready)%maxBatch != 0 && !first.watched && early <= first.ttl/earlyPart
		if early > 0 && !fills {
			break
		}
		e := k.waiting.Pop()
		if e.watched || !e.of.Due() { // also while others wait for room, or for a store that hangs
			k.drop(e)
			over = append(over, e.of)
			continue
		}
		e.ready = true
		k.ready.Push(e)
	}
	if len(over) > 0 {
		k.running.Go(func() { lose(over) })
	}
	for len(k.ready) > 0 && k.maySend(now) {
		batch := make([]*Entry[H], 0, min(len(k.ready), maxBatch))
		for len(batch) < cap(batch) {
			batch = append(batch, k.ready.Pop())
		}
		k.inFlight++
		k.started = now
		k.running.Go(func() { k.renewBatch(batch) })
	}
	k.arm(now)
}

func lose[H Kept[H]](over []H) {
	for _, h := range over {
		h.Lost()
	}
}

func (k *Keeper[H]) maySend(now time.Time) bool {
	return k.inFlight < k.limit || k.limit == few && k.inFlight < most && now.Sub(k.started) >= patience
}

func (k *Keeper[H]) renewBatch(batch []*Entry[H]) {
	var due, lost []H
	k.mu.Lock()
	shortest := batch[0].ttl
	rest := batch[:0]
	for _, e := range batch {
		switch {
		case !e.kept:
		case !e.of.Due():
			k.drop(e)
			lost = append(lost, e.of)
		default:
			rest, due = append(rest, e), append(due, e.of)
			shortest = min(shortest, e.ttl)
		}
	}
	k.mu.Unlock()
	var (
		sent = time.Now()
		held []bool
		err  error
	)
	if len(due) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), shortest/3)
		held, err = k.renew(ctx, due)
		cancel()
	}
	if err == nil && len(held) != len(due) {
		err = fmt.Errorf("%w: %d replies to %d renewals", store.ErrUnavailable, len(held), len(due))
	}

	var renewed []H
	offset := rand.Float64()
	k.mu.Lock()
	now := time.Now()
	for i, e := range rest {
		if !e.kept {
			continue // removed since
		}
		switch {
		case i < len(held) && held[i]:
			renewed = append(renewed, e.of)
			if !e.watched {
				ttl := e.of.TTL()
				e.renewed(sent, ttl, k.spread(ttl, offset))
			}
		case err == nil:
			k.drop(e)
			lost = append(lost, e.of)
			continue
		case e.untaken:
			e.due, e.failed = now.Add(takeUpRetry), true
		default:
			e.due, e.failed = now.Add(max(min(e.ttl/retryPart, e.ends.Sub(now)/4), e.ttl/retryLeast)), true
		}
		if e.watched {
			e.due = e.ends
		}
		e.ready = false
		k.waiting.Push(e)
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
	lose(lost)
}

// renewed sets when the next renewal is due.
func (e *Entry[H]) renewed(sent time.Time, ttl, spread time.Duration) {
	next := sent.Add(ttl / 3)
	if e.failed || sent.Sub(e.due) > ttl/earlyPart { // with many others: spread them again
		next = next.Add(-spread)
	}
	e.due, e.ends, e.ttl, e.failed, e.untaken = next, sent.Add(ttl), ttl, false, false
	if e.once {
		e.watched, e.ends = true, ValidUntil(sent, ttl)
	}
}

// Before implements heap.Item.
func (e *Entry[H]) Before(other *Entry[H]) bool {
	if e.ready {
		return e.ends.Before(other.ends)
	}
	return e.due.Before(other.due)
}

// Index implements heap.Item.
func (e *Entry[H]) Index() *int { return &e.index }
