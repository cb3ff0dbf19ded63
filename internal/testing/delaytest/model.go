package delaytest

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Model carries out random steps, on queues of their own, whose outcomes must be those in memory.
func Model(t *testing.T, s store.Store) {
	model := memstore.New()
	t.Cleanup(func() { _ = model.Close() })
	var all sync.WaitGroup
	for worker := range uint64(4) {
		all.Go(func() {
			for round := range uint64(12) {
				seed := worker*1000 + round
				got, want := randomSteps(t, s, seed), randomSteps(t, model, seed)
				for i := range min(len(got), len(want)) {
					if got[i] != want[i] {
						t.Errorf("seed %d, step %d:\n%s; in memory:\n%s\nafter %q", seed, i, got[i], want[i], got[max(i-8, 0):i])
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// randomSteps carries out random steps on a queue of its own, and returns what is seen of each. No lease
// ends, and no task is due in between.
func randomSteps(t *testing.T, s store.Store, seed uint64) (views []string) {
	ctx := context.Background()
	random := rand.New(rand.NewPCG(seed, 1))
	queue := cryptorand.Text()
	names := make(map[string]string) // of IDs
	var (
		putReqs    []store.PutTaskRequest
		cancelReqs []store.CancelTaskRequest
		refs       []store.TaskRef
	)
	after := func() time.Duration { return time.Duration(random.IntN(2)) * time.Hour }
	for i := range 50 {
		key := fmt.Sprint(random.IntN(3))
		id := cryptorand.Text()[:22]
		names[id] = fmt.Sprint("id", i)
		view := ""
		see := func(what string, outcome any, err error) {
			ok(t, err)
			view = fmt.Sprintf("%s: %v", what, outcome)
		}
		switch op := random.IntN(10); {
		case op < 3:
			req := store.PutTaskRequest{Queue: queue, Key: key, ID: id, Payload: []byte(names[id]), After: after(), Keep: random.IntN(4) == 0, MaxTasks: random.IntN(2) * 4}
			if again := random.IntN(4) == 0; again && len(putReqs) > 0 {
				req = putReqs[random.IntN(len(putReqs))]
			}
			putReqs = append(putReqs, req)
			reply, err := s.PutTask(ctx, req)
			see(fmt.Sprint("put ", key, req.After, req.Keep), fmt.Sprint(reply.Outcome, reply.Due > 30*time.Minute), err)
		case op < 6:
			req := store.TakeTasksRequest{Queue: queue, Owner: id, Max: 1 + random.IntN(2), Lease: time.Minute}
			reply, err := s.TakeTasks(ctx, req)
			var seen []string
			for _, task := range reply.Tasks {
				refs = append(refs, store.TaskRef{Queue: queue, Key: task.Key, ID: task.ID, Owner: id, Lease: time.Minute})
				seen = append(seen, fmt.Sprint(task.Key, names[task.ID], string(task.Payload), task.Attempt))
			}
			if owned, err := s.RenewTasks(ctx, refs[len(refs)-len(seen):]); err != nil || slices.Contains(owned, false) {
				t.Errorf("RenewTasks: %t, %v", owned, err)
			}
			see("take", fmt.Sprint(seen, min(max(reply.Next, -1), 1)), err)
		case op < 8 && len(refs) > 0:
			n := 1 + random.IntN(2)
			var reqs []store.SettleTaskRequest
			for range n {
				reqs = append(reqs, store.SettleTaskRequest{
					TaskRef: refs[random.IntN(len(refs))], How: store.Settlement(random.IntN(3)), After: time.Hour, Uncounted: random.IntN(2) == 0,
				})
				if last := &reqs[len(reqs)-1]; last.How == store.TaskAgain && random.IntN(2) == 0 {
					last.After = 0
				}
				reqs[len(reqs)-1].Repeated = random.IntN(3) == 0
			}
			if n == 2 && reqs[0].Key == reqs[1].Key { // which of them is first is not said
				reqs = reqs[:1]
			}
			owned, err := s.SettleTasks(ctx, reqs)
			see("settle", owned, err)
		case op == 8:
			req := store.CancelTaskRequest{Queue: queue, Key: key, ID: id}
			if one := random.IntN(2) == 0; one && len(putReqs) > 0 {
				of := putReqs[random.IntN(len(putReqs))]
				req.Key, req.Task = of.Key, of.ID
			}
			if again := random.IntN(4) == 0; again && len(cancelReqs) > 0 {
				req = cancelReqs[random.IntN(len(cancelReqs))]
			}
			cancelReqs = append(cancelReqs, req)
			outcome, err := s.CancelTask(ctx, req)
			see("cancel "+req.Key+names[req.Task], outcome, err)
		case len(putReqs) > 0:
			req := putReqs[random.IntN(len(putReqs))]
			revived, err := s.ReviveTask(ctx, store.TaskRef{Queue: queue, Key: req.Key, ID: req.ID})
			see("revive "+req.Key, revived, err)
		}
		views = append(views, view+"\n"+lookAtTasks(t, s, queue, names))
		<-time.After(50 * time.Microsecond) // no two tasks are due at the same time
	}
	return views
}

// lookAtTasks returns what is seen of a queue.
func lookAtTasks(t *testing.T, s store.Store, queue string, names map[string]string) string {
	ctx := context.Background()
	var seen []string
	for _, buried := range []bool{false, true} {
		for r, err := range s.ListTasks(ctx, queue, buried) {
			ok(t, err)
			seen = append(seen, fmt.Sprintf("%s %s %d: %d bytes, attempt %d, fence %t, in %t, lease %t, follows %t, expires %t", r.Key, names[r.ID], r.State,
				r.Bytes, r.Attempt, r.Fence > 0, r.Due > 0, r.Lease > 0, r.Follows, r.Expires > 0))
		}
	}
	slices.Sort(seen)
	counts, err := s.CountTasks(ctx, queue)
	ok(t, err)
	return fmt.Sprint(seen, counts.Waiting, counts.Running, counts.Buried)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
