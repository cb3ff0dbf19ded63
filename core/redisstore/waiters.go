package redisstore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// waiters are the queued requests of this process.
type waiters struct {
	mu               sync.Mutex
	byID             map[string]*waiter
	due              dueHeap   // the awaited ones
	unawaited        []*waiter // queued, and not awaited yet, in that order
	beating          bool      // a goroutine sends heartbeats
	sleepsUntil      time.Time // when that goroutine wakes up by itself
	lastHeartbeatNow time.Time // when heartbeatNow was last called
	changed          chan struct{}
	spare            sync.Pool // of *waiter, of requests that were not queued
}

// waiter is a request in a queue. waiters.mu guards the fields that change.
type waiter struct {
	id                 string
	beat               *script.Script
	keys               []string // of the heartbeat
	fair               bool     // not passed over, see pushMode
	queuedWithoutInbox bool     // without a working subscription
	added              time.Time
	awaited            bool
	shared             bool          // used by several calls
	due                time.Time     // the next heartbeat
	lastReply          time.Time     // of the store
	ttl                time.Duration // of its place in the queue, after lastReply
	index              int           // in the heap; -1 if it is not there

	woken     chan struct{} // has an element if the lock may be free, or the wait is over
	over      error         // why the wait is over
	withdrawn error         // the error if the request was released
}

// unawaitedFor is how long a request is kept while no call awaits it.
const unawaitedFor = frontLife

func (ws *waiters) init() {
	ws.byID = make(map[string]*waiter)
	ws.changed = make(chan struct{}, 1)
}

func (ws *waiters) newWaiter(id string, beat *script.Script, keys []string, withdrawn error) *waiter {
	w, _ := ws.spare.Get().(*waiter)
	if w == nil {
		w = &waiter{woken: make(chan struct{}, 1)}
	}
	now := time.Now()
	*w = waiter{
		id: id, beat: beat, keys: keys, added: now, due: now, lastReply: now, ttl: frontLife, index: -1,
		woken: w.woken, withdrawn: withdrawn,
	}
	return w
}

// register returns the registered request with the waiter's ID, or registers this one.
func (ws *waiters) register(w *waiter, awaited bool) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if known := ws.byID[w.id]; known != nil {
		w = known
		w.shared = true
	} else {
		ws.byID[w.id] = w
	}
	if awaited && !w.awaited {
		w.awaited = true
		heap.Push(&ws.due, w)
		ws.notify()
	}
	ws.expireUnawaited()
	return w
}

// keepUnawaited keeps, for a while, a queued request that no call awaits yet.
func (ws *waiters) keepUnawaited(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.awaited && ws.byID[w.id] == w {
		ws.unawaited = append(ws.unawaited, w)
	}
}

// expireUnawaited removes queued requests that no call has awaited in time. The caller holds mu.
func (ws *waiters) expireUnawaited() {
	for len(ws.unawaited) > 0 {
		w := ws.unawaited[0]
		if waits := !w.awaited && ws.byID[w.id] == w; waits {
			if time.Since(w.added) <= unawaitedFor {
				return
			}
			delete(ws.byID, w.id)
		}
		ws.unawaited[0] = nil
		ws.unawaited = ws.unawaited[1:]
	}
}

// discard removes a request that was not queued. The caller does not use it any more.
func (ws *waiters) discard(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.awaited && ws.byID[w.id] == w {
		delete(ws.byID, w.id)
		if !w.shared {
			select {
			case <-w.woken:
			default:
			}
			ws.spare.Put(w)
		}
	}
	ws.expireUnawaited()
}

// remove removes a request that is no longer awaited.
func (ws *waiters) remove(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.byID[w.id] == w {
		delete(ws.byID, w.id)
	}
	if w.index >= 0 {
		heap.Remove(&ws.due, w.index)
	}
}

// update changes a request, and reschedules its heartbeat.
func (ws *waiters) update(w *waiter, change func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	change()
	ws.fixDue(w)
}

// fixDue restores the heap after a change of a request. The caller holds mu.
func (ws *waiters) fixDue(w *waiter) {
	if w.index >= 0 {
		heap.Fix(&ws.due, w.index)
		ws.notify()
	}
}

// push calls act for a request that has received a push.
func (ws *waiters) push(id string, act func(*waiter)) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[id]; w != nil {
		act(w)
		ws.fixDue(w)
	}
}

// withdraw ends the wait of a request that was released.
func (ws *waiters) withdraw(id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[id]; w != nil {
		w.end(w.withdrawn)
		delete(ws.byID, id)
	}
}

// heartbeatNow makes all heartbeats due, unless it did so within the given time.
func (ws *waiters) heartbeatNow(pause time.Duration) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	if now.Sub(ws.lastHeartbeatNow) < pause {
		return
	}
	ws.lastHeartbeatNow = now
	for _, w := range ws.due {
		w.due = now // all are equal, so the heap stays valid
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

// dueNow returns the requests with due heartbeats, and when the next one is due. more is false if
// there are no requests.
func (ws *waiters) dueNow() (due []*waiter, next time.Time, more bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.due) == 0 {
		ws.beating = false
		return nil, next, false
	}
	now := time.Now()
	for !ws.due[0].due.After(now) {
		w := ws.due[0]
		due = append(due, w)
		w.due = now.Add(frontBeat) // until the reply changes it
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

// wake lets the call that awaits the request try to claim the lock. The caller holds mu.
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

// ended returns why a wait has ended; nil if it has not.
func (ws *waiters) ended(w *waiter) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.over
}

// dueHeap is a heap of requests by their next heartbeat.
type dueHeap []*waiter

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *dueHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	w.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return w
}
