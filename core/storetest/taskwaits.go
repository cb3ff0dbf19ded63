package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
