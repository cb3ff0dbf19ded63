package redisstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/delaytest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestTasksInAStorm(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	direct := newStore(t, dial(t, server.Addr(), time.Second), redisstore.WithTimeout(time.Second))
	open := func() (store.Store, *faultproxy.Proxy) {
		proxy := redistest.NewProxy(t, server.Addr())
		return newStore(t, dial(t, proxy.Addr(), 200*time.Millisecond), redisstore.WithTimeout(500*time.Millisecond)), proxy
	}
	client := server.Client()
	tasks := 10_000
	if testpace.Raced {
		tasks /= 10
	}
	delaytest.Storm(t, tasks, direct, open,
		func() { must(t, client.ScriptFlush(ctx()).Err()) },
		func() { _ = client.ClientKillByFilter(ctx(), "type", "pubsub").Err() },
		server.Restart,
	)
}

const tasksServer = "TASKS_TEST_SERVER"

// TestTaskWorker is a process of TestTasksOfKilledProcesses. It counts the effects of tasks.
func TestTaskWorker(t *testing.T) {
	client := dial(t, delaytest.Worker(t, tasksServer), time.Second)
	st := newStore(t, client, redisstore.WithTimeout(time.Second))
	effects := newGuard(t, st, guard.WithTTL(delaytest.ProcessLease()), guard.WithLogger(slog.New(slog.DiscardHandler)))
	delaytest.Work(t, st, func(ctx context.Context, task *delay.Task) error {
		err := guard.Once(ctx, effects, guard.Operation{Key: task.ID()}, func(ctx context.Context) error {
			return client.HIncrBy(ctx, "effects", task.Key(), 1).Err()
		})
		switch action, after := guard.Disposition(err); {
		case action == guard.DeadLetter:
			return delay.Bury(err)
		case action == guard.RetryLater && after > 0:
			return delay.Again(after)
		}
		return err
	})
}

// Processes are killed and stopped. A task has its effect once, by a guard with its ID, or is buried
// because a process died in the middle of that.
func TestTasksOfKilledProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	tasks := 2_000
	if testpace.Raced {
		tasks /= 4
	}
	buried := delaytest.Processes(t, tasks, newStore(t, client), "TestTaskWorker", tasksServer+"="+server.Addr())
	effects, err := client.HGetAll(ctx(), "effects").Result()
	must(t, err)
	lost := tasks
	for key, n := range effects {
		if n != "1" {
			t.Errorf("%s effects of %s", n, key)
		}
		lost--
	}
	for key := range buried {
		if effects[key] == "" {
			lost--
		}
	}
	if lost != 0 {
		t.Errorf("%d of %d tasks are lost", lost, tasks)
	}
	t.Logf("%d tasks, of which %d are of unknown outcome", tasks, len(buried))
}

func TestTasksAreThoseInMemory(t *testing.T) {
	t.Parallel()
	delaytest.Model(t, newStore(t, redistest.Start(t).Client()))
}

// A damaged task is buried and logged by each step that meets it, and its key is free.
func TestDamagedTasks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	states := func(s *redisstore.Store, queue string) string {
		t.Helper()
		_, err := s.PutTask(ctx(), store.PutTaskRequest{Queue: queue, Key: "later", ID: strings.Repeat("l", 22), After: time.Hour})
		must(t, err)
		keys, err := client.Keys(ctx(), "lk:d:{*}s").Result()
		must(t, err)
		for _, key := range keys {
			if n, err := client.HLen(ctx(), key).Result(); err == nil && n == 1 {
				return key
			}
		}
		t.Fatalf("no queue with one task among %q", keys)
		return ""
	}
	damages := map[string]func(states, key string){
		"no state":    func(states, key string) { must(t, client.HDel(ctx(), states, "l"+key).Err()) },
		"short state": func(states, key string) { must(t, client.HSet(ctx(), states, "l"+key, "1W").Err()) },
		"odd number": func(states, key string) {
			whole, err := client.HGet(ctx(), states, "l"+key).Result()
			must(t, err)
			must(t, client.HSet(ctx(), states, "l"+key, whole[:49]+"000000000x"+whole[59:]).Err())
		},
	}
	noPayload := func(states, key string) {
		must(t, client.HDel(ctx(), strings.TrimSuffix(states, "s")+"p", "l"+key).Err())
	}
	const id, owner = "aaaaaaaaaaaaaaaaaaaaaa", "oooooooooooooooooooooo"
	ref := func(queue string) store.TaskRef {
		return store.TaskRef{Queue: queue, Key: "k", ID: id, Owner: owner, Lease: time.Minute}
	}
	take := func(s *redisstore.Store, queue string) error {
		reply, err := s.TakeTasks(ctx(), store.TakeTasksRequest{Queue: queue, Owner: owner, Max: 10, Lease: time.Minute})
		if len(reply.Tasks) > 0 {
			t.Errorf("%+v was taken", reply.Tasks)
		}
		return err
	}
	steps := map[string]func(s *redisstore.Store, queue string) error{
		"take": take,
		"keep": func(s *redisstore.Store, queue string) error {
			req := store.PutTaskRequest{Queue: queue, Key: "k", ID: strings.Repeat("n", 22), Keep: true, MaxTasks: 2}
			_, err := s.PutTask(ctx(), req)
			return err
		},
		"cancel": func(s *redisstore.Store, queue string) error {
			_, err := s.CancelTask(ctx(), store.CancelTaskRequest{Queue: queue, Key: "k", ID: strings.Repeat("c", 22)})
			return err
		},
		"renew": func(s *redisstore.Store, queue string) error {
			_, err := s.RenewTasks(ctx(), []store.TaskRef{ref(queue)})
			return err
		},
		"settle": func(s *redisstore.Store, queue string) error {
			_, err := s.SettleTasks(ctx(), []store.SettleTaskRequest{{TaskRef: ref(queue)}})
			return err
		},
		"inspect": func(s *redisstore.Store, queue string) error {
			_, _, err := s.InspectTask(ctx(), queue, "k")
			return err
		},
		"list": func(s *redisstore.Store, queue string) error {
			for _, err := range s.ListTasks(ctx(), queue, false) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"revive": func(s *redisstore.Store, queue string) error {
			_, err := s.ReviveTask(ctx(), store.TaskRef{Queue: queue, Key: "k", ID: strings.Repeat("n", 22)})
			return err
		},
	}
	check := func(by, what string, step func(*redisstore.Store, string) error, damage func(states, key string)) {
		queue := by + " " + what
		t.Run(queue, func(t *testing.T) {
			log := new(logbook)
			s := newStore(t, client, log.option())
			at := states(s, queue)
			_, err := s.PutTask(ctx(), store.PutTaskRequest{Queue: queue, Key: "k", ID: id, Payload: []byte("of k")})
			must(t, err)
			damage(at, "k")
			must(t, step(s, queue))
			must(t, step(s, queue)) // has nothing to log
			if lines := strings.Count(log.String(), "a record is damaged"); lines != 1 {
				t.Errorf("%d log lines", lines)
			}
			record, found, err := s.InspectTask(ctx(), queue, "k")
			if err != nil || !found || record.State != store.TaskKeptBuried || record.Reason != "damaged" {
				t.Errorf("%+v, %t, %v", record, found, err)
			}
			counts, err := s.CountTasks(ctx(), queue)
			if err != nil || counts.Running != 0 || counts.Waiting != 1 || counts.Buried != 1 {
				t.Errorf("%+v, %v", counts, err)
			}
			req := store.PutTaskRequest{Queue: queue, Key: "k", ID: strings.Repeat("p", 22)}
			if reply, err := s.PutTask(ctx(), req); err != nil || reply.Outcome != store.TaskCreated {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	for what, damage := range damages {
		for by, step := range steps {
			if by == "list" && what == "no state" { // only its time is left, which a listing does not read
				continue
			}
			check(by, what, step, damage)
		}
	}
	check("take", "no payload", take, noPayload)
}

// A buried record that cannot be read is listed nevertheless.
func TestDamagedBuriedTask(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := newStore(t, client)
	_, err := s.PutTask(ctx(), store.PutTaskRequest{Queue: "q", Key: "k", ID: strings.Repeat("a", 22)})
	must(t, err)
	keys, err := client.Keys(ctx(), "lk:d:{*}s").Result()
	must(t, err)
	must(t, client.HSet(ctx(), keys[0], "lk", "1W").Err())
	_, _, err = s.InspectTask(ctx(), "q", "k")
	must(t, err)
	must(t, client.HSet(ctx(), keys[0], "bk", "1").Err())
	if record, found, err := s.InspectTask(ctx(), "q", "k"); err != nil || !found || record.State != store.TaskKeptBuried {
		t.Errorf("%+v, %t, %v", record, found, err)
	}
}

// The number of running tasks is right after an attempt was ended by a step that changes nothing
// else.
func TestRunningTasksAfterARepeat(t *testing.T) {
	t.Parallel()
	s := newStore(t, redistest.Start(t).Client())
	first := store.PutTaskRequest{Queue: "q", Key: "k", ID: strings.Repeat("a", 22)}
	next := store.PutTaskRequest{Queue: "q", Key: "k", ID: strings.Repeat("b", 22), After: time.Hour}
	_, err := s.PutTask(ctx(), first)
	must(t, err)
	_, err = s.TakeTasks(ctx(), store.TakeTasksRequest{Queue: "q", Owner: strings.Repeat("o", 22), Max: 1, Lease: testpace.Scale(100 * time.Millisecond)})
	must(t, err)
	if reply, err := s.PutTask(ctx(), next); err != nil || reply.Outcome != store.TaskFollows {
		t.Fatalf("%+v, %v", reply, err)
	}
	must(t, s.AwaitTasks(ctx(), "q", testpace.Scale(100*time.Millisecond)))
	_, err = s.PutTask(ctx(), next) // a repeat, which finds that the lease has ended
	must(t, err)
	if counts, err := s.CountTasks(ctx(), "q"); err != nil || counts.Running != 0 || counts.Waiting != 1 {
		t.Errorf("%+v, %v", counts, err)
	}
}

// All keys of a queue expire after its tasks, and a queue in use does not expire.
func TestKeysOfTasksExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := newStore(t, client)
	req := store.PutTaskRequest{Queue: "q", Key: "k", ID: strings.Repeat("a", 22), After: store.MaxTaskDelay}
	_, err := s.PutTask(ctx(), req)
	must(t, err)
	_, err = s.CancelTask(ctx(), store.CancelTaskRequest{Queue: "q", Key: "absent", ID: strings.Repeat("b", 22)})
	must(t, err)
	go func() { _ = s.AwaitTasks(t.Context(), "q", -1) }()
	const days = 24 * time.Hour
	check := func(least time.Duration) {
		t.Helper()
		keys, err := client.Keys(ctx(), "lk:d:*").Result()
		must(t, err)
		if len(keys) < 4 {
			t.Errorf("only the keys %q", keys)
		}
		for _, key := range keys {
			left, err := client.PTTL(ctx(), key).Result()
			must(t, err)
			if short := strings.HasSuffix(key, "w") || strings.Contains(key, "}x"); left <= 0 || !short && left < least {
				t.Errorf("%s expires in %v", key, left)
			}
		}
	}
	check(731 * days)
	keys, err := client.Keys(ctx(), "lk:d:{*}*").Result()
	must(t, err)
	for _, key := range keys {
		must(t, client.PExpire(ctx(), key, 400*days).Err())
	}
	req.Key, req.ID = "another", strings.Repeat("c", 22)
	_, err = s.PutTask(ctx(), req)
	must(t, err)
	check(731 * days)
}

// 1,000 queues of a process share its subscription, and an idle one costs a call in three seconds.
func TestManyIdleQueues(t *testing.T) {
	t.Parallel()
	const queues, seconds = 1000, 9
	server := redistest.Start(t)
	client := server.Client()
	s := newStore(t, dial(t, server.Addr(), 30*time.Second))
	ended, end := context.WithCancel(ctx())
	var wg sync.WaitGroup
	ran := make(chan string, queues)
	var all []*delay.Queue
	for n := range queues {
		q, err := delay.New(s, fmt.Sprint("q", n))
		must(t, err)
		all = append(all, q)
		wg.Go(func() {
			_ = q.Run(ended, 1, func(_ context.Context, task *delay.Task) error {
				ran <- q.Name()
				return nil
			})
		})
	}
	defer wg.Wait()
	defer end()
	calls := func() int64 {
		stats, err := client.InfoMap(ctx(), "commandstats").Result()
		must(t, err)
		var n int64
		_, _ = fmt.Sscanf(stats["Commandstats"]["cmdstat_evalsha"], "calls=%d", &n)
		return n
	}
	eventually(t, 30*time.Second, "all queues wait", func() bool { return calls() >= 2*queues })
	began, before := time.Now(), calls()
	<-time.After(seconds * time.Second)
	most := int64(float64(queues) * (time.Since(began).Seconds()/2.7 + 1))
	if n := calls() - before; n > most {
		t.Errorf("%d calls in %v, at most %d are allowed", n, time.Since(began), most)
	}
	if text, err := client.ClientList(ctx()).Result(); err != nil || strings.Count(text, " sub=1 ") != 1 {
		t.Errorf("%d subscriptions, %v", strings.Count(text, " sub=1 "), err)
	}
	for _, n := range []int{0, queues / 2, queues - 1} {
		_, err := all[n].Put(ctx(), "k", nil, 0)
		must(t, err)
		if got := <-ran; got != all[n].Name() {
			t.Errorf("%s ran, want %s", got, all[n].Name())
		}
	}
}

// A store that repeats a put without a reply says that it is a repeat. Here the task has ended before
// the repeat, which makes it anew: its cancel prevents nothing.
func TestAPutThatTheStoreRepeats(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := newStore(t, dial(t, proxy.Addr(), time.Second), redisstore.WithTimeout(10*time.Second))
	direct := server.Client()
	put := func(queue string) {
		t.Helper()
		_, err := s.PutTask(ctx(), store.PutTaskRequest{Queue: queue, Key: "k", ID: newOp("").id})
		must(t, err)
	}
	put("first") // it loads the script
	const tries = 5
	for try := range tries {
		queue := fmt.Sprint("queue", try)
		must(t, direct.FlushDB(ctx()).Err())
		proxy.LoseReplies("evalsha", 1, redistest.Silence)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			testpace.Eventually(t, 10*time.Second, "the first put", func() bool {
				return direct.DBSize(ctx()).Val() > 0 && direct.FlushDB(ctx()).Err() == nil
			})
		}()
		put(queue)
		<-ended
		outcome, err := s.CancelTask(ctx(), store.CancelTaskRequest{Queue: queue, Key: "k", ID: newOp("").id})
		switch {
		case err != nil || outcome == store.TaskPrevented:
			t.Fatalf("cancel: %d, %v", outcome, err)
		case outcome == store.TaskEnded:
			return
		} // else the repeat came first
	}
	t.Errorf("a task did not end before the repeat of its put in any of %d tries", tries)
}
