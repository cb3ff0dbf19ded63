package lease

import (
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// queue holds this process's waiters for one key, settings and weight, and its holds that may be
// handed on to them. It has as many holds and places in the store as there is room for: one for a
// lock. It hands each grant to its first waiter; the other waiters wait here. The pool's mu guards
// the fields.
type queue struct {
	key    string
	config *Config
	weight int
	next   *queue // of the same key

	capacity int // of the last request
	reserve  int // of the last request
	holds    []*Hold
	ends     time.Time // none of the holds ends before
	places   []*place  // in the store, or requested
	queued   int       // places that the store has confirmed
	flying   int       // other calls to the store in flight, to acquire or to release
	waiters  list.List // of *waiter
	tries    list.List // of *waiter: callers that wait only for a call in flight
	arrivals int
	reply    store.LeaseReply // when the first of the places was queued
}

const (
	// maxPlaces is the maximum of a queue's places in the store.
	maxPlaces = 16
	// maxPasses bounds how many leases a hold carries, and maxRun for how long it is handed on,
	// before other processes get their turn.
	maxPasses = 16
	maxRun    = 50 * time.Millisecond
	// maxSpare bounds the memory for queues that is kept.
	maxSpare = 64
)

// limit returns the number of holds and places for which the queue has room.
func (q *queue) limit() int { return max((q.capacity-q.reserve)/q.weight, 1) }

func (q *queue) room() bool { return len(q.holds)+len(q.places)+q.flying < q.limit() }

// setLimits sets the capacity and the reserve of requests, and reports whether that changes them.
// When they allow less, more may be in use, so that no present hold is handed on any more.
func (q *queue) setLimits(capacity, reserve int) bool {
	if capacity-reserve < q.capacity-q.reserve {
		for _, h := range q.holds {
			h.last = h.fence
		}
	}
	changed := q.capacity != capacity || q.reserve != reserve
	q.capacity, q.reserve = capacity, reserve
	return changed
}

// known reports whether a request would certainly have to wait: for the process's own holds, or by
// the store's reply.
func (q *queue) known() bool { return q.queued > 0 || len(q.holds) >= q.limit() }

// queueOf returns the queue for a request. The caller holds mu.
func (p *Pool) queueOf(r *Request) *queue {
	first := p.queues[r.Key]
	for q := first; q != nil; q = q.next {
		if q.weight == r.Weight && (q.config == r.Config || q.config.Settings == r.Config.Settings) {
			return q
		}
	}
	var q *queue
	if last := len(p.spare) - 1; last >= 0 {
		q, p.spare = p.spare[last], p.spare[:last]
	} else {
		q = new(queue)
	}
	q.config, q.weight, q.next = r.Config, r.Weight, first
	if first != nil {
		q.key = first.key
	} else {
		q.key = strings.Clone(r.Key) // a substring of a request would keep the whole request in memory
	}
	p.queues[q.key] = q
	return q
}

// tidy removes a queue that is not in use. The caller holds mu.
func (p *Pool) tidy(q *queue) {
	if len(q.holds)+len(q.places)+q.flying+q.waiters.Len()+q.tries.Len() > 0 {
		return
	}
	switch first := p.queues[q.key]; {
	case first == q && q.next == nil:
		delete(p.queues, q.key)
	case first == q:
		p.queues[q.key] = q.next
	default:
		for first.next != q {
			first = first.next
		}
		first.next = q.next
	}
	q.key, q.config, q.next, q.reply = "", nil, nil, store.LeaseReply{}
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, q)
	}
}

func (q *queue) add(h *Hold) {
	h.queue, h.index = q, len(q.holds)
	if end := h.term.ValidUntil(); len(q.holds) == 0 || end.Before(q.ends) {
		q.ends = end
	}
	q.holds = append(q.holds, h)
}

func (q *queue) drop(h *Hold) {
	last := len(q.holds) - 1
	q.holds[h.index] = q.holds[last]
	q.holds[h.index].index = h.index
	q.holds[last] = nil
	q.holds = q.holds[:last]
	h.queue = nil
}

// dropEnded drops holds that have ended by the clock, whether or not a timer has fired.
func (q *queue) dropEnded() {
	now := time.Now()
	if now.Before(q.ends) {
		return
	}
	var next time.Time
	for _, h := range slices.Backward(q.holds) {
		if !h.term.Valid() {
			q.drop(h)
		} else if end := h.term.ValidUntil(); next.IsZero() || end.Before(next) {
			next = end
		}
	}
	q.ends = next
}

// holder returns the label of a holder. The caller holds mu.
func (q *queue) holder() string {
	if len(q.holds) == 0 {
		return q.reply.Holder
	}
	h := q.holds[0]
	if h.lease == nil || h.lease.recorded {
		return h.config.Holder
	}
	return WithSpan(h.lease.parent, h.config.Holder)
}

// foreign returns the number of requests before the queue's places in the store. The caller holds
// mu.
func (q *queue) foreign() int {
	if q.queued == 0 {
		return 0
	}
	return q.reply.Waiting
}

// waiting returns how many callers of the process wait for the key, and whether a TryAcquire would
// overtake a waiter in another queue than q.
func (p *Pool) waiting(q *queue) (n int, ahead bool) {
	for other := p.queues[q.key]; other != nil; other = other.next {
		n += other.waiters.Len()
		ahead = ahead || other != q && other.waiters.Len() > 0 && other.known() && other.reserve <= q.reserve
	}
	return n, ahead
}

// refusal returns the error of a caller without a lease. The caller holds mu.
func (p *Pool) refusal(q *queue, full bool, cause error) error {
	waiting, _ := p.waiting(q)
	b := Busy{Holder: q.config.Holder, Capacity: q.capacity, Waiting: waiting, Full: full, Cause: cause}
	if q.queued > 0 {
		b.Holder, _ = CutSpan(q.reply.Holder)
		b.InUse, b.Remaining, b.Waiting = q.reply.InUse, q.reply.Remaining, waiting+q.foreign()
		return p.Busy(b)
	}
	for other := p.queues[q.key]; other != nil; other = other.next {
		b.InUse += len(other.holds) * other.weight
	}
	if len(q.holds) > 0 {
		b.Remaining = q.holds[0].term.Remaining() + q.config.Delay
	}
	return p.Busy(b)
}

// failTries passes the error of a request to the callers that wait only for its reply. The caller
// holds mu.
func (q *queue) failTries(err error) {
	for w := first(&q.tries); w != nil; w = first(&q.tries) {
		w.receive(turn{err: err})
	}
}

// kick continues a queue after any change of it:
//   - callers that wait only for a reply get it, if it is known;
//   - as many waiters as there is room for get places;
//   - a queue that is not in use is removed.
//
// The caller holds mu.
func (p *Pool) kick(q *queue) {
	for w := first(&q.tries); w != nil && q.known(); w = first(&q.tries) {
		w.receive(turn{err: p.refusal(q, false, nil)})
	}
	for p.closing.Err() == nil && q.room() {
		if n := len(q.places); q.waiters.Len() > n && n < maxPlaces {
			e := q.waiters.Front()
			for range n {
				e = e.Next()
			}
			ctx := e.Value.(*waiter).ctx
			p.serve(ctx, q, p.placeRequest(ctx, q), nil)
			continue
		}
		w := first(&q.tries)
		if w == nil || q.waiters.Len() > 0 {
			break
		}
		q.flying++
		w.receive(turn{})
	}
	p.withdraw(q, q.waiters.Len())
	p.tidy(q)
}

// handOn hands a hold on to the next waiter, unless it must be released in the store. The caller
// holds mu.
func (p *Pool) handOn(h *Hold) bool {
	q := h.queue
	if q == nil || q.waiters.Len() == 0 || p.closing.Err() != nil {
		return false
	}
	length := time.Duration(h.length.Load())
	switch {
	case h.fence >= h.last, h.passes+1 >= maxPasses, q.capacity < h.capacity, q.reserve > 0:
		return false
	case time.Since(h.began) >= min(length, maxRun), !h.term.Valid(), h.term.Remaining() <= length/3*2:
		return false
	}
	h.passes++
	h.fence++
	h.term.Detach()
	first(&q.waiters).receive(turn{hold: h})
	p.kick(q)
	return true
}

// Backlog returns how many callers wait for a key in this process without a place in the store's
// queue.
func (p *Pool) Backlog(key string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := p.queues[key]; q != nil; q = q.next {
		n += max(q.waiters.Len()-len(q.places), 0)
	}
	return n
}
