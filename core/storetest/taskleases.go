package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
	for _, renewed := range []bool{false, true} {
		inTime(t, 100*time.Millisecond, func(lease time.Duration) (late bool) {
			q := newQueue(t, h)
			req := q.due("k")
			began := time.Now()
			task := q.take(req, lease)
			if ref := task.ref(); renewed {
				before := began
				began, ref.Lease = time.Now(), lease
				owned, err := q.store.RenewTasks(background(), []store.TaskRef{ref})
				if err != nil || expect(t, "RenewTasks", owned[0], true, before, lease) {
					return true
				}
			}
			h.Advance(lease * 9 / 10)
			reply, _ := q.takes(1, longLease)
			return expect(t, "tasks taken before the end of the lease", len(reply.Tasks), 0, began, lease)
		})
	}
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
