package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

func preventedTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	q.cancels(newOwner(), "k", store.TaskAbsent)
	q.due("k")
	q.cancels(newOwner(), "k", store.TaskPrevented)
	q.nothing()
	q.cancels(newOwner(), "k", store.TaskAbsent)
	q.take(q.due("k"), longLease).settles(store.TaskDone, 0, true)
}

func endedTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	q.take(q.due("again"), longLease).settles(store.TaskAgain, 0, true)
	q.cancels(newOwner(), "again", store.TaskEnded)

	q.take(q.due("lease"), shortLease)
	h.Advance(pastLease)
	q.cancels(newOwner(), "lease", store.TaskEnded)

	// The owner may not know that its lease has ended.
	for _, key := range []string{"followed", "followed and taken", "moved"} {
		q.take(q.due(key), shortLease)
		if key == "moved" {
			h.Advance(pastLease)
		}
		if _, err := q.store.PutTask(background(), q.request(key, time.Hour)); err != nil {
			t.Fatal(err)
		}
		h.Advance(pastLease)
		if key == "followed and taken" {
			q.nothing()
		}
		q.cancels(newOwner(), key, store.TaskEnded)
	}

	q.take(q.due("buried"), longLease).settles(store.TaskBuried, time.Hour, true)
	q.cancels(newOwner(), "buried", store.TaskEnded)
	q.cancels(newOwner(), "buried", store.TaskAbsent)
	q.nothing()

	uncounted := q.take(q.due("uncounted"), longLease).settlement(store.TaskAgain, 0)
	uncounted.Uncounted = true
	q.settles(uncounted, true)
	q.cancels(newOwner(), "uncounted", store.TaskEnded) // an owner has had it
}

func cancelledRunning(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	again := q.take(q.due("again"), longLease)
	q.put(q.request("again", 0), store.TaskFollows)
	q.cancels(newOwner(), "again", store.TaskRunning)
	q.renews(again.ref(), true)
	again.settles(store.TaskAgain, 0, true)
	q.nothing()

	q.take(q.due("lease"), shortLease)
	reply, err := q.store.CancelTask(background(), store.CancelTaskRequest{Queue: q.queue, Key: "lease", ID: newOwner()})
	if err != nil || reply != store.TaskRunning && reply != store.TaskEnded { // on a slow machine
		t.Fatalf("CancelTask: %d, %v", reply, err)
	}
	h.Advance(pastLease)
	q.nothing()

	task := q.take(q.due("k"), longLease)
	q.cancels(newOwner(), "k", store.TaskRunning)
	next := q.request("k", 0)
	q.put(next, store.TaskFollows)
	task.settles(store.TaskDone, 0, true)
	q.take(next, longLease).settles(store.TaskAgain, 0, true) // the cancel was of the other
	q.take(next, longLease)
}

func repeatedCancel(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	for _, c := range []struct {
		key  string
		make func(key string)
		want store.CancelOutcome
	}{
		{"absent", func(string) {}, store.TaskAbsent},
		{"waits", func(key string) { q.due(key) }, store.TaskPrevented},
		{"runs", func(key string) { q.take(q.due(key), longLease) }, store.TaskRunning},
		{"tried", func(key string) { q.take(q.due(key), longLease).settles(store.TaskAgain, 0, true) }, store.TaskEnded},
	} {
		c.make(c.key)
		id := newOwner()
		q.cancels(id, c.key, c.want)
		q.cancels(id, c.key, c.want)
		next := q.request(c.key, 0)
		if c.want == store.TaskRunning {
			q.put(next, store.TaskFollows)
			q.cancels(id, c.key, c.want)
			continue
		}
		q.put(next, store.TaskCreated)
		q.cancels(id, c.key, c.want)
		q.take(next, longLease).settles(store.TaskDone, 0, true)
		q.cancels(id, c.key, c.want)
	}
}

func cancelsBesideTakes(t *testing.T, h Harness[store.Delays]) {
	const tasks = 100
	q := newQueue(t, h)
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		taken     = make(map[string]bool)
		prevented = make(map[string]bool)
	)
	for i := range tasks {
		key := fmt.Sprint("k", i)
		q.due(key)
		wg.Go(func() {
			outcome, err := q.store.CancelTask(background(), store.CancelTaskRequest{Queue: q.queue, Key: key, ID: newOwner()})
			if err != nil || outcome != store.TaskPrevented && outcome != store.TaskRunning {
				t.Errorf("CancelTask: %d, %v", outcome, err)
			}
			mu.Lock()
			defer mu.Unlock()
			prevented[key] = outcome == store.TaskPrevented
		})
		wg.Go(func() {
			reply, err := q.store.TakeTasks(background(), store.TakeTasksRequest{Queue: q.queue, Owner: newOwner(), Max: 1, Lease: longLease})
			if err != nil {
				t.Errorf("TakeTasks: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, task := range reply.Tasks {
				taken[task.Key] = true
			}
		})
	}
	wg.Wait()
	reply, _ := q.takes(tasks, longLease)
	for _, task := range reply.Tasks {
		taken[task.Key] = true
	}
	for key, was := range prevented {
		if was == taken[key] {
			t.Errorf("%s was prevented: %t, and taken: %t", key, was, taken[key])
		}
	}
}

func cancelOfOneTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	replaced := q.due("moved")
	present := q.request("moved", 0)
	q.put(present, store.TaskMoved)
	q.cancelsOnly(replaced, store.TaskAbsent)
	q.cancelsOnly(q.request("absent", 0), store.TaskAbsent)
	q.cancelsOnly(present, store.TaskPrevented)
	q.put(present, store.TaskKept) // a repeat

	running := q.due("followed")
	attempt := q.take(running, longLease)
	next := q.request("followed", 0)
	q.put(next, store.TaskFollows)
	q.cancelsOnly(next, store.TaskAbsent) // it is not the key's task yet
	q.cancelsOnly(running, store.TaskRunning)
	attempt.settles(store.TaskAgain, 0, true)
	q.take(next, longLease).settles(store.TaskDone, 0, true)

	q.take(q.due("lost"), shortLease)
	following := q.request("lost", time.Hour)
	reply, err := q.store.PutTask(background(), following)
	if err != nil || reply.Outcome != store.TaskFollows && reply.Outcome != store.TaskMoved { // on a slow machine
		t.Fatalf("PutTask: %+v, %v", reply, err)
	}
	h.Advance(pastLease)
	q.cancelsOnly(following, store.TaskEnded) // the owner may not know that its lease has ended

	buried := q.due("buried")
	q.take(buried, longLease).settles(store.TaskBuried, time.Hour, true)
	beside := q.due("buried")
	q.cancelsOnly(buried, store.TaskEnded)
	q.cancelsOnly(buried, store.TaskAbsent)
	q.take(beside, longLease).settles(store.TaskBuried, time.Hour, true)
	waiting := q.due("buried")
	q.cancelsOnly(waiting, store.TaskPrevented)
	q.cancelsOnly(beside, store.TaskEnded)
	q.nothing()
}
