package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
