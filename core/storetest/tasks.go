package storetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
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
		{"a repeat of a put may have run before", repeatAfterRun},
		{"a full queue takes no further key", fullQueue},
		{"a cancel before the first take prevents the task", preventedTask},
		{"a cancel after an attempt ends the task", endedTask},
		{"no further attempt begins at a running task that is cancelled", cancelledRunning},
		{"a repeated cancel has the outcome of the first", repeatedCancel},
		{"a cancel and a take exclude each other", cancelsBesideTakes},
		{"a cancel of one task leaves others of its key", cancelOfOneTask},
		{"the first lease is short, and a renewal makes it whole", taskLeases},
		{"a task whose lease has ended is taken again, and not before", takenAgain},
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
	q.cancelled(store.CancelTaskRequest{Key: key, ID: id}, want)
}

func (q taskCase) cancelsOnly(task store.PutTaskRequest, want store.CancelOutcome) {
	q.t.Helper()
	q.cancelled(store.CancelTaskRequest{Key: task.Key, ID: newOwner(), Task: task.ID}, want)
}

// cancelled sends a cancel, and checks its outcome.
func (q taskCase) cancelled(req store.CancelTaskRequest, want store.CancelOutcome) {
	q.t.Helper()
	req.Queue = q.queue
	got, err := q.store.CancelTask(background(), req)
	if err != nil || got != want {
		q.t.Fatalf("CancelTask: %d, %v, want %d", got, err, want)
	}
}

// takes sends a take of up to most tasks with a lease.
func (q taskCase) takes(most int, lease time.Duration) (store.TakeTasksReply, string) {
	q.t.Helper()
	owner := newOwner()
	reply, err := q.store.TakeTasks(background(), store.TakeTasksRequest{Queue: q.queue, Owner: owner, Max: most, Lease: lease, Holder: "holder of " + q.queue})
	if err != nil || len(reply.Tasks) > most {
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
