package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
