package waiting

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// record is a record that has a name only.
type record string

func (r record) Name() string { return string(r) }

// queue adds a request that waits for a key, as AcquireLease does.
func queue(p *Process[record], id, key string, next time.Duration) *waiter[record] {
	w := p.expect(id)
	p.answered(w, record(key), &Reply{LeaseReply: store.LeaseReply{Outcome: store.Queued}, Next: next}, nil)
	return w
}

func newProcess() *Process[record] {
	return New(Store[record]{Broken: func() bool { return false }})
}

// Who sends heartbeats sleeps until the first is due. Only one that is due before that may wake
// them: each hand-off of a lock would cost a thread more otherwise.
func TestWhoSendsHeartbeatsIsWokenForAnEarlierOneOnly(t *testing.T) {
	p := newProcess()
	woken := func() bool {
		select {
		case <-p.changed:
			return true
		default:
			return false
		}
	}
	first := queue(p, "first", "first", 0)
	if !p.startBeating() || p.startBeating() {
		t.Fatal("not one is asked to send heartbeats")
	}
	p.scheduleAt(first.key, time.Now().Add(time.Minute))
	woken()
	if due, next, more := p.dueNow(); len(due) != 0 || !next.Equal(first.key.due) || !more {
		t.Fatalf("got %v, %v, %v", due, next, more)
	}
	p.sleepsUntil = time.Now()

	second := queue(p, "second", "second", 0)
	queue(p, "another", "second", 0)
	p.schedule(second.key, time.Minute)
	p.Released("first")
	if woken() {
		t.Error("woken though nothing is due before")
	}
	p.sleepsUntil = time.Now().Add(time.Minute)
	p.beatSoon("unknown")
	if woken() {
		t.Error("woken for a key that nobody waits for")
	}
	p.beatSoon("second")
	if !woken() {
		t.Error("not woken though one is due at once")
	}
	if due, _, _ := p.dueNow(); len(due) != 1 || due[0] != second.key { // one for both requests
		t.Errorf("due: %v", due)
	}
	p.BeatNow()
	if !woken() {
		t.Error("not woken though all are to hurry")
	}
	p.Released("second")
	p.Released("another")
	p.BeatNow()
	if _, _, more := p.dueNow(); more || p.beating || len(p.keys) > 0 || len(p.byID) > 0 {
		t.Error("heartbeats are sent for nobody")
	}
}

// Between heartbeats passes their interval, or the time until a hold ends, if that is less. Many
// keys share the heartbeats of a second.
func TestWhenHeartbeatsAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes
		p := newProcess()
		k := queue(p, "w", "k", 0).key
		within := func(what string, least, most time.Duration) {
			t.Helper()
			if due := time.Until(k.due); due < least-100*time.Millisecond || due > most {
				t.Errorf("%s: due in %v, want %v to %v", what, due, least, most)
			}
		}
		within("queued", beatEvery*4/5, beatEvery)
		p.Heard(k, 1, 0)
		within("heard", beatEvery*4/5, beatEvery)
		p.Heard(k, 1, beatEvery/2)
		within("a hold ends", beatEvery/2, beatEvery/2+50*time.Millisecond)
		p.Heard(k, 1, time.Hour)
		within("a hold ends late", beatEvery*4/5, beatEvery)
		p.Silent(k, store.ErrUnavailable)
		within("no reply", retryBeat*2/3, retryBeat)
		for i := range 4 * maxBeats {
			queue(p, fmt.Sprint(i), fmt.Sprint("k", i), 0)
		}
		slots := make(map[time.Duration]bool)
		for _, k := range p.due {
			slots[k.due.Sub(p.began)] = true
		}
		if n := len(slots); n < int(time.Second/shareEvery/5) || n > 4*int(time.Second/shareEvery) {
			t.Errorf("%d keys are due at %d times", len(p.keys), n)
		}
		if every := p.interval(); every < 4*time.Second || p.DeadAfter() != 3*every {
			t.Errorf("every %v with %d keys", every, len(p.keys))
		}
	})
}

// If the store knows fewer requests than the process, these are queued anew; if it knows more, it
// removes them all before.
func TestTheStoreKnowsOtherRequests(t *testing.T) {
	p := newProcess()
	a, b := queue(p, "a", "k", 0), queue(p, "b", "k", 0)
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
	p.Heard(k, 2, 0)
	p.Heard(k, 1, 0)
	if n := asked(); n != 0 {
		t.Errorf("%d ask at once, though a push may be on its way", n)
	}
	if time.Until(k.due) > recheckAfter {
		t.Errorf("checked again in %v", time.Until(k.due))
	}
	p.Heard(k, 1, 0)
	if n := asked(); n != 2 {
		t.Errorf("%d ask, want both", n)
	}
	p.store.Broken = func() bool { return true }
	p.Heard(k, 1, 0)
	p.store.Broken = func() bool { return false }
	if n := asked(); n != 2 {
		t.Errorf("%d ask at once without pushes, want both", n)
	}
	another := p.expect("another")
	for range 5 {
		p.Heard(k, 3, 0)
	}
	if p.Resets(k) {
		t.Error("reset, though the reply to a request is on its way")
	}
	p.answered(another, "k", &Reply{}, store.ErrUnavailable)
	for range mostSurplus {
		if p.Heard(k, 3, 0) || p.Resets(k) {
			t.Error("reset at once, though a withdrawal may be on its way")
		}
	}
	if !p.Heard(k, 3, 0) || !p.Resets(k) || p.Resets(k) {
		t.Error("not reset once")
	}
	p.Heard(k, 0, 0)
	if n := asked(); n != 2 {
		t.Errorf("%d ask after the reset, want both", n)
	}
}

// A silent store ends the waits once the places must be lost.
func TestASilentStoreEndsWaits(t *testing.T) {
	p := newProcess()
	w := queue(p, "w", "k", 0)
	w.key.heard = time.Now().Add(-(silentBeats - 1) * beatEvery)
	p.Silent(w.key, store.ErrUnavailable)
	if w.over != nil {
		t.Error("it ends too early")
	}
	w.key.heard = time.Now().Add(-(silentBeats + 1) * beatEvery)
	p.Silent(w.key, store.ErrUnavailable)
	if w.over == nil {
		t.Error("it does not end")
	}
}

// A push is of use to a request that waits; that of the lease that is held changes nothing; others
// are to be released.
func TestWhichPushesAreOfUse(t *testing.T) {
	p := newProcess()
	push := func(id string, fence int64) bool { return p.push(&pushedGrant{id: id, first: fence}) }
	usable := func(*pushedGrant) bool { return true }
	if push("w", 1) {
		t.Error("one for an unknown request is of use")
	}
	w := p.expect("w")
	if !push("w", 2) { // before the reply
		t.Error("one for a request that was sent is of no use")
	}
	p.answered(w, "k", &Reply{LeaseReply: store.LeaseReply{Outcome: store.Queued}}, nil)
	if granted, ask, err := p.next(w, new(store.LeaseRequest), usable); granted == nil || granted.first != 2 || ask || err != nil {
		t.Errorf("granted %+v, %v, %v", granted, ask, err)
	}
	p.leave(p.await(&store.LeaseRequest{ID: "other"}, "k"))
	if !push("w", 2) || push("w", 3) {
		t.Error("the held lease is another")
	}
	p.Released("w")
	if len(p.held) != 0 {
		t.Error("a released hold is remembered")
	}
	unusable := queue(p, "late", "k", 0)
	push("late", 4)
	if granted, ask, err := p.next(unusable, new(store.LeaseRequest), func(*pushedGrant) bool { return false }); granted != nil || !ask || err != nil {
		t.Errorf("%+v, %v, %v: want it to ask", granted, ask, err)
	}
}

func TestRequestsThatNobodyAwaitsAreDropped(t *testing.T) {
	p := newProcess()
	w, other := queue(p, "w", "k", 0), queue(p, "other", "k", 0)
	other.awaited = 1
	w.left, other.left = time.Now().Add(-2*keptUnawaited), time.Now().Add(-2*keptUnawaited)
	p.Heard(w.key, 2, 0)
	if len(other.key.waiters) != 1 || p.byID["w"] != nil || p.byID["other"] != other {
		t.Errorf("kept %v", p.byID)
	}
}

func TestLateRequests(t *testing.T) {
	late := newLateRequests()
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
