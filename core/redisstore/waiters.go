package redisstore

import (
	"container/heap"
	"sync"
	"time"
)

// waiters are the requests of this process that are in queues.
type waiters struct {
	mu      sync.Mutex
	byID    map[string]*waiter
	due     dueHeap   // those that are awaited
	fresh   []*waiter // those that were not when they were queued, in that order
	beating bool      // somebody sends beats
	asleep  time.Time // until when they sleep
	hurried time.Time // when all had to beat at once
	changed chan struct{}
	spare   sync.Pool // of *waiter, of requests that have not been queued
}

// waiter is a request in a queue. Its waiters' mu guards what changes.
type waiter struct {
	id      string
	beat    *script
	keys    []string // of the beat
	fair    bool     // nobody may be granted the lock first
	deaf    bool     // there was no subscription when it was queued
	added   time.Time
	awaited bool
	shared  bool          // several calls are about it
	due     time.Time     // the next beat
	heard   time.Time     // from the store
	life    time.Duration // in the queue, after that
	index   int           // in the heap; -1 if it is not

	woken     chan struct{} // has something if the lock may be had, or will not be
	over      error         // why it will not be
	withdrawn error         // what it is if the request has been released
}

// freshFor is for how long a request that nobody awaits is remembered.
const freshFor = frontLife

func (ws *waiters) init() {
	ws.byID = make(map[string]*waiter)
	ws.changed = make(chan struct{}, 1)
}

func (ws *waiters) newWaiter(id string, beat *script, keys []string, withdrawn error) *waiter {
	w, _ := ws.spare.Get().(*waiter)
	if w == nil {
		w = &waiter{woken: make(chan struct{}, 1)}
	}
	now := time.Now()
	*w = waiter{
		id: id, beat: beat, keys: keys, added: now, due: now, heard: now, life: frontLife, index: -1,
		woken: w.woken, withdrawn: withdrawn,
	}
	return w
}

// expect returns the request of a waiter's id: the one that is known, or else this one.
func (ws *waiters) expect(w *waiter, awaited bool) *waiter {
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
	ws.forgetOld()
	return w
}

// keep remembers, for a while, a request that has been queued and that nobody awaits yet.
func (ws *waiters) keep(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.awaited && ws.byID[w.id] == w {
		ws.fresh = append(ws.fresh, w)
	}
}

// forgetOld forgets requests that were queued and that nobody came to await. The caller holds mu.
func (ws *waiters) forgetOld() {
	for len(ws.fresh) > 0 {
		w := ws.fresh[0]
		if waits := !w.awaited && ws.byID[w.id] == w; waits {
			if time.Since(w.added) <= freshFor {
				return
			}
			delete(ws.byID, w.id)
		}
		ws.fresh[0] = nil
		ws.fresh = ws.fresh[1:]
	}
}

// dismiss drops a request that has not been queued. The caller is done with it.
func (ws *waiters) dismiss(w *waiter) {
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
	ws.forgetOld()
}

// forget drops a request that nobody awaits any more.
func (ws *waiters) forget(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.byID[w.id] == w {
		delete(ws.byID, w.id)
	}
	if w.index >= 0 {
		heap.Remove(&ws.due, w.index)
	}
}

// update changes a request, and sees to it that its beat is sent when it is due.
func (ws *waiters) update(w *waiter, change func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	change()
	ws.changedDue(w)
}

// changedDue puts a request in its place again. The caller holds mu.
func (ws *waiters) changedDue(w *waiter) {
	if w.index >= 0 {
		heap.Fix(&ws.due, w.index)
		ws.notify()
	}
}

// push acts on a message about a request.
func (ws *waiters) push(id string, act func(*waiter)) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[id]; w != nil {
		act(w)
		ws.changedDue(w)
	}
}

// withdraw ends the wait of a request that has been released.
func (ws *waiters) withdraw(id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[id]; w != nil {
		w.end(w.withdrawn)
		delete(ws.byID, id)
	}
}

// hurry makes all beats due, unless it has done so within the given time.
func (ws *waiters) hurry(pause time.Duration) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	if now.Sub(ws.hurried) < pause {
		return
	}
	ws.hurried = now
	for _, w := range ws.due {
		w.due = now // the order stays one of a heap: none is before another
	}
	ws.notify()
}

// startBeating reports whether somebody has to begin to send beats.
func (ws *waiters) startBeating() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	start := !ws.beating && len(ws.due) > 0
	ws.beating = ws.beating || start
	return start
}

// dueNow returns the requests whose beats are due, and when the next one will be if there are none.
// Without any request at all there is nothing more to send.
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
		w.due = now.Add(frontBeat) // unless the reply says otherwise
		heap.Fix(&ws.due, 0)
	}
	ws.asleep = ws.due[0].due
	return due, ws.asleep, true
}

// notify tells who sends beats if one is due before they look again. The caller holds mu.
func (ws *waiters) notify() {
	if len(ws.due) == 0 || !ws.due[0].due.Before(ws.asleep) {
		return
	}
	select {
	case ws.changed <- struct{}{}:
	default:
	}
}

// wake has the request try to claim the lock. The caller holds mu.
func (w *waiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// end has the wait end. The caller holds mu.
func (w *waiter) end(err error) {
	if w.over == nil {
		w.over = err
	}
	w.wake()
}

// ended returns why a wait has ended, if it has.
func (ws *waiters) ended(w *waiter) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.over
}

// dueHeap has the request that beats first at its head.
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
