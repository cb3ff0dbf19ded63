package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The scripts and the store are to agree on who beats how often, and on what becomes of those who
// do not.
func TestTheScriptsHaveTheSameNumbers(t *testing.T) {
	for name, want := range map[string]string{
		"FRONT": fmt.Sprint(front), "FRONT_LIFE": fmt.Sprintf("%.0f * SECOND", frontLife.Seconds()),
		"LIFE": fmt.Sprintf("%.0f * SECOND", behindLife.Seconds()),
	} {
		if line := "local " + name + " = " + want + " "; !strings.Contains(scriptText("lib/constants"), line) {
			t.Errorf("constants.lua lacks %q", line)
		}
	}
}

// Whoever sends beats sleeps until the first is due. Only one that is due before that may wake
// them: each hand-off of a lock would cost a thread more otherwise.
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
	first := ws.register(ws.newWaiter("first", beatLock, nil, nil), true)
	if !ws.startBeating() {
		t.Fatal("nobody is asked to send the first")
	}
	ws.update(first, func() { first.due = time.Now().Add(time.Minute) })
	if due, next, more := ws.dueNow(); len(due) != 0 || !next.Equal(first.due) || !more {
		t.Fatalf("got %v, %v, %v", due, next, more)
	}

	second := ws.newWaiter("second", beatLock, nil, nil)
	second.due = first.due.Add(time.Minute)
	ws.register(second, true)
	ws.push("first", (*waiter).wake)
	ws.update(second, func() { second.due = second.due.Add(time.Minute) })
	ws.remove(first)
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
	ws.heartbeatNow(0)
	if !woken() {
		t.Error("not woken though all are to hurry")
	}
	ws.remove(second)
	ws.heartbeatNow(0)
	if _, _, more := ws.dueNow(); more || ws.beating {
		t.Error("somebody beats for nobody")
	}
}

// What is known of a request that was not queued serves for another one, unless a second call is
// about it.
func TestWhatIsKnownOfARequestServesAgainOnce(t *testing.T) {
	var ws waiters
	ws.init()
	first := ws.register(ws.newWaiter("twice", beatLock, nil, nil), false)
	if again := ws.register(ws.newWaiter("twice", beatLock, nil, nil), false); again != first {
		t.Fatal("one request is two")
	}
	ws.discard(first) // by one of the calls
	for i := range 100 {
		if w := ws.newWaiter("another", beatLock, nil, nil); w == first {
			t.Fatalf("after %d others it serves for another request, and the second call has it still", i)
		}
	}

	w := ws.register(ws.newWaiter("pushed", beatLock, nil, nil), false)
	ws.push("pushed", (*waiter).wake) // and granted otherwise
	ws.discard(w)
	for range 100 {
		if w := ws.newWaiter("next", beatLock, nil, nil); len(w.woken) != 0 || w.index != -1 || w.awaited {
			t.Fatalf("a new request knows of another's push: %+v", w)
		}
	}

	queued := ws.register(ws.newWaiter("queued", beatLock, nil, nil), false)
	ws.keepUnawaited(queued)
	if ws.register(ws.newWaiter("queued", beatLock, nil, nil), true) != queued {
		t.Error("a request is not known any more though it is in the queue")
	}
	abandoned := ws.register(ws.newWaiter("abandoned", beatLock, nil, nil), false)
	ws.keepUnawaited(abandoned)
	abandoned.added = time.Now().Add(-2 * unawaitedFor)
	ws.register(ws.newWaiter("later", beatLock, nil, nil), false)
	if ws.byID["abandoned"] != nil || ws.byID["queued"] != queued {
		t.Error("whom nobody came to await is remembered, or who is awaited is not")
	}
}
