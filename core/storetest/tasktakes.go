package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
		h.Advance(period * 9 / 10)
		reply, _ = q.takes(1, longLease)
		if expect(t, "tasks taken shortly before", len(reply.Tasks), 0, before, period) {
			return true
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
