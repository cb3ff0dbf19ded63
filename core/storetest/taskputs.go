package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

func movedTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	q.due("k")
	later := q.request("k", time.Hour)
	q.put(later, store.TaskMoved)
	q.nothing()
	sooner := q.request("k", 0)
	sooner.Payload = []byte("another payload")
	q.put(sooner, store.TaskMoved)
	first := q.take(sooner, longLease)
	first.settles(store.TaskAgain, time.Hour, true)
	q.nothing()
	moved := q.request("k", 0)
	q.put(moved, store.TaskMoved)
	if second := q.take(moved, longLease); second.Attempt != 1 || second.Fence <= first.Fence {
		t.Errorf("a moved task has attempt %d and fence %d, after fence %d", second.Attempt, second.Fence, first.Fence)
	}
}

func followingTask(t *testing.T, h Harness[store.Delays]) {
	for _, how := range []store.Settlement{store.TaskDone, store.TaskAgain, store.TaskBuried} {
		q := newQueue(t, h)
		first := q.take(q.due("k"), longLease)
		next := q.request("k", 0)
		q.put(next, store.TaskFollows)
		q.nothing()
		first.settles(how, time.Hour, true)
		if second := q.take(next, longLease); second.Attempt != 1 || second.Fence <= first.Fence {
			t.Errorf("it has attempt %d and fence %d, after fence %d", second.Attempt, second.Fence, first.Fence)
		}
	}
	q := newQueue(t, h) // a delay lasts, whatever it follows
	first := q.take(q.due("k"), longLease)
	q.put(q.request("k", time.Hour), store.TaskFollows)
	first.settles(store.TaskDone, 0, true)
	q.nothing()

	q = newQueue(t, h) // of a lease that ends
	q.take(q.due("k"), shortLease)
	next := q.request("k", 0)
	reply, err := q.store.PutTask(background(), next)
	if err != nil || reply.Outcome != store.TaskFollows && reply.Outcome != store.TaskMoved { // on a slow machine
		t.Fatalf("PutTask: %+v, %v", reply, err)
	}
	h.Advance(pastLease)
	if second := q.take(next, longLease); second.Attempt != 1 {
		t.Errorf("it has attempt %d", second.Attempt)
	}
}

func lastFollows(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	first := q.take(q.due("k"), longLease)
	q.put(q.request("k", 0), store.TaskFollows)
	q.put(q.request("k", time.Hour), store.TaskFollows)
	last := q.request("k", 0)
	last.Payload = []byte("the last")
	q.put(last, store.TaskFollows)
	first.settles(store.TaskDone, 0, true)
	q.take(last, longLease).settles(store.TaskDone, 0, true)
	q.nothing()
}

func keptTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	keeping := func(key string, after time.Duration) store.PutTaskRequest {
		req := q.request(key, after)
		req.Keep = true
		return req
	}
	waits := keeping("k", time.Hour)
	q.put(waits, store.TaskCreated)
	if reply := q.put(keeping("k", 0), store.TaskKept); reply.Due > time.Hour || reply.Due < time.Minute {
		t.Errorf("the existing task is due in %v", reply.Due)
	}
	q.nothing()
	task := q.take(q.due("other"), longLease)
	q.put(keeping("other", 0), store.TaskKept)
	task.settles(store.TaskDone, 0, true)
	q.nothing()
}

func repeatedPut(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	created := q.request("k", time.Hour)
	q.put(created, store.TaskCreated)
	q.put(created, store.TaskCreated)
	moved := q.request("k", 0)
	q.put(moved, store.TaskMoved)
	q.put(moved, store.TaskMoved)
	task := q.take(moved, longLease)
	q.put(moved, store.TaskMoved)
	follows := q.request("k", 0)
	q.put(follows, store.TaskFollows)
	q.put(follows, store.TaskFollows)
	task.settles(store.TaskDone, 0, true)
	q.take(follows, longLease).settles(store.TaskAgain, time.Hour, true)
	q.put(follows, store.TaskFollows)
	q.nothing() // it waits for its second attempt
}

func repeatedCancelledPut(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	q.cancels(newOwner(), "k", store.TaskPrevented)
	q.put(req, store.TaskKept)
	q.nothing()
	q.cancels(newOwner(), "k", store.TaskAbsent) // changes nothing, not even that
	q.put(req, store.TaskKept)
	q.nothing()
	task := q.take(q.due("k"), longLease)
	follows := q.request("k", 0)
	q.put(follows, store.TaskFollows)
	q.cancels(newOwner(), "k", store.TaskRunning)
	q.put(follows, store.TaskKept)
	task.settles(store.TaskDone, 0, true)
	q.nothing()
}

// A put that may be a repeat puts a task that may have run before: nothing prevents that any more.
func repeatAfterRun(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	repeat := func(req store.PutTaskRequest, want store.PutOutcome) {
		req.Repeated = true
		q.put(req, want)
	}
	ran := q.due("k")
	q.take(ran, longLease).settles(store.TaskDone, 0, true)
	repeat(ran, store.TaskCreated)
	q.cancels(newOwner(), "k", store.TaskEnded)
	q.put(q.request("k", time.Hour), store.TaskCreated)
	repeat(q.request("k", time.Hour), store.TaskMoved)
	q.cancels(newOwner(), "k", store.TaskEnded)
	task := q.take(q.due("k"), longLease)
	repeat(q.request("k", time.Hour), store.TaskFollows)
	task.settles(store.TaskDone, 0, true)
	q.cancels(newOwner(), "k", store.TaskEnded)
}

func fullQueue(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	bounded := func(key string) store.PutTaskRequest {
		req := q.request(key, 0)
		req.MaxTasks = 2
		return req
	}
	first := bounded("a")
	q.put(first, store.TaskCreated)
	q.take(first, longLease).settles(store.TaskBuried, time.Hour, true)
	second := bounded("b")
	q.put(second, store.TaskCreated)
	q.put(bounded("c"), store.QueueFull)
	q.put(second, store.TaskCreated)
	second = bounded("b")
	q.put(second, store.TaskMoved)
	q.put(bounded("c"), store.QueueFull)
	q.take(second, longLease).settles(store.TaskDone, 0, true)
	q.put(bounded("c"), store.TaskCreated)
}
