package storetest

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Crashes has the promises of a store that processes share to the living ones when one dies without
// closing its store. Its tests need [Harness.Another], and advance the clock by up to eight
// seconds.
func Crashes[S store.Store](t *testing.T, run Runner[S]) { CrashesOf(t, run) }

// CrashesOf is Crashes for a store that has some of the interfaces of store.Store. It runs the
// tests of the interfaces that S has.
func CrashesOf[S any](t *testing.T, run Runner[S]) {
	var cases []testCase[any]
	if implements[S, store.Leases]() {
		for _, kind := range []leaseKind{aLock, aSemaphore} {
			for _, c := range []struct {
				name string
				test func(living, dying leaseCase, die func())
			}{
				{"holds of a dead process are listed, and end with their leases", deadHolder},
				{"the places of a dead process are passed over", deadWaiters},
				{"a lease that is granted to a dead process goes to the next waiter", deadGrantee},
			} {
				cases = append(cases, testCase[any]{kind.name + ": " + c.name, func(t *testing.T, h Harness[any]) {
					leases := as[store.Leases](t, h)
					other, die := leases.Another()
					living := newLease(t, leases, kind)
					dying := living
					dying.store, dying.h.Store = other, other
					c.test(living, dying, die)
				}})
			}
		}
	}
	add := func(has bool, of ...testCase[any]) {
		if has {
			cases = append(cases, of...)
		}
	}
	add(implements[S, store.Records](),
		testCase[any]{"an attempt of a dead process is unresolved, or taken over", deadAttempts},
		testCase[any]{"a result of a dead process is replayed", deadSettled})
	add(implements[S, store.Buckets](), testCase[any]{"tokens that a dead process has used stay used", deadCharges})
	add(implements[S, store.Latches](), testCase[any]{"a dead participant of a latch counts", deadParticipant})
	add(implements[S, store.Delays](),
		testCase[any]{"a task of a dead process is taken again when its lease ends", deadWorker},
		testCase[any]{"a task whose process dies between its take and its first renewal is taken again within 5 s", deadTaker})
	runAll(t, run, cases)
}

// implements reports whether stores of type S have an interface.
func implements[S, I any]() bool { return reflect.TypeFor[S]().Implements(reflect.TypeFor[I]()) }

// passedOver is how long dead waiters may keep others waiting.
const passedOver = 8 * time.Second

// crashLease is the lease of what dies. It must not end before the process is dead.
var crashLease = testpace.Scale(2 * time.Second)

func deadHolder(living, dying leaseCase, die func()) {
	req := lasting(crashLease, dying.whole())
	req.Label = "who dies"
	before := time.Now()
	grant := dying.granted(req)
	waits := living.whole()
	if reply := living.queued(waits); reply.Holder != req.Label {
		living.t.Errorf("a waiter gets the holder %q", reply.Holder)
	}
	die()
	listed := false
	for state, err := range able[store.LeaseLister](living.t, living.store).ListLeases(background(), living.name) {
		listed = listed || err == nil && len(state.Holders) == 1 && state.Holders[0].Label == req.Label && state.Holders[0].Fence == grant.Fence
	}
	if !listed && time.Since(before) < req.TTL {
		living.t.Error("the hold of a dead process is not listed")
	}
	next := living.await(waits).granted()
	if since := time.Since(before); since < req.TTL || since > crashLease+passedOver+living.h.Grace {
		living.t.Errorf("a lease of %v was granted again after %v", req.TTL, since)
	}
	if living.kind == aLock && next.Fence <= grant.Fence {
		living.t.Errorf("fence %d after that of the dead holder, %d", next.Fence, grant.Fence)
	}
}

func deadWaiters(living, dying leaseCase, die func()) {
	holds := living.whole()
	living.granted(holds)
	for range 5 {
		req := dying.whole()
		dying.queued(req)
		dying.await(req)
	}
	waits := living.whole()
	if reply := living.queued(waits); reply.Waiting != 5 {
		living.t.Errorf("%d waiters are before it, want 5", reply.Waiting)
	}
	next := living.await(waits)
	die()
	living.release(holds)
	began := time.Now()
	next.granted()
	if took := time.Since(began); took > passedOver+living.h.Grace {
		living.t.Errorf("dead waiters kept a live one waiting for %v", took)
	}
}

func deadGrantee(living, dying leaseCase, die func()) {
	holds := living.whole()
	living.granted(holds)
	req := dying.whole()
	dying.queued(req)
	waits := living.whole()
	living.queued(waits)
	next := living.await(waits)
	living.release(holds) // grants the other's request, which no call awaits
	die()
	began := time.Now()
	next.granted()
	if took := time.Since(began); took > passedOver+living.h.Grace {
		living.t.Errorf("a grant to a dead process lasted for %v", took)
	}
}

func deadAttempts(t *testing.T, h Harness[any]) {
	records := as[store.Records](t, h)
	other, die := records.Another()
	dying, living := newOp(t, Harness[store.Records]{Store: other, Advance: h.Advance}), newOp(t, records)
	dying.guard = unique("orders")
	living.id, living.guard = dying.id, dying.guard
	clean := living
	clean.id = unique("clean")[:22]
	cleanly := dying
	cleanly.id = clean.id
	owner, careful := newOwner(), newOwner()
	before := time.Now()
	dying.started(owner, crashLease, false, 1)
	cleanly.started(careful, crashLease, false, 1)
	cleanly.mark(careful, 1, store.NoEffects, true)
	die()
	if reply := living.begin(newOwner(), longLease, false); reply.Outcome != store.Busy && time.Since(before) < crashLease {
		t.Errorf("an attempt whose lease has not ended: %+v", reply)
	}
	h.Advance(crashLease + 100*time.Millisecond)
	living.want(living.begin(newOwner(), longLease, false), store.Undecided, 1)
	clean.want(clean.begin(newOwner(), longLease, false), store.Started, 2)
	found := 0
	for record, err := range able[store.ResolvableRecords](t, h.Store).ListUnresolved(background(), dying.guard) {
		if err != nil {
			t.Fatal(err)
		}
		if found++; record.ID != dying.id {
			t.Errorf("listed: %+v", record)
		}
	}
	if found != 1 {
		t.Errorf("%d unresolved operations are listed, want 1", found)
	}
	living.want(living.begin(newOwner(), longLease, true), store.Started, 2)
}

func deadSettled(t *testing.T, h Harness[any]) {
	records := as[store.Records](t, h)
	other, die := records.Another()
	dying, living := newOp(t, Harness[store.Records]{Store: other, Advance: h.Advance}), newOp(t, records)
	living.id = dying.id
	owner := newOwner()
	dying.started(owner, longLease, false, 1)
	dying.settle(owner, store.Completed, []byte("paid"), true)
	die()
	reply := living.begin(newOwner(), longLease, true)
	if living.want(reply, store.Settled, 1); !bytes.Equal(reply.Data, []byte("paid")) {
		t.Errorf("replayed %q", reply.Data)
	}
}

func deadCharges(t *testing.T, h Harness[any]) {
	buckets := as[store.Buckets](t, h)
	other, die := buckets.Another()
	req := store.TokenRequest{Limiter: "api", Key: unique("k"), Charges: []store.Charge{{
		Cost: time.Hour, Capacity: time.Hour, Interval: time.Hour,
	}}}
	if reply, err := other.TakeTokens(background(), req); err != nil || !reply.Allowed {
		t.Fatalf("%+v, %v", reply, err)
	}
	die()
	if reply, err := buckets.Store.TakeTokens(background(), req); err != nil || reply.Allowed {
		t.Errorf("a token that a dead process has used: %+v, %v", reply, err)
	}
}

func deadParticipant(t *testing.T, h Harness[any]) {
	latches := as[store.Latches](t, h)
	other, die := latches.Another()
	req := store.LatchRequest{Name: unique("latch"), Count: 2, TTL: time.Minute}
	if n, err := other.CountDownLatch(background(), req, "dead"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	die()
	if n, err := latches.Store.CountDownLatch(background(), req, "alive"); err != nil || n != 2 {
		t.Errorf("%d participants, %v, want 2", n, err)
	}
	if err := latches.Store.AwaitLatch(background(), req); err != nil {
		t.Error(err)
	}
}

func deadWorker(t *testing.T, h Harness[any]) {
	delays := as[store.Delays](t, h)
	other, die := delays.Another()
	dying, living := newQueue(t, delays), newQueue(t, delays)
	dying.store, living.queue = other, dying.queue
	req := dying.due("k")
	task := dying.take(req, crashLease)
	before := time.Now()
	renewed := task.ref()
	renewed.Lease = crashLease
	dying.renews(renewed, true)
	die()
	living.takenAgainAfter(req, task, before, crashLease)
}

func deadTaker(t *testing.T, h Harness[any]) {
	delays := as[store.Delays](t, h)
	other, die := delays.Another()
	dying, living := newQueue(t, delays), newQueue(t, delays)
	dying.store, living.queue = other, dying.queue
	req := dying.due("k")
	before := time.Now()
	task := dying.take(req, time.Hour)
	die()
	living.takenAgainAfter(req, task, before, store.FirstTaskLease)
}

// takenAgainAfter waits for the end of a dead owner's lease, which it had at that time at the
// latest, and takes the task.
func (q taskCase) takenAgainAfter(req store.PutTaskRequest, task takenTask, before time.Time, lease time.Duration) {
	q.t.Helper()
	for {
		reply, owner := q.takes(1, longLease)
		if len(reply.Tasks) == 0 {
			if err := q.store.AwaitTasks(background(), q.queue, reply.Next); err != nil {
				q.t.Fatalf("AwaitTasks: %v", err)
			}
			continue
		}
		next := takenTask{q, reply.Tasks[0], owner}
		if since := time.Since(before); since < lease || since > lease+passedOver {
			q.t.Errorf("a lease of %v was taken again after %v", lease, since)
		}
		if next.ID != req.ID || next.Attempt != 2 || next.Fence <= task.Fence || !bytes.Equal(next.Payload, req.Payload) {
			q.t.Errorf("%+v, after fence %d", next.TakenTask, task.Fence)
		}
		next.settles(store.TaskDone, 0, true)
		return
	}
}
