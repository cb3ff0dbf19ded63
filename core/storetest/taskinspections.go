package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
