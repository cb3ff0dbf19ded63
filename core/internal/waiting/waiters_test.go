package waiting

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// record is a record that has a name only.
type record string

func (r record) Name() string { return string(r) }

// queue adds a request that waits for a key, as AcquireLease does.
func queue(ws *waiters[record], id, key string, next time.Duration) *waiter[record] {
	w := ws.expect(id)
	ws.answered(w, record(key), &Reply{LeaseReply: store.LeaseReply{Outcome: store.Queued}, Next: next}, nil)
	return w
}

func newWaiters() *waiters[record] {
	var ws waiters[record]
	ws.init()
	return &ws
}

// Who sends heartbeats sleeps until the first is due. Only one that is due before that may wake
// them: each hand-off of a lock would cost a thread more otherwise.
func TestWhoSendsHeartbeatsIsWokenForAnEarlierOneOnly(t *testing.T) {
	ws := newWaiters()
	woken := func() bool {
		select {
		case <-ws.changed:
			return true
		default:
			return false
		}
	}
	first := queue(ws, "first", "first", 0)
	if !ws.startBeating() || ws.startBeating() {
		t.Fatal("not one is asked to send heartbeats")
	}
	ws.scheduleAt(first.key, time.Now().Add(time.Minute))
	woken()
	if due, next, more := ws.dueNow(); len(due) != 0 || !next.Equal(first.key.due) || !more {
		t.Fatalf("got %v, %v, %v", due, next, more)
	}
	ws.sleepsUntil = time.Now()

	second := queue(ws, "second", "second", 0)
	queue(ws, "another", "second", 0)
	ws.schedule(second.key, time.Minute)
	ws.released("first")
	if woken() {
		t.Error("woken though nothing is due before")
	}
	ws.sleepsUntil = time.Now().Add(time.Minute)
	ws.beatSoon("unknown")
	if woken() {
		t.Error("woken for a key that nobody waits for")
	}
	ws.beatSoon("second")
	if !woken() {
		t.Error("not woken though one is due at once")
	}
	if due, _, _ := ws.dueNow(); len(due) != 1 || due[0] != second.key { // one for both requests
		t.Errorf("due: %v", due)
	}
	ws.BeatNow()
	if !woken() {
		t.Error("not woken though all are to hurry")
	}
	ws.released("second")
	ws.released("another")
	ws.BeatNow()
	if _, _, more := ws.dueNow(); more || ws.beating || len(ws.keys) > 0 || len(ws.byID) > 0 {
		t.Error("heartbeats are sent for nobody")
	}
}

// Between heartbeats passes their interval, or the time until a hold ends, if that is less. Many
// keys share the heartbeats of a second.
func TestWhenHeartbeatsAreDue(t *testing.T) {
	ws := newWaiters()
	k := queue(ws, "w", "k", 0).key
	within := func(what string, least, most time.Duration) {
		t.Helper()
		if due := time.Until(k.due); due < least-100*time.Millisecond || due > most {
			t.Errorf("%s: due in %v, want %v to %v", what, due, least, most)
		}
	}
	within("queued", beatEvery*4/5, beatEvery)
	ws.heard(k, 1, 0, false)
	within("heard", beatEvery*4/5, beatEvery)
	ws.heard(k, 1, beatEvery/2, false)
	within("a hold ends", beatEvery/2, beatEvery/2+50*time.Millisecond)
	ws.heard(k, 1, time.Hour, false)
	within("a hold ends late", beatEvery*4/5, beatEvery)
	ws.Silent(k, store.ErrUnavailable)
	within("no reply", retryBeat*2/3, retryBeat)
	for i := range 4 * maxBeats {
		queue(ws, fmt.Sprint(i), fmt.Sprint("k", i), 0)
	}
	slots := make(map[time.Duration]bool)
	for _, k := range ws.due {
		slots[k.due.Sub(ws.began)] = true
	}
	if n := len(slots); n < int(time.Second/shareEvery/5) || n > 4*int(time.Second/shareEvery) {
		t.Errorf("%d keys are due at %d times", len(ws.keys), n)
	}
	if every := ws.interval(); every < 4*time.Second || ws.DeadAfter() != 3*every {
		t.Errorf("every %v with %d keys", every, len(ws.keys))
	}
}

// If the store knows fewer requests than the process, these are queued anew; if it knows more, it
// removes them all before.
func TestTheStoreKnowsOtherRequests(t *testing.T) {
	ws := newWaiters()
	a, b := queue(ws, "a", "k", 0), queue(ws, "b", "k", 0)
	k := a.key
	asked := func() int {
		n := 0
		for _, w := range []*waiter[record]{a, b} {
			if w.ask {
				n++
			}
			w.ask = false
		}
		return n
	}
	ws.heard(k, 2, 0, false)
	ws.heard(k, 1, 0, false)
	if n := asked(); n != 0 {
		t.Errorf("%d ask at once, though a push may be on its way", n)
	}
	if time.Until(k.due) > recheckAfter {
		t.Errorf("checked again in %v", time.Until(k.due))
	}
	ws.heard(k, 1, 0, false)
	if n := asked(); n != 2 {
		t.Errorf("%d ask, want both", n)
	}
	ws.heard(k, 1, 0, true)
	if n := asked(); n != 2 {
		t.Errorf("%d ask at once without pushes, want both", n)
	}
	another := ws.expect("another")
	for range 5 {
		ws.heard(k, 3, 0, false)
	}
	if ws.Resets(k) {
		t.Error("reset, though the reply to a request is on its way")
	}
	ws.answered(another, "k", &Reply{}, store.ErrUnavailable)
	for range mostSurplus {
		if ws.heard(k, 3, 0, false) || ws.Resets(k) {
			t.Error("reset at once, though a withdrawal may be on its way")
		}
	}
	if !ws.heard(k, 3, 0, false) || !ws.Resets(k) || ws.Resets(k) {
		t.Error("not reset once")
	}
	ws.heard(k, 0, 0, false)
	if n := asked(); n != 2 {
		t.Errorf("%d ask after the reset, want both", n)
	}
}

// A silent store ends the waits once the places must be lost.
func TestASilentStoreEndsWaits(t *testing.T) {
	ws := newWaiters()
	w := queue(ws, "w", "k", 0)
	w.key.heard = time.Now().Add(-(silentBeats - 1) * beatEvery)
	ws.Silent(w.key, store.ErrUnavailable)
	if w.over != nil {
		t.Error("it ends too early")
	}
	w.key.heard = time.Now().Add(-(silentBeats + 1) * beatEvery)
	ws.Silent(w.key, store.ErrUnavailable)
	if w.over == nil {
		t.Error("it does not end")
	}
}

// A push is of use to a request that waits; that of the lease that is held changes nothing; others
// are to be released.
func TestWhichPushesAreOfUse(t *testing.T) {
	ws := newWaiters()
	push := func(id string, fence int64) bool { return ws.push(&pushedGrant{id: id, first: fence}) }
	usable := func(*pushedGrant) bool { return true }
	if push("w", 1) {
		t.Error("one for an unknown request is of use")
	}
	w := ws.expect("w")
	if !push("w", 2) { // before the reply
		t.Error("one for a request that was sent is of no use")
	}
	ws.answered(w, "k", &Reply{LeaseReply: store.LeaseReply{Outcome: store.Queued}}, nil)
	if granted, ask, err := ws.next(w, usable); granted == nil || granted.first != 2 || ask || err != nil {
		t.Errorf("granted %+v, %v, %v", granted, ask, err)
	}
	ws.leave(ws.await(&store.LeaseRequest{ID: "other"}, "k"))
	if !push("w", 2) || push("w", 3) {
		t.Error("the held lease is another")
	}
	ws.released("w")
	if len(ws.held) != 0 {
		t.Error("a released hold is remembered")
	}
	unusable := queue(ws, "late", "k", 0)
	push("late", 4)
	if granted, ask, err := ws.next(unusable, func(*pushedGrant) bool { return false }); granted != nil || !ask || err != nil {
		t.Errorf("%+v, %v, %v: want it to ask", granted, ask, err)
	}
}

func TestRequestsThatNobodyAwaitsAreDropped(t *testing.T) {
	ws := newWaiters()
	w, other := queue(ws, "w", "k", 0), queue(ws, "other", "k", 0)
	other.awaited = 1
	w.left, other.left = time.Now().Add(-2*keptUnawaited), time.Now().Add(-2*keptUnawaited)
	ws.heard(w.key, 2, 0, false)
	if len(other.key.waiters) != 1 || ws.byID["w"] != nil || ws.byID["other"] != other {
		t.Errorf("kept %v", ws.byID)
	}
}

func TestLateRequests(t *testing.T) {
	var late lateRequests
	late.init()
	if late.has("a") {
		t.Error("late without a request")
	}
	late.add("a")
	late.add("a")
	late.add("b")
	if !late.has("a") || !late.has("b") || late.has("c") {
		t.Error("not those that were added")
	}
	late.remove("a")
	if late.has("a") || !late.has("b") {
		t.Error("removed another")
	}
	late.start = late.start.Add(-LateFor)
	if late.has("b") {
		t.Error("late for ever")
	}
	late.add("c")
	if late.ids.Len() != 1 {
		t.Errorf("%d kept of one", late.ids.Len())
	}
	for i := range maxLate + 1 {
		late.add(fmt.Sprint(i))
	}
	if late.ids.Len() > maxLate {
		t.Errorf("%d kept", late.ids.Len())
	}
	if !late.has("none of them") {
		t.Error("one of too many is forgotten")
	}
}
