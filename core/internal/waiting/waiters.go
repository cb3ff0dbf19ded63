package waiting

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// waiters are the queued requests of this process, and the holds that it got while waiting.
type waiters[R Record] struct {
	mu       sync.Mutex
	byID     map[string]*waiter[R]
	keys     map[string]*Key[R] // by the record's name
	held     map[string]int64   // by ID: the fence of a hold that a push may announce
	inFlight int                // calls that may create a request
	spare    sync.Pool          // of *waiter that no call has awaited
	// Of the heartbeats.
	beating     bool // a goroutine sends them
	due         heap.Heap[*Key[R]]
	began       time.Time
	sleepsUntil time.Time     // when that goroutine wakes up by itself
	changed     chan struct{} // wakes it up
}

// waiter is a request that is, or will be, in a queue. waiters.mu guards it.
type waiter[R Record] struct {
	id      string
	key     *Key[R] // nil until it is queued
	place   int64
	left    time.Time // since when no call awaits it
	awaited int       // calls that await it
	asking  int       // calls in flight that may create the request
	pushed  *pushedGrant
	ask     bool
	over    error
	woken   chan struct{} // has an element if pushed, ask or over was set; nil before a call awaits it
}

// keptUnawaited is how long a request is kept while no call awaits it.
const keptUnawaited = 3 * time.Second

func (ws *waiters[R]) init() {
	ws.byID = make(map[string]*waiter[R])
	ws.keys = make(map[string]*Key[R])
	ws.held = make(map[string]int64)
	ws.began, ws.changed = time.Now(), make(chan struct{}, 1)
}

// expect registers a request that is about to be sent, so that no push comes too early.
func (ws *waiters[R]) expect(id string) *waiter[R] {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[id]
	if w == nil {
		if w, _ = ws.spare.Get().(*waiter[R]); w == nil {
			w = new(waiter[R])
		}
		*w = waiter[R]{id: id}
		ws.byID[id] = w
	}
	ws.begin(w)
	return w
}

// begin counts a call that may create a request. The caller holds mu.
func (ws *waiters[R]) begin(w *waiter[R]) {
	w.asking++
	ws.inFlight++
}

// answered records the reply to a request.
func (ws *waiters[R]) answered(w *waiter[R], record R, reply *Reply, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.asking--
	ws.inFlight--
	if ws.byID[w.id] != w {
		return // it was released meanwhile
	}
	switch {
	case err != nil:
		if w.key == nil && w.awaited == 0 && w.asking == 0 {
			ws.remove(w)
		}
	case reply.Outcome == store.Queued:
		w.place, w.left = reply.Place, time.Now()
		ws.enqueue(w, record)
		w.key.heard = w.left
		ws.schedule(w.key, reply.Next)
	default:
		if reply.Outcome == store.Granted && (reply.Repeated || w.key != nil) {
			ws.held[w.id] = reply.Fence
		}
		if w.awaited == 0 {
			ws.remove(w)
			if w.woken == nil && w.asking == 0 { // only its one call had it, which has ended
				ws.spare.Put(w)
			}
			return
		}
		if w.key != nil {
			ws.dequeue(w)
		}
		if reply.Outcome == store.Granted { // another call than this one may await it
			w.ask = true
			w.wake()
		}
	}
}

// enqueue adds a request to those of its key. The caller holds mu.
func (ws *waiters[R]) enqueue(w *waiter[R], record R) {
	if w.key != nil {
		return
	}
	name := record.Name()
	k := ws.keys[name]
	if k == nil {
		now := time.Now()
		k = &Key[R]{Record: record, waiters: make(map[*waiter[R]]struct{}), heard: now, due: now.Add(beatEvery)}
		ws.keys[name] = k
		ws.due.Push(k)
	}
	w.key = k
	k.waiters[w] = struct{}{}
}

// dequeue is the reverse of enqueue. The caller holds mu.
func (ws *waiters[R]) dequeue(w *waiter[R]) {
	k := w.key
	w.key = nil
	delete(k.waiters, w)
	if len(k.waiters) == 0 {
		delete(ws.keys, k.Record.Name())
		ws.due.Remove(k)
	}
}

// remove removes a request. The caller holds mu.
func (ws *waiters[R]) remove(w *waiter[R]) {
	if w.key != nil {
		ws.dequeue(w)
	}
	if ws.byID[w.id] == w {
		delete(ws.byID, w.id)
	}
}

// await registers a call that awaits a request.
func (ws *waiters[R]) await(req *store.LeaseRequest, record R) *waiter[R] {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[req.ID]
	if w == nil {
		w = &waiter[R]{id: req.ID, place: req.Place, ask: true}
		ws.byID[req.ID] = w
	}
	if w.woken == nil {
		w.woken = make(chan struct{}, 1)
		w.wake() // for what has happened before
	}
	ws.enqueue(w, record)
	w.awaited++
	return w
}

// leave is the reverse of await. The request is kept for a while if it still waits.
func (ws *waiters[R]) leave(w *waiter[R]) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.awaited--
	w.left = time.Now()
	if w.awaited > 0 {
		w.wake() // one wake-up reaches one call
	} else if w.key == nil {
		ws.remove(w)
	}
}

// next returns what has happened to a request: a push, or that the store is to be asked, or why the
// wait is over. A push that can be used turns the request into a hold. The call that asks is counted.
func (ws *waiters[R]) next(w *waiter[R], usable func(*pushedGrant) bool) (granted *pushedGrant, ask bool, over error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	granted, ask, over = w.pushed, w.ask, w.over
	w.pushed, w.ask = nil, false
	switch {
	case over != nil:
		return nil, false, over
	case granted != nil && usable(granted):
		ws.held[w.id] = granted.first
		if w.key != nil {
			ws.dequeue(w)
		}
		return granted, false, nil
	}
	if ask = ask || granted != nil; ask {
		ws.begin(w)
	}
	return nil, ask, nil
}

// asking reports whether a call is in flight that may create a request.
func (ws *waiters[R]) asking(id string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[id]
	return w != nil && w.asking > 0
}

// push records the push of a grant. It returns false if the grant is of no use and is to be released.
func (ws *waiters[R]) push(g *pushedGrant) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if fence, ok := ws.held[g.id]; ok {
		return fence == g.first
	}
	w := ws.byID[g.id]
	if w == nil {
		return false
	}
	w.pushed = g
	w.wake()
	return true
}

// released ends the wait of a released request, and forgets its hold.
func (ws *waiters[R]) released(id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.held, id)
	if w := ws.byID[id]; w != nil {
		w.end(store.ErrWithdrawn)
		ws.remove(w)
	}
}

// askAgain records that the store did not reply to a call that asked for a request.
func (ws *waiters[R]) askAgain(w *waiter[R], err error) {
	ws.mu.Lock()
	k := w.key
	w.ask = true
	ws.mu.Unlock()
	if k != nil {
		ws.Silent(k, err)
	}
}

// wake wakes a call that awaits the request. The caller holds mu.
func (w *waiter[R]) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// end ends the wait. The caller holds mu.
func (w *waiter[R]) end(err error) {
	if w.over == nil {
		w.over = err
	}
	w.wake()
}
