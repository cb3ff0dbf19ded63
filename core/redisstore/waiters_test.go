package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestTheScriptsHaveTheSameNumbers(t *testing.T) {
	line := fmt.Sprintf("local LATE_FOR = %.0f * SECOND ", lateFor.Seconds())
	if !strings.Contains(scriptText("lib/lease"), line) {
		t.Errorf("lease.lua lacks %q", line)
	}
}

// queue adds a request that waits for a key, as AcquireLease does.
func (ws *waiters) queue(id, key string, next time.Duration) *waiter {
	w := ws.expect(id)
	reply := &leaseReply{LeaseReply: store.LeaseReply{Outcome: store.Queued}, next: next}
	ws.answered(w, &store.LeaseRequest{Name: store.LockKind, Key: key, ID: id}, &leaseKeys{key}, reply, nil)
	return w
}

func newWaiters() *waiters {
	var ws waiters
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
	first := ws.queue("first", "first", 0)
	if !ws.startBeating() || ws.startBeating() {
		t.Fatal("not one is asked to send heartbeats")
	}
	ws.scheduleAt(first.key, time.Now().Add(time.Minute))
	woken()
	if due, next, more := ws.dueNow(); len(due) != 0 || !next.Equal(first.key.due) || !more {
		t.Fatalf("got %v, %v, %v", due, next, more)
	}
	ws.sleepsUntil = time.Now()

	second := ws.queue("second", "second", 0)
	ws.queue("another", "second", 0)
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
	ws.beatNow()
	if !woken() {
		t.Error("not woken though all are to hurry")
	}
	ws.released("second")
	ws.released("another")
	ws.beatNow()
	if _, _, more := ws.dueNow(); more || ws.beating || len(ws.keys) > 0 || len(ws.byID) > 0 {
		t.Error("heartbeats are sent for nobody")
	}
}

// Between heartbeats passes their interval, or the time until a hold ends, if that is less. Many
// keys share the heartbeats of a second.
func TestWhenHeartbeatsAreDue(t *testing.T) {
	ws := newWaiters()
	k := ws.queue("w", "k", 0).key
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
	ws.silent(k, store.ErrUnavailable)
	within("no reply", retryBeat*2/3, retryBeat)
	for i := range 4 * maxBeats {
		ws.queue(fmt.Sprint(i), fmt.Sprint("k", i), 0)
	}
	slots := make(map[time.Duration]bool)
	for _, k := range ws.due {
		slots[k.due.Sub(ws.began)] = true
	}
	if n := len(slots); n < int(time.Second/shareEvery/5) || n > 4*int(time.Second/shareEvery) {
		t.Errorf("%d keys are due at %d times", len(ws.keys), n)
	}
	if every := ws.interval(); every < 4*time.Second || ws.deadAfter() != 3*every {
		t.Errorf("every %v with %d keys", every, len(ws.keys))
	}
}

// If the store knows fewer requests than the process, these are queued anew; if it knows more, it
// removes them all before.
func TestTheStoreKnowsOtherRequests(t *testing.T) {
	ws := newWaiters()
	a, b := ws.queue("a", "k", 0), ws.queue("b", "k", 0)
	k := a.key
	asked := func() int {
		n := 0
		for _, w := range []*waiter{a, b} {
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
	if ws.resets(k) != "0" {
		t.Error("reset, though the reply to a request is on its way")
	}
	ws.answered(another, nil, nil, &leaseReply{}, store.ErrUnavailable)
	for range mostSurplus {
		if ws.heard(k, 3, 0, false) || ws.resets(k) != "0" {
			t.Error("reset at once, though a withdrawal may be on its way")
		}
	}
	if !ws.heard(k, 3, 0, false) || ws.resets(k) != "1" || ws.resets(k) != "0" {
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
	w := ws.queue("w", "k", 0)
	w.key.heard = time.Now().Add(-(silentBeats - 1) * beatEvery)
	ws.silent(w.key, store.ErrUnavailable)
	if w.over != nil {
		t.Error("it ends too early")
	}
	w.key.heard = time.Now().Add(-(silentBeats + 1) * beatEvery)
	ws.silent(w.key, store.ErrUnavailable)
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
	ws.answered(w, &store.LeaseRequest{Name: store.LockKind, ID: "w"}, &leaseKeys{"k"}, &leaseReply{LeaseReply: store.LeaseReply{Outcome: store.Queued}}, nil)
	if granted, ask, err := ws.next(w, usable); granted == nil || granted.first != 2 || ask || err != nil {
		t.Errorf("granted %+v, %v, %v", granted, ask, err)
	}
	ws.leave(ws.await(&store.LeaseRequest{Name: store.LockKind, ID: "other"}, &leaseKeys{"k"}))
	if !push("w", 2) || push("w", 3) {
		t.Error("the held lease is another")
	}
	ws.released("w")
	if len(ws.held) != 0 {
		t.Error("a released hold is remembered")
	}
	unusable := ws.queue("late", "k", 0)
	push("late", 4)
	if granted, ask, err := ws.next(unusable, func(*pushedGrant) bool { return false }); granted != nil || !ask || err != nil {
		t.Errorf("%+v, %v, %v: want it to ask", granted, ask, err)
	}
}

func TestRequestsThatNobodyAwaitsAreDropped(t *testing.T) {
	ws := newWaiters()
	w, other := ws.queue("w", "k", 0), ws.queue("other", "k", 0)
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
	late.start = late.start.Add(-lateFor)
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
