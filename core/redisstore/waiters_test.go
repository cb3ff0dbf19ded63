package redisstore

import (
	"testing"
	"time"
)

// Whoever sends beats sleeps until the first is due. Only one that is due before that may wake them: each
// hand-off of a lock would cost a thread more otherwise.
func TestWhoSendsBeatsIsWokenForAnEarlierOneOnly(t *testing.T) {
	var ws waiters
	ws.init()
	woken := func() bool {
		select {
		case <-ws.changed:
			return true
		default:
			return false
		}
	}
	first := ws.expect(newWaiter("first", beatLock, nil, nil), true)
	if !ws.startBeating() {
		t.Fatal("nobody is asked to send the first")
	}
	ws.update(first, func() { first.due = time.Now().Add(time.Minute) })
	if due, next, more := ws.dueNow(); len(due) != 0 || !next.Equal(first.due) || !more {
		t.Fatalf("got %v, %v, %v", due, next, more)
	}

	second := newWaiter("second", beatLock, nil, nil)
	second.due = first.due.Add(time.Minute)
	ws.expect(second, true)
	ws.push("first", (*waiter).wake)
	ws.update(second, func() { second.due = second.due.Add(time.Minute) })
	ws.forget(first)
	if woken() {
		t.Error("woken though nothing is due before")
	}
	ws.push("second", func(w *waiter) { w.due = time.Now() })
	if !woken() {
		t.Error("not woken though one is due at once")
	}
	if due, _, _ := ws.dueNow(); len(due) != 1 || due[0].id != "second" {
		t.Errorf("due: %v", due)
	}
	ws.hurry(0)
	if !woken() {
		t.Error("not woken though all are to hurry")
	}
	ws.forget(second)
	ws.hurry(0)
	if _, _, more := ws.dueNow(); more || ws.beating {
		t.Error("somebody beats for nobody")
	}
}
