package redisstore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// waiters are the queued requests of this process, and the holds that it got while waiting.
type waiters struct {
	mu          sync.Mutex
	byID        map[string]*waiter
	keys        map[string]*waitedKey // by record
	due         waitedKeys            // those with waiters
	held        map[string]int64      // by ID: the fence of a hold that a push may announce
	inFlight    int                   // calls that may create a request
	beating     bool                  // a goroutine sends heartbeats
	sleepsUntil time.Time             // when that goroutine wakes up by itself
	changed     chan struct{}
}

// waitedKey is a key with queued requests of this process.
type waitedKey struct {
	keys    leaseKeys
	linger  int64
	waiters map[*waiter]struct{}
	due     time.Time // the next heartbeat
	heard   time.Time // last reply of the store
	missing int       // consecutive heartbeats of which the store knew fewer waiters
	surplus int       // or more
	index   int       // in the heap
}

// waiter is a request that is, or will be, in a queue. waiters.mu guards it.
type waiter struct {
	id      string
	key     *waitedKey // nil until it is queued
	place   int64
	left    time.Time // since when no call awaits it
	awaited int       // calls that await it
	asking  int       // calls in flight that may create the request
	pushed  *pushedGrant
	ask     bool
	over    error
	woken   chan struct{} // has an element if pushed, ask or over was set
}

// pushedGrant is a grant that a push has announced.
type pushedGrant struct {
	id          string
	first, last int64
	place       int64
	span        time.Duration
	sent        time.Time // of the process's last sign of life that the store had: no later than the grant
	record      string
}

// keptUnawaited is how long a request is kept while no call awaits it.
const keptUnawaited = 3 * time.Second

func (ws *waiters) init() {
	ws.byID = make(map[string]*waiter)
	ws.keys = make(map[string]*waitedKey)
	ws.held = make(map[string]int64)
	ws.changed = make(chan struct{}, 1)
}

// expect registers a request that is about to be sent, so that no push comes too early.
func (ws *waiters) expect(id string) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[id]
	if w == nil {
		w = &waiter{id: id, left: time.Now(), woken: make(chan struct{}, 1)}
		ws.byID[id] = w
	}
	ws.begin(w)
	return w
}

// begin counts a call that may create a request. The caller holds mu.
func (ws *waiters) begin(w *waiter) {
	w.asking++
	ws.inFlight++
}

// answered records the reply to a request.
func (ws *waiters) answered(w *waiter, req *store.LeaseRequest, keys *leaseKeys, reply *leaseReply, err error) {
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
		w.place = reply.Place
		ws.enqueue(w, req, keys)
		w.key.heard = time.Now()
		ws.schedule(w.key, reply.next)
	default:
		if reply.Outcome == store.Granted && (reply.repeated || w.key != nil) {
			ws.held[w.id] = reply.Fence
		}
		if w.awaited == 0 {
			ws.remove(w)
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
func (ws *waiters) enqueue(w *waiter, req *store.LeaseRequest, keys *leaseKeys) {
	if w.key != nil {
		return
	}
	k := ws.keys[keys[0]]
	if k == nil {
		k = &waitedKey{keys: *keys, linger: linger(req.Name), waiters: make(map[*waiter]struct{}), heard: time.Now(), due: time.Now().Add(beatEvery)}
		ws.keys[k.keys[0]] = k
		heap.Push(&ws.due, k)
	}
	w.key = k
	k.waiters[w] = struct{}{}
}

// dequeue is the reverse of enqueue. The caller holds mu.
func (ws *waiters) dequeue(w *waiter) {
	k := w.key
	w.key = nil
	delete(k.waiters, w)
	if len(k.waiters) == 0 {
		delete(ws.keys, k.keys[0])
		heap.Remove(&ws.due, k.index)
	}
}

// remove removes a request. The caller holds mu.
func (ws *waiters) remove(w *waiter) {
	if w.key != nil {
		ws.dequeue(w)
	}
	if ws.byID[w.id] == w {
		delete(ws.byID, w.id)
	}
}

// await registers a call that awaits a request.
func (ws *waiters) await(req *store.LeaseRequest, keys *leaseKeys) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[req.ID]
	if w == nil {
		w = &waiter{id: req.ID, place: req.Place, woken: make(chan struct{}, 1), ask: true}
		ws.byID[req.ID] = w
		w.wake()
	}
	ws.enqueue(w, req, keys)
	w.awaited++
	return w
}

// leave is the reverse of await. The request is kept for a while if it still waits.
func (ws *waiters) leave(w *waiter) {
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
// wait is over. A push that can be used turns the request into a hold.
func (ws *waiters) next(w *waiter, usable func(*pushedGrant) bool) (granted *pushedGrant, ask bool, over error) {
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
	return nil, ask || granted != nil, nil
}

// asks counts a call that asks for a request.
func (ws *waiters) asks(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.begin(w)
}

// asking reports whether a call is in flight that may create a request.
func (ws *waiters) asking(id string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[id]
	return w != nil && w.asking > 0
}

// push records a push. It returns false if the grant is of no use and is to be released.
func (ws *waiters) push(g *pushedGrant) bool {
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
func (ws *waiters) released(id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.held, id)
	if w := ws.byID[id]; w != nil {
		w.end(store.ErrWithdrawn)
		ws.remove(w)
	}
}

// interval returns the time between the heartbeats of a key. The caller holds mu.
func (ws *waiters) interval() time.Duration {
	return max(beatEvery, time.Duration(len(ws.keys))*time.Second/maxBeats)
}

// deadAfter returns the time without a heartbeat after which the store may take the process for dead.
func (ws *waiters) deadAfter() time.Duration {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return 3 * ws.interval()
}

// schedule sets the next heartbeat of a key: when a hold ends, since there is no push then, or after
// the usual time. The caller holds mu.
func (ws *waiters) schedule(k *waitedKey, ends time.Duration) {
	wait := ws.interval()
	wait -= jitter(wait / 5)
	if ends > 0 && ends < wait {
		wait = ends + time.Millisecond + jitter(20*time.Millisecond)
	}
	ws.scheduleAt(k, time.Now().Add(wait))
}

func (ws *waiters) scheduleAt(k *waitedKey, due time.Time) {
	if k.index < 0 {
		return
	}
	k.due = due
	heap.Fix(&ws.due, k.index)
	ws.notify()
}

// beatSoon makes the heartbeat of a key due.
func (ws *waiters) beatSoon(record string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.keys[record]; k != nil {
		ws.scheduleAt(k, time.Now())
	}
}

// beatNow makes all heartbeats due.
func (ws *waiters) beatNow() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	for _, k := range ws.due {
		k.due = now // all are equal, so the heap stays valid
	}
	ws.notify()
}

// startBeating reports whether the caller has to start the goroutine that sends heartbeats.
func (ws *waiters) startBeating() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	start := !ws.beating && len(ws.due) > 0
	ws.beating = ws.beating || start
	return start
}

// dueNow returns the keys whose heartbeats are due, and when the next one is. more is false if there
// are no keys.
func (ws *waiters) dueNow() (due []*waitedKey, next time.Time, more bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.due) == 0 {
		ws.beating = false
		return nil, next, false
	}
	now := time.Now()
	wait := ws.interval()
	for !ws.due[0].due.After(now) {
		k := ws.due[0]
		due = append(due, k)
		k.due = now.Add(wait) // until the reply changes it
		heap.Fix(&ws.due, 0)
	}
	ws.sleepsUntil = ws.due[0].due
	return due, ws.sleepsUntil, true
}

// notify wakes the goroutine that sends heartbeats if one is due before it wakes up by itself. The
// caller holds mu.
func (ws *waiters) notify() {
	if len(ws.due) == 0 || !ws.due[0].due.Before(ws.sleepsUntil) {
		return
	}
	select {
	case ws.changed <- struct{}{}:
	default:
	}
}

// heard handles the reply to a heartbeat of a key: how many requests of the process wait there, and
// when the first hold ends. broken says that pushes do not arrive.
func (ws *waiters) heard(k *waitedKey, places int, ends time.Duration, broken bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	k.heard = now
	for w := range k.waiters {
		if w.awaited == 0 && w.asking == 0 && now.Sub(w.left) > keptUnawaited {
			ws.remove(w)
		}
	}
	if len(k.waiters) == 0 {
		return
	}
	switch n := len(k.waiters); {
	case places < n:
		k.surplus = 0
		if k.missing++; k.missing == 1 && !broken { // a push may be on its way
			ws.scheduleAt(k, now.Add(recheckAfter))
			return
		}
		k.missing = 0
		for w := range k.waiters {
			w.ask = true
			w.wake()
		}
	case places > n && ws.inFlight == 0: // otherwise a reply may be on its way
		k.missing = 0
		k.surplus++
	default:
		k.missing, k.surplus = 0, 0
	}
	ws.schedule(k, ends)
}

// silent records that the store did not reply to a heartbeat of a key, and ends the waits if the
// places must be lost.
func (ws *waiters) silent(k *waitedKey, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	if now.Sub(k.heard) > silentBeats*ws.interval() {
		for w := range k.waiters {
			w.end(err)
		}
	}
	ws.scheduleAt(k, now.Add(retryBeat-jitter(retryBeat/3)))
}

// askAgain records that the store did not reply to a call that asked for a request.
func (ws *waiters) askAgain(w *waiter, err error) {
	ws.mu.Lock()
	k := w.key
	w.ask = true
	ws.mu.Unlock()
	if k != nil {
		ws.silent(k, err)
	}
}

// resets returns the argument of a heartbeat that has the store remove the process's requests for a
// key, which are then queued anew: it knows some that the process does not.
func (ws *waiters) resets(k *waitedKey) string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k.surplus > 1 {
		k.surplus, k.missing = 0, 1
		return "1"
	}
	return "0"
}

// wake wakes a call that awaits the request. The caller holds mu.
func (w *waiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// end ends the wait. The caller holds mu.
func (w *waiter) end(err error) {
	if w.over == nil {
		w.over = err
	}
	w.wake()
}

// waitedKeys is a heap of keys by their next heartbeat.
type waitedKeys []*waitedKey

func (h waitedKeys) Len() int           { return len(h) }
func (h waitedKeys) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h waitedKeys) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *waitedKeys) Push(x any) {
	k := x.(*waitedKey)
	k.index = len(*h)
	*h = append(*h, k)
}

// Pop implements heap.Interface.
func (h *waitedKeys) Pop() any {
	old := *h
	k := old[len(old)-1]
	k.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}
