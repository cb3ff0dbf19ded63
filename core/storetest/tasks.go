package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Delays is the contract of store.Delays. The tests of the abilities of a store.TaskKeeper run on a
// store that has them.
func Delays[S store.Delays](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Delays]{
		{"a task is taken when it is due, and not before", takenWhenDue},
		{"tasks are taken in the order in which they are due", takenInOrder},
		{"a take has at most Max tasks, and says when the next is due", takesAtMost},
		{"payloads and keys may have any bytes", oddTasks},
		{"queues with other names are separate", queuesApart},
		{"a waiting task is moved by another put", movedTask},
		{"a put of a running task's key follows it", followingTask},
		{"the last put follows", lastFollows},
		{"a put that keeps leaves an existing task", keptTask},
		{"a repeated put changes nothing", repeatedPut},
		{"a repeat of a cancelled put changes nothing", repeatedCancelledPut},
		{"a full queue takes no further key", fullQueue},
		{"a cancel before the first take prevents the task", preventedTask},
		{"a cancel after an attempt ends the task", endedTask},
		{"no further attempt begins at a running task that is cancelled", cancelledRunning},
		{"a repeated cancel has the outcome of the first", repeatedCancel},
		{"a cancel and a take exclude each other", cancelsBesideTakes},
		{"the first lease is short, and a renewal makes it whole", taskLeases},
		{"a task whose lease has ended is taken again", takenAgain},
		{"a step after the end of the lease changes nothing", lateTaskSteps},
		{"a step of another owner or of another task changes nothing", othersTaskSteps},
		{"a task that is done is gone", doneTask},
		{"a task that is to run again is due after its time", againTask},
		{"an uncounted attempt does not count", uncountedAttempt},
		{"a repeated settlement succeeds", repeatedSettlement},
		{"a buried task is kept until it is revived, cancelled or expires", buriedTasks},
		{"a buried task is kept beside the next one of its key", buriedBeside},
		{"a wait ends when a task is due", awaitsDue},
		{"a wait ends when a task is put that is due earlier", awaitsPut},
		{"the end of a wait does not end others", endedTaskWait},
		{"many tasks are taken once each", concurrentTaskTakes},
		{"tasks are listed and counted", listedTasks},
		{"a cancelled context is its error", cancelledTaskSteps},
		{"a store after shutdown refuses new requests, and settles", shutDownTasks},
		{"a closed store is unavailable", closedTasks},
	})
}

// taskCase is a queue of a test.
type taskCase struct {
	t     *testing.T
	h     Harness[store.Delays]
	store store.Delays
	queue string
}

func newQueue(t *testing.T, h Harness[store.Delays]) taskCase {
	return taskCase{t, h, h.Store, unique("queue")}
}

func (q taskCase) request(key string, after time.Duration) store.PutTaskRequest {
	return store.PutTaskRequest{Queue: q.queue, Key: key, ID: newOwner(), Payload: []byte("of " + key), After: after}
}

// put sends a put, and checks its outcome.
func (q taskCase) put(req store.PutTaskRequest, want store.PutOutcome) store.PutTaskReply {
	q.t.Helper()
	reply, err := q.store.PutTask(background(), req)
	if err != nil || reply.Outcome != want {
		q.t.Fatalf("PutTask: %+v, %v, want outcome %d", reply, err, want)
	}
	return reply
}

// due puts a task that is due at once.
func (q taskCase) due(key string) store.PutTaskRequest {
	q.t.Helper()
	req := q.request(key, 0)
	q.put(req, store.TaskCreated)
	return req
}

func (q taskCase) cancels(id, key string, want store.CancelOutcome) {
	q.t.Helper()
	got, err := q.store.CancelTask(background(), store.CancelTaskRequest{Queue: q.queue, Key: key, ID: id})
	if err != nil || got != want {
		q.t.Fatalf("CancelTask: %d, %v, want %d", got, err, want)
	}
}

// takes sends a take of up to most tasks with a lease.
func (q taskCase) takes(most int, lease time.Duration) (store.TakeTasksReply, string) {
	q.t.Helper()
	owner := newOwner()
	reply, err := q.store.TakeTasks(background(), store.TakeTasksRequest{Queue: q.queue, Owner: owner, Max: most, Lease: lease, Holder: "holder of " + q.queue})
	if err != nil || len(reply.Tasks) > most || reply.Damaged != 0 {
		q.t.Fatalf("TakeTasks: %+v, %v", reply, err)
	}
	return reply, owner
}

// takenTask is a task of an owner.
type takenTask struct {
	q taskCase
	store.TakenTask
	owner string
}

// take takes one task, which must be the one that a request has put.
func (q taskCase) take(of store.PutTaskRequest, lease time.Duration) takenTask {
	q.t.Helper()
	reply, owner := q.takes(1, lease)
	if len(reply.Tasks) != 1 {
		q.t.Fatalf("no task was taken; the next is due in %v", reply.Next)
	}
	task := reply.Tasks[0]
	if task.Key != of.Key || task.ID != of.ID || !bytes.Equal(task.Payload, of.Payload) {
		q.t.Fatalf("%q was taken, with ID %s and %d bytes; want %q, with ID %s and %d bytes",
			task.Key, task.ID, len(task.Payload), of.Key, of.ID, len(of.Payload))
	}
	return takenTask{q, task, owner}
}

// nothing checks that no task is due.
func (q taskCase) nothing() {
	q.t.Helper()
	if reply, _ := q.takes(1, longLease); len(reply.Tasks) > 0 {
		q.t.Fatalf("%q was taken, where nothing was due", reply.Tasks[0].Key)
	}
}

func (k takenTask) ref() store.TaskRef {
	return store.TaskRef{Queue: k.q.queue, Key: k.Key, ID: k.ID, Owner: k.owner, Lease: longLease}
}

func (k takenTask) settlement(how store.Settlement, after time.Duration) store.SettleTaskRequest {
	return store.SettleTaskRequest{TaskRef: k.ref(), How: how, After: after, Reason: "a reason"}
}

func (k takenTask) settles(how store.Settlement, after time.Duration, want bool) {
	k.q.t.Helper()
	k.q.settles(k.settlement(how, after), want)
}

func (q taskCase) settles(req store.SettleTaskRequest, want bool) {
	q.t.Helper()
	owned, err := q.store.SettleTasks(background(), []store.SettleTaskRequest{req})
	if err != nil || !slices.Equal(owned, []bool{want}) {
		q.t.Fatalf("SettleTasks: %t, %v, want %t", owned, err, want)
	}
}

func (q taskCase) renews(ref store.TaskRef, want bool) {
	q.t.Helper()
	owned, err := q.store.RenewTasks(background(), []store.TaskRef{ref})
	if err != nil || !slices.Equal(owned, []bool{want}) {
		q.t.Fatalf("RenewTasks: %t, %v, want %t", owned, err, want)
	}
}

// record returns the record of a key, and skips a test on a store that shows none.
func (q taskCase) record(key string) (store.TaskRecord, bool) {
	q.t.Helper()
	record, found, err := able[store.TaskKeeper](q.t, q.store).InspectTask(background(), q.queue, key)
	if err != nil {
		q.t.Fatalf("InspectTask: %v", err)
	}
	return record, found
}

func takenWhenDue(t *testing.T, h Harness[store.Delays]) {
	inTime(t, 100*time.Millisecond, func(period time.Duration) (late bool) {
		q := newQueue(t, h)
		req := q.request("k", period)
		before := time.Now()
		q.put(req, store.TaskCreated)
		put := time.Now()
		reply, _ := q.takes(1, longLease)
		if expect(t, "tasks taken", len(reply.Tasks), 0, before, period) {
			return true
		}
		if reply.Next <= 0 || reply.Next > period {
			t.Errorf("the next task is due in %v, and was put for %v", reply.Next, period)
		}
		h.Advance(period)
		task := q.take(req, longLease)
		if since := time.Since(before) - period + clocks; task.Late < 0 || task.Late > since {
			t.Errorf("it is late by %v, and was due for %v at most", task.Late, since)
		}
		if task.Attempt != 1 || task.Fence <= 0 || task.TTL <= 0 || time.Since(put) < period-clocks {
			t.Errorf("taken %v after its put: %+v", time.Since(put), task.TakenTask)
		}
		return false
	})
}

func takenInOrder(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	reqs := make([]store.PutTaskRequest, 5)
	for i := range reqs {
		reqs[i] = q.request(fmt.Sprint("k", i), time.Duration(50-10*i)*time.Millisecond)
		q.put(reqs[i], store.TaskCreated)
	}
	h.Advance(60 * time.Millisecond)
	due := make([]time.Duration, len(reqs)) // on a slow machine puts are apart
	reply, _ := q.takes(len(reqs), longLease)
	if len(reply.Tasks) != len(reqs) {
		t.Fatalf("%d tasks were taken, want %d", len(reply.Tasks), len(reqs))
	}
	for i := range due {
		due[i] = reply.Tasks[i].Late
	}
	if !slices.IsSortedFunc(due, func(a, b time.Duration) int { return int(b - a) }) {
		t.Errorf("taken in this order of lateness: %v", due)
	}
}

func takesAtMost(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	if reply, _ := q.takes(3, longLease); len(reply.Tasks) != 0 || reply.Next >= 0 {
		t.Errorf("of an empty queue: %+v", reply)
	}
	for i := range 5 {
		q.due(fmt.Sprint("k", i))
	}
	q.put(q.request("later", time.Hour), store.TaskCreated)
	first, owner := q.takes(3, longLease)
	if len(first.Tasks) != 3 || first.Next != 0 {
		t.Errorf("the first take has %d tasks, and the next is due in %v", len(first.Tasks), first.Next)
	}
	second, _ := q.takes(3, longLease)
	if len(second.Tasks) != 2 || second.Next <= 0 || second.Next > store.FirstTaskLease {
		t.Errorf("the second take has %d tasks, and the next is due in %v", len(second.Tasks), second.Next)
	}
	if sent := second.Sent; sent.Before(first.Sent) || time.Since(sent) < 0 {
		t.Errorf("sent at %v and %v", first.Sent, sent)
	}
	for _, task := range first.Tasks {
		takenTask{q, task, owner}.settles(store.TaskDone, 0, true)
	}
}

func oddTasks(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	for i, key := range []string{"a", "A", "a ", " ", "\x00", "ü\xff", "{}", "1", "01", "b", "f", strings.Repeat("\xff", 1024)} {
		req := q.request(key, 0)
		switch i % 4 {
		case 0:
			req.Payload = nil
		case 1:
			req.Payload = []byte("\x00\xff\n{}")
		case 2:
			req.Payload = bytes.Repeat([]byte{0, 1, 2, 255}, 1<<14)
		}
		q.put(req, store.TaskCreated)
		task := q.take(req, longLease)
		q.put(q.request(key, 0), store.TaskFollows)
		task.settles(store.TaskBuried, time.Hour, true)
		q.cancels(newOwner(), key, store.TaskPrevented)
		q.cancels(newOwner(), key, store.TaskAbsent)
	}
	req := q.request("large", 0)
	req.Payload = bytes.Repeat([]byte("x"), store.MaxTaskPayload)
	q.put(req, store.TaskCreated)
	q.take(req, longLease).settles(store.TaskDone, 0, true)
}

func queuesApart(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	for _, name := range []string{q.queue + "a", q.queue + "-", q.queue[1:], q.queue[:len(q.queue)-1]} {
		other := q
		other.queue = name
		other.nothing()
		other.cancels(newOwner(), "k", store.TaskAbsent)
	}
	q.take(req, longLease)
}

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

func taskLeases(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	if task := q.take(q.due("long"), time.Hour); task.TTL != store.FirstTaskLease {
		t.Errorf("the first lease is %v, want %v", task.TTL, store.FirstTaskLease)
	}
	if task := q.take(q.due("short"), 2*time.Second); task.TTL != 2*time.Second {
		t.Errorf("the first lease is %v, want 2s", task.TTL)
	}
	inTime(t, 100*time.Millisecond, func(lease time.Duration) (late bool) {
		q := newQueue(t, h) // a task whose lease has ended would be taken first
		began := time.Now()
		req := q.due("k")
		task := q.take(req, lease)
		owned, err := q.store.RenewTasks(background(), []store.TaskRef{task.ref()})
		if err != nil || expect(t, "RenewTasks", owned[0], true, began, lease) {
			return true
		}
		h.Advance(lease + pastLease - shortLease)
		q.nothing()
		task.settles(store.TaskDone, 0, true)
		return false
	})
}

func takenAgain(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	first := q.take(req, shortLease)
	h.Advance(pastLease)
	second := q.take(req, shortLease)
	if second.Attempt != 2 || second.Fence <= first.Fence {
		t.Errorf("attempt %d has fence %d, after fence %d", second.Attempt, second.Fence, first.Fence)
	}
	h.Advance(pastLease)
	if third := q.take(req, longLease); third.Attempt != 3 || third.Fence <= second.Fence || third.Late > second.Late+time.Minute {
		t.Errorf("%+v after fence %d", third.TakenTask, second.Fence)
	}
}

func lateTaskSteps(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	task := q.take(req, shortLease)
	h.Advance(pastLease)
	q.renews(task.ref(), false)
	for _, how := range []store.Settlement{store.TaskDone, store.TaskAgain, store.TaskBuried} {
		task.settles(how, time.Hour, false)
	}
	next := q.take(req, longLease)
	q.renews(task.ref(), false)
	for _, how := range []store.Settlement{store.TaskDone, store.TaskAgain, store.TaskBuried} {
		task.settles(how, time.Hour, false)
	}
	q.renews(next.ref(), true)
}

func othersTaskSteps(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	task := q.take(req, longLease)
	for _, change := range []func(*store.TaskRef){
		func(r *store.TaskRef) { r.Owner = newOwner() },
		func(r *store.TaskRef) { r.ID = newOwner() },
		func(r *store.TaskRef) { r.Key = "another" },
		func(r *store.TaskRef) { r.Queue += "a" },
	} {
		settlement := task.settlement(store.TaskDone, 0)
		change(&settlement.TaskRef)
		q.renews(settlement.TaskRef, false)
		q.settles(settlement, false)
		settlement.How = store.TaskAgain
		q.settles(settlement, false)
	}
	task.settles(store.TaskDone, 0, true)
}

func doneTask(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	q.take(q.due("k"), longLease).settles(store.TaskDone, 0, true)
	q.nothing()
	if reply, _ := q.takes(1, longLease); reply.Next >= 0 {
		t.Errorf("the next task is due in %v", reply.Next)
	}
	q.cancels(newOwner(), "k", store.TaskAbsent)
	q.due("k")
}

func againTask(t *testing.T, h Harness[store.Delays]) {
	inTime(t, 100*time.Millisecond, func(period time.Duration) (late bool) {
		q := newQueue(t, h)
		req := q.due("k")
		first := q.take(req, longLease)
		began := time.Now()
		first.settles(store.TaskAgain, period, true)
		reply, _ := q.takes(1, longLease)
		if expect(t, "tasks taken", len(reply.Tasks), 0, began, period) {
			return true
		}
		h.Advance(period)
		if second := q.take(req, longLease); second.Attempt != 2 || second.Fence <= first.Fence {
			t.Errorf("%+v after fence %d", second.TakenTask, first.Fence)
		}
		return false
	})
}

func uncountedAttempt(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	req := q.due("k")
	q.take(req, longLease).settles(store.TaskAgain, 0, true)
	for range 2 {
		task := q.take(req, longLease)
		if task.Attempt != 2 {
			t.Errorf("attempt %d, want 2", task.Attempt)
		}
		settlement := task.settlement(store.TaskAgain, 0)
		settlement.Uncounted = true
		q.settles(settlement, true)
		q.settles(settlement, true) // a repeat counts nothing, either
	}
}

func repeatedSettlement(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	repeats := func(s store.SettleTaskRequest) {
		t.Helper()
		q.settles(s, true)
		s.Repeated = true
		q.settles(s, true)
		q.settles(s, true)
	}
	repeats(q.take(q.due("done"), longLease).settlement(store.TaskDone, 0))
	repeats(q.take(q.due("buried"), longLease).settlement(store.TaskBuried, time.Hour))
	again := q.take(q.due("again"), longLease)
	repeats(again.settlement(store.TaskAgain, time.Hour))
	q.nothing()

	follows := q.request("followed", 0)
	first := q.take(q.due("followed"), longLease)
	q.put(follows, store.TaskFollows)
	repeats(first.settlement(store.TaskDone, 0))
	q.take(follows, longLease)

	// The repeat of a settlement that was lost with its lease is none.
	req := q.due("lost")
	lost := q.take(req, shortLease).settlement(store.TaskDone, 0)
	lost.Repeated = true
	h.Advance(pastLease)
	q.settles(lost, false)
	q.take(req, longLease)
	q.settles(lost, false)
}

func buriedTasks(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	keeper := able[store.TaskKeeper](t, h.Store)
	revives := func(key, id string, want bool) {
		t.Helper()
		if revived, err := keeper.ReviveTask(background(), store.TaskRef{Queue: q.queue, Key: key, ID: id}); err != nil || revived != want {
			t.Fatalf("ReviveTask: %t, %v, want %t", revived, err, want)
		}
	}
	req := q.due("k")
	task := q.take(req, longLease)
	task.settles(store.TaskBuried, time.Hour, true)
	q.nothing()
	r, found := q.record("k")
	if !found || r.State != store.TaskKeptBuried || r.ID != req.ID || r.Reason != "a reason" || r.Attempt != 1 || r.Fence != task.Fence ||
		r.Bytes != len(req.Payload) || r.Age < 0 || r.Expires > time.Hour || r.Expires < time.Minute {
		t.Errorf("%t: %+v", found, r)
	}
	revives("k", newOwner(), false)
	revives("another", req.ID, false)
	revives("k", req.ID, true)
	revives("k", req.ID, true)
	if revived := q.take(req, longLease); revived.Attempt != 1 || revived.Fence <= task.Fence {
		t.Errorf("revived as attempt %d, with fence %d after %d", revived.Attempt, revived.Fence, task.Fence)
	}

	ended := q.due("ended")
	q.take(ended, longLease).settles(store.TaskBuried, time.Hour, true)
	revives("ended", ended.ID, true)
	q.cancels(newOwner(), "ended", store.TaskEnded) // an owner has had it

	expired := q.due("expired")
	q.take(expired, longLease).settles(store.TaskBuried, shortLease, true)
	h.Advance(pastLease)
	if r, found := q.record("expired"); found {
		t.Errorf("after its expiry: %+v", r)
	}
	revives("expired", expired.ID, false)
}

func buriedBeside(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	keeper := able[store.TaskKeeper](t, h.Store)
	buried := q.due("k")
	q.take(buried, longLease).settles(store.TaskBuried, time.Hour, true)
	next := q.due("k")
	if revived, err := keeper.ReviveTask(background(), store.TaskRef{Queue: q.queue, Key: "k", ID: buried.ID}); err != nil || revived {
		t.Errorf("revived beside another task: %t, %v", revived, err)
	}
	if r, found := q.record("k"); !found || r.ID != next.ID || r.State != store.TaskWaiting {
		t.Errorf("%t: %+v", found, r)
	}
	q.take(next, longLease).settles(store.TaskDone, 0, true)
	if r, found := q.record("k"); !found || r.ID != buried.ID || r.State != store.TaskKeptBuried {
		t.Errorf("%t: %+v", found, r)
	}
	if revived, err := keeper.ReviveTask(background(), store.TaskRef{Queue: q.queue, Key: "k", ID: buried.ID}); err != nil || !revived {
		t.Errorf("revived: %t, %v", revived, err)
	}
	q.take(buried, longLease)
}

// await begins an AwaitTasks, which ends with the test.
func (q taskCase) await(in time.Duration) *call {
	return begin(q.t, q.h.Advance, "AwaitTasks", func() any { return nil }, func(ctx context.Context) (store.Grant, error) {
		return store.Grant{}, q.store.AwaitTasks(ctx, q.queue, in)
	})
}

func awaitsDue(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	q.put(q.request("k", 100*time.Millisecond), store.TaskCreated)
	w := q.await(-1)
	h.Advance(100 * time.Millisecond)
	w.fails(nil)
	q.await(-1).fails(nil) // it is due
	q.await(time.Hour).fails(nil)
}

func awaitsPut(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	empty := q.await(-1)
	empty.waits()
	before := time.Now()
	req := q.due("k")
	empty.fails(nil)
	if d := time.Since(before); d > eventually/2 {
		t.Errorf("it was woken after %v", d)
	}
	task := q.take(req, longLease)
	task.settles(store.TaskDone, 0, true)
	q.put(q.request("later", time.Hour), store.TaskCreated)
	w := q.await(time.Hour)
	w.waits()
	q.put(q.request("sooner", 0), store.TaskCreated)
	w.fails(nil)
}

func endedTaskWait(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	first, second := q.await(-1), q.await(-1)
	first.cancel()
	first.fails(context.Canceled)
	second.waits()
	q.due("k")
	second.fails(nil)
}

func concurrentTaskTakes(t *testing.T, h Harness[store.Delays]) {
	const tasks, takers = 60, 6
	q := newQueue(t, h)
	for i := range tasks {
		q.due(fmt.Sprint("k", i))
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		taken = make(map[string]int)
	)
	for range takers {
		wg.Go(func() {
			for range tasks {
				owner := newOwner()
				reply, err := q.store.TakeTasks(background(), store.TakeTasksRequest{Queue: q.queue, Owner: owner, Max: 7, Lease: longLease})
				if err != nil {
					t.Errorf("TakeTasks: %v", err)
				}
				var done []store.SettleTaskRequest
				for _, task := range reply.Tasks {
					done = append(done, takenTask{q, task, owner}.settlement(store.TaskDone, 0))
					mu.Lock()
					taken[task.Key]++
					mu.Unlock()
				}
				owned, err := q.store.SettleTasks(background(), done)
				if err != nil || slices.Contains(owned, false) || len(owned) != len(done) {
					t.Errorf("SettleTasks: %t, %v", owned, err)
				}
				if reply.Next < 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range tasks {
		if key := fmt.Sprint("k", i); taken[key] != 1 {
			t.Errorf("%s was taken %d times", key, taken[key])
		}
	}
}

func listedTasks(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	keeper := able[store.TaskKeeper](t, h.Store)
	counts := func() store.TaskCounts {
		t.Helper()
		c, err := keeper.CountTasks(background(), q.queue)
		if err != nil {
			t.Fatalf("CountTasks: %v", err)
		}
		return c
	}
	list := func(buried bool) (keys []string) {
		for r, err := range keeper.ListTasks(background(), q.queue, buried) {
			if err != nil {
				t.Fatalf("ListTasks: %v", err)
			}
			keys = append(keys, r.Key)
		}
		slices.Sort(keys)
		return keys
	}
	if c := counts(); c != (store.TaskCounts{}) {
		t.Errorf("of an empty queue: %+v", c)
	}
	bury := q.due("buried")
	q.take(bury, longLease).settles(store.TaskBuried, time.Hour, true)
	runs := q.due("runs")
	task := q.take(runs, longLease)
	q.put(q.request("runs", 0), store.TaskFollows)
	q.put(q.request("waits", time.Hour), store.TaskCreated)
	q.due("due")
	q.due("cancelled")
	q.cancels(newOwner(), "cancelled", store.TaskPrevented)
	q.cancels(newOwner(), "absent", store.TaskAbsent)
	h.Advance(10 * time.Millisecond)
	if c := counts(); c.Waiting != 2 || c.Running != 1 || c.Buried != 1 || c.Oldest <= 0 {
		t.Errorf("%+v", c)
	}
	if r, found := q.record("runs"); !found || r.State != store.TaskTaken || !r.Follows || r.Holder != "holder of "+q.queue || r.Lease <= 0 ||
		r.Lease > store.FirstTaskLease || r.Attempt != 1 || r.Fence != task.Fence || r.ID != runs.ID || r.Bytes != len(runs.Payload) {
		t.Errorf("%t: %+v", found, r)
	}
	if r, found := q.record("waits"); !found || r.State != store.TaskWaiting || r.Due > time.Hour || r.Due < time.Minute || r.Attempt != 0 || r.Fence != 0 {
		t.Errorf("%t: %+v", found, r)
	}
	if r, found := q.record("due"); !found || r.Due >= 0 {
		t.Errorf("%t: %+v", found, r)
	}
	if r, found := q.record("cancelled"); found {
		t.Errorf("a cancelled task: %+v", r)
	}
	if got := list(false); !slices.Equal(got, []string{"due", "runs", "waits"}) {
		t.Errorf("listed %q", got)
	}
	if got := list(true); !slices.Equal(got, []string{"buried"}) {
		t.Errorf("listed as buried: %q", got)
	}
	for _, err := range keeper.ListTasks(background(), q.queue, false) {
		if err != nil {
			t.Errorf("ListTasks: %v", err)
		}
		break
	}
}

// steps makes one call of each method that returns an error.
func (q taskCase) steps(ctx context.Context, task takenTask) map[string]error {
	errs := make(map[string]error)
	_, errs["PutTask"] = q.store.PutTask(ctx, q.request("new", 0))
	_, errs["TakeTasks"] = q.store.TakeTasks(ctx, store.TakeTasksRequest{Queue: q.queue, Owner: newOwner(), Max: 1, Lease: longLease})
	errs["AwaitTasks"] = q.store.AwaitTasks(ctx, q.queue, time.Hour)
	_, errs["CancelTask"] = q.store.CancelTask(ctx, store.CancelTaskRequest{Queue: q.queue, Key: "new", ID: newOwner()})
	_, errs["RenewTasks"] = q.store.RenewTasks(ctx, []store.TaskRef{task.ref()})
	_, errs["SettleTasks"] = q.store.SettleTasks(ctx, []store.SettleTaskRequest{task.settlement(store.TaskDone, 0)})
	return errs
}

func cancelledTaskSteps(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	task := q.take(q.due("k"), longLease)
	ctx, cancel := context.WithCancel(background())
	cancel()
	for method, err := range q.steps(ctx, task) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", method, err)
		}
	}
	if keeper, ok := h.Store.(store.TaskKeeper); ok {
		for _, err := range keeper.ListTasks(ctx, q.queue, false) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ListTasks: %v", err)
			}
		}
	}
	task.settles(store.TaskDone, 0, true)
}

func shutDownTasks(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	task := q.take(q.due("k"), longLease)
	w := q.await(-1)
	shutsDown(t, h.Store)
	<-w.done
	wantErrClosed(t, w.err)
	for method, err := range q.steps(background(), task) {
		switch method {
		case "PutTask", "TakeTasks", "AwaitTasks":
			wantErrClosed(t, err)
		default:
			if err != nil {
				t.Errorf("%s: %v", method, err)
			}
		}
	}
}

func closedTasks(t *testing.T, h Harness[store.Delays]) {
	q := newQueue(t, h)
	task := q.take(q.due("k"), longLease)
	closes(t, h.Store)
	for _, err := range q.steps(background(), task) {
		wantErrClosed(t, err)
	}
}
