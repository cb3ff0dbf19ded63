package delay_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestTasksRunWhenTheyAreDue(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		began := time.Now()
		stop := f.run(f.queue, 2, func(_ context.Context, t *delay.Task) error {
			runs.add("%s %s after %v, %v late, attempt %d",
				t.Key(), t.Payload(), time.Since(began), t.Late(), t.Attempt())
			return nil
		})
		f.put("b", 2*time.Minute, delay.Created)
		f.put("a", time.Minute, delay.Created)
		f.put("c", time.Hour, delay.Created)
		time.Sleep(time.Minute - time.Millisecond)
		runs.is(f)
		time.Sleep(time.Millisecond)
		runs.is(f, "a of a after 1m0s, 0s late, attempt 1")
		f.put("c", time.Second, delay.Moved)
		time.Sleep(time.Hour)
		runs.is(f, "c of c after 1m1s, 0s late, attempt 1", "b of b after 2m0s, 0s late, attempt 1")
		f.want(stop(), context.Canceled)
		if counts, err := f.queue.Count(f.Context()); err != nil || counts != (delay.Counts{}) {
			f.Errorf("%+v, %v", counts, err)
		}
	})
}

// A failed task runs again after the back-off, and is buried after its last attempt.
func TestFailures(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		began := time.Now()
		stop := f.run(f.queue, 1, func(_ context.Context, t *delay.Task) error {
			runs.add("attempt %d after %v", t.Attempt(), time.Since(began))
			return errFailed
		})
		f.put("k", 0, delay.Created)
		runs.is(f, "attempt 1 after 0s")
		time.Sleep(time.Hour)
		runs.is(f, "attempt 2 after 1s", "attempt 3 after 3s")
		state := f.state("k", "buried")
		if state.Reason != errFailed.Error() || state.Attempt != 3 || state.Expires > 30*24*time.Hour {
			f.Errorf("%+v", state)
		}
		buried := 0
		for s, err := range f.queue.Buried(f.Context()) {
			if f.want(err, nil); s.Key != "k" || s.ID != state.ID {
				f.Errorf("%+v", s)
			}
			buried++
		}
		if buried != 1 {
			f.Errorf("%d are buried", buried)
		}
		if revived, err := f.queue.Revive(f.Context(), "k"); err != nil || !revived {
			f.Errorf("revived: %t, %v", revived, err)
		}
		runs.is(f, "attempt 1 after 1h0m0s")
		if revived, err := f.queue.Revive(f.Context(), "k"); err != nil || revived {
			f.Errorf("revived: %t, %v", revived, err)
		}
		f.want(stop(), context.Canceled)
	}, delay.WithAttempts(3), delay.WithBackoff(func(attempt int) time.Duration {
		return time.Duration(attempt) * time.Second
	}))
}

func TestErrorsOfAgainAndBury(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		began := time.Now()
		stop := f.run(f.queue, 1, func(_ context.Context, t *delay.Task) error {
			runs.add("attempt %d after %v", t.Attempt(), time.Since(began))
			if time.Since(began) < 2*time.Minute {
				return fmt.Errorf("not yet: %w", delay.Again(time.Minute))
			}
			return fmt.Errorf("no use: %w", delay.Bury(errFailed))
		})
		f.put("k", 0, delay.Created)
		time.Sleep(time.Hour)
		runs.is(f, "attempt 1 after 0s", "attempt 1 after 1m0s", "attempt 1 after 2m0s")
		if state := f.state("k", "buried"); state.Reason != errFailed.Error() {
			f.Errorf("%+v", state)
		}
		f.want(stop(), context.Canceled)
	}, delay.WithAttempts(1))
}

// A task can be settled by its methods, once.
func TestSettledByMethods(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("k", 0, delay.Created)
		task, err := f.queue.Take(f.Context())
		f.want(err, nil)
		f.state("k", "running")
		f.want(task.Again(f.Context(), time.Minute), nil)
		f.want(task.Done(f.Context()), delay.ErrSettled)
		f.want(context.Cause(task.Context()), delay.ErrSettled)
		if state := f.state("k", "waiting"); state.Due != time.Minute || state.Attempt != 1 {
			f.Errorf("%+v", state)
		}
		again, err := f.queue.Take(f.Context())
		f.want(err, nil)
		if again.ID() != task.ID() || again.Fence() <= task.Fence() || again.Attempt() != 2 {
			f.Errorf("%s, fence %d, attempt %d; before %s, fence %d",
				again.ID(), again.Fence(), again.Attempt(), task.ID(), task.Fence())
		}
		found, ok := delay.FromContext(again.Context())
		if !ok || found != again {
			f.Error("the context has not the task")
		}
		f.want(again.Bury(f.Context(), strings.Repeat("x", 1000)), nil)
		if state := f.state("k", "buried"); len(state.Reason) != store.MaxReason {
			f.Errorf("a reason of %d bytes", len(state.Reason))
		}
		f.put("k", 0, delay.Created)
		third, err := f.queue.Take(f.Context())
		f.want(err, nil)
		if third.ID() == task.ID() {
			f.Error("another task has the same ID")
		}
		type req = store.SettleTaskRequest
		fails := func(context.Context, store.Delays, req) (bool, error) { return false, errFailed }
		f.want(third.SettleBy(f.Context(), fails), errFailed)
		settles := func(ctx context.Context, st store.Delays, r req) (bool, error) {
			owned, err := st.SettleTasks(ctx, []req{r})
			return owned[0], err
		}
		f.want(third.SettleBy(f.Context(), settles), nil)
		f.want(third.Done(f.Context()), delay.ErrSettled)
		_, err = f.queue.Cancel(f.Context(), "k")
		f.want(err, nil)
		_, err = f.queue.Inspect(f.Context(), "k")
		f.want(err, delay.ErrNoTask)
	})
}

// A step that fails after a long time leaves the task with its worker.
func TestTheLeaseIsRenewedDuringAStep(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("k", 0, delay.Created)
		task, err := f.queue.Take(f.Context())
		f.want(err, nil)
		for range 2 {
			f.want(task.SettleBy(f.Context(), func(context.Context, store.Delays, store.SettleTaskRequest) (bool, error) {
				time.Sleep(time.Minute)
				return false, errFailed
			}), errFailed)
			f.want(context.Cause(task.Context()), nil)
			f.state("k", "running")
			time.Sleep(time.Minute)
		}
		f.want(context.Cause(task.Context()), nil)
		f.want(task.Done(f.Context()), nil)
	})
}

func TestCancels(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.cancels("k", delay.Absent)
		f.put("k", time.Minute, delay.Created)
		f.cancels("k", delay.Prevented)
		runs := make(log, 10)
		stop := f.run(f.queue, 1, func(ctx context.Context, t *delay.Task) error {
			runs.add("%s", t.Key())
			time.Sleep(time.Minute)
			return errFailed
		})
		f.put("k", 0, delay.Created)
		runs.is(f, "k")
		f.put("k", 0, delay.Follows)
		f.cancels("k", delay.Running)
		time.Sleep(time.Hour)
		runs.is(f)
		f.cancels("k", delay.Absent)
		f.put("again", 0, delay.Created)
		time.Sleep(time.Minute)
		runs.is(f, "again")
		time.Sleep(100 * time.Millisecond)
		f.cancels("again", delay.Ended)
		time.Sleep(time.Hour)
		runs.is(f)
		f.want(stop(), context.Canceled)
	})
}

// A lease is renewed while its task runs. A put during the run follows it.
func TestLongRuns(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		var running atomic.Int32
		fn := func(ctx context.Context, t *delay.Task) error {
			if n := running.Add(1); n != 1 {
				f.Errorf("%d run", n)
			}
			defer running.Add(-1)
			runs.add("begins")
			time.Sleep(10 * time.Minute)
			runs.add("ends %v", ctx.Err())
			return nil
		}
		first, second := f.run(f.queue, 2, fn), f.run(f.another(), 2, fn)
		f.put("k", 0, delay.Created)
		synctest.Wait()
		f.put("k", 0, delay.Follows)
		time.Sleep(time.Hour)
		runs.is(f, "begins", "ends <nil>", "begins", "ends <nil>")
		f.want(first(), context.Canceled)
		f.want(second(), context.Canceled)
	})
}

// A worker that cannot renew its lease stops, and another one has the task.
func TestExpiry(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("k", 0, delay.Created)
		task, err := f.queue.Take(f.Context())
		f.want(err, nil)
		f.store.Break(storetest.RenewTasks, storetest.Down)
		began := time.Now()
		<-task.Context().Done()
		if d := time.Since(began); d > 5*time.Second {
			f.Errorf("its context has lasted for %v", d)
		}
		f.want(context.Cause(task.Context()), delay.ErrExpired)
		next, err := f.another().Take(f.Context())
		f.want(err, nil)
		if d := time.Since(began); d > 5*time.Second+time.Millisecond {
			f.Errorf("after %v", d)
		}
		if next.Attempt() != 2 || next.ID() != task.ID() || next.Fence() <= task.Fence() {
			f.Errorf("attempt %d at %s, fence %d", next.Attempt(), next.ID(), next.Fence())
		}
		f.want(task.Done(f.Context()), delay.ErrLost)
		f.store.Mend(storetest.Any)
		f.want(next.Done(f.Context()), nil)
	})
}

// lossy is a store that says that tasks are lost.
type lossy struct{ store.Delays }

func (lossy) RenewTasks(_ context.Context, refs []store.TaskRef) ([]bool, error) {
	return make([]bool, len(refs)), nil
}

func TestLoss(t *testing.T) {
	inBubble(t, func(f fixture) {
		q, err := delay.New(lossy{f.store}, "unpaid")
		f.want(err, nil)
		f.put("k", 0, delay.Created)
		task, err := q.Take(f.Context())
		f.want(err, nil)
		<-task.Context().Done()
		f.want(context.Cause(task.Context()), delay.ErrLost)
		f.want(task.Done(f.Context()), delay.ErrLost)
	})
}

// Replies that are lost change nothing but times.
func TestLostReplies(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		stop := f.run(f.queue, 1, func(_ context.Context, t *delay.Task) error {
			runs.add("%s, attempt %d", t.Key(), t.Attempt())
			return nil
		})
		f.store.BreakNext(storetest.PutTask, storetest.LostReply, 2)
		f.put("put", time.Minute, delay.Created)
		f.store.BreakNext(storetest.PutTask, storetest.LostReply, 3)
		_, err := f.queue.Put(f.Context(), "unknown", nil, 24*time.Hour)
		f.want(err, store.ErrUnconfirmed)
		f.store.BreakNext(storetest.CancelTask, storetest.LostReply, 2)
		f.cancels("unknown", delay.Prevented)
		f.store.BreakNext(storetest.SettleTasks, storetest.LostReply, 3)
		time.Sleep(time.Minute)
		runs.is(f, "put, attempt 1")
		time.Sleep(time.Hour)
		runs.is(f)
		f.store.BreakNext(storetest.TakeTasks, storetest.LostReply, 1)
		f.put("taken", 0, delay.Created)
		time.Sleep(store.FirstTaskLease)
		time.Sleep(3 * time.Second)
		runs.is(f, "taken, attempt 2")
		f.want(stop(), context.Canceled)
	})
}

// While the store is down, Run tries again, and Take returns the error.
func TestOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := make(log, 10)
		f.store.Break(storetest.Any, storetest.Down)
		stop := f.run(f.queue, 1, func(_ context.Context, t *delay.Task) error {
			runs.add("%s", t.Key())
			return nil
		})
		time.Sleep(time.Minute) // it is down from the start
		f.store.Mend(storetest.Any)
		f.put("k", time.Minute, delay.Created)
		f.store.Break(storetest.Any, storetest.Down)
		time.Sleep(time.Hour)
		_, err := f.queue.Take(f.Context())
		f.want(err, store.ErrUnavailable)
		_, err = f.queue.Put(f.Context(), "other", nil, 0)
		f.want(err, store.ErrUnavailable)
		f.store.Mend(storetest.Any)
		time.Sleep(3 * time.Second)
		runs.is(f, "k")
		f.want(stop(), context.Canceled)
	})
}

// The end of Run's context, and the shutdown of the store, give tasks back without counting the
// attempt. Functions that return nil have done their tasks.
func TestShutdown(t *testing.T) {
	for name, end := range map[string]func(f fixture, stop func() error) error{
		"context":  func(_ fixture, stop func() error) error { return stop() },
		"shutdown": func(f fixture, _ func() error) error { return f.store.Shutdown(f.Context()) },
		"close":    func(f fixture, _ func() error) error { return f.queue.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				stop := f.run(f.queue, 2, func(ctx context.Context, t *delay.Task) error {
					<-ctx.Done()
					time.Sleep(4 * time.Second) // its lease ends within 5 s
					if t.Key() == "done" {
						return nil
					}
					return context.Cause(ctx)
				})
				f.put("done", 0, delay.Created)
				f.put("back", 0, delay.Created)
				time.Sleep(3 * time.Second)
				err := end(f, stop)
				if name == "context" {
					f.want(err, context.Canceled)
				} else {
					f.want(err, nil)
					f.want(stop(), delay.ErrClosed)
					_, err = f.queue.Put(f.Context(), "k", nil, 0)
					f.want(err, delay.ErrClosed)
					_, err = f.queue.Take(f.Context())
					f.want(err, delay.ErrClosed)
					f.cancels("k", delay.Absent)
				}
				if state := f.state("back", "waiting"); state.Attempt != 0 || state.Due > 0 {
					f.Errorf("%+v", state)
				}
				_, err = f.queue.Inspect(f.Context(), "done")
				f.want(err, delay.ErrNoTask)
			})
		})
	}
}

// A function that does not stop keeps the queue's Close waiting for 5 s, and its lease.
func TestCloseGivesUp(t *testing.T) {
	inBubble(t, func(f fixture) {
		stop := f.run(f.queue, 1, func(context.Context, *delay.Task) error {
			time.Sleep(time.Minute)
			return nil
		})
		f.put("k", 0, delay.Created)
		synctest.Wait()
		began := time.Now()
		err := f.queue.Close()
		took := time.Since(began)
		if err == nil || !strings.Contains(err.Error(), "1 tasks are not settled") || took != 5*time.Second {
			f.Errorf("%v after %v", err, took)
		}
		f.want(stop(), delay.ErrClosed)
		_, err = f.queue.Inspect(f.Context(), "k")
		f.want(err, delay.ErrNoTask) // its lease was renewed
	})
}

// Close ends calls that wait for tasks.
func TestCloseEndsWaitingCalls(t *testing.T) {
	inBubble(t, func(f fixture) {
		stop := f.run(f.queue, 1, func(context.Context, *delay.Task) error { return nil })
		took := make(chan error)
		go func() {
			_, err := f.queue.Take(context.Background())
			took <- err
		}()
		synctest.Wait()
		f.want(f.queue.Close(), nil)
		f.want(<-took, delay.ErrClosed)
		f.want(stop(), delay.ErrClosed)
	})
}

// Tasks that a take brings when the context has ended are given back.
func TestLateTake(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("k", 0, delay.Created)
		ctx, cancel := context.WithCancel(f.Context())
		f.store.Hook(nil, storetest.On(storetest.TakeTasks, func() error {
			cancel()
			return nil
		}))
		f.want(f.queue.Run(ctx, 1, func(context.Context, *delay.Task) error { return errFailed }), context.Canceled)
		f.store.Hook(nil, nil)
		if state := f.state("k", "waiting"); state.Attempt != 0 || state.Due > 0 {
			f.Errorf("%+v", state)
		}
	})
}

// A panic counts as a failed attempt, and Run panics when the other calls have returned.
func TestPanic(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("panics", 0, delay.Created)
		f.put("waits", 0, delay.Created)
		panicked := func() (value any) {
			defer func() { value = recover() }()
			return f.queue.Run(f.Context(), 2, func(ctx context.Context, t *delay.Task) error {
				if t.Key() == "waits" {
					<-ctx.Done()
					return ctx.Err()
				}
				time.Sleep(time.Second)
				panic("no more")
			})
		}()
		if text := fmt.Sprint(panicked); !strings.Contains(text, "no more") || !strings.Contains(text, "run_test.go") {
			f.Errorf("panicked with %v", panicked)
		}
		if state := f.state("panics", "waiting"); state.Attempt != 1 {
			f.Errorf("%+v", state)
		}
		if state := f.state("waits", "waiting"); state.Attempt != 0 {
			f.Errorf("%+v", state)
		}
	})
}

// text is an error whose text panics.
type text struct{}

func (text) Error() string { panic("no more") }

// A panic of the back-off, and of the text of an error, is as one of the function: the task is given
// back, for the default back-off, and Run panics.
func TestPanicAfterTheFunction(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		opts []delay.Option
	}{
		"back-off": {errFailed, []delay.Option{delay.WithBackoff(func(int) time.Duration { panic("no more") })}},
		"text":     {text{}, []delay.Option{delay.WithAttempts(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.put("k", 0, delay.Created)
				f.put("waits", 0, delay.Created)
				panicked := func() (value any) {
					defer func() { value = recover() }()
					return f.queue.Run(f.Context(), 2, func(ctx context.Context, t *delay.Task) error {
						if t.Key() == "waits" {
							<-ctx.Done()
							return ctx.Err()
						}
						return c.err
					})
				}()
				said := fmt.Sprint(panicked)
				if !strings.Contains(said, "no more") || !strings.Contains(said, "run_test.go") {
					f.Errorf("panicked with %v", panicked)
				}
				state := f.state("k", "waiting")
				if state.Attempt != 1 || state.Due < 800*time.Millisecond || state.Due > 1200*time.Millisecond {
					f.Errorf("%+v", state)
				}
				if state := f.state("waits", "waiting"); state.Attempt != 0 {
					f.Errorf("%+v", state)
				}
			}, c.opts...)
		})
	}
}

func TestGoexit(t *testing.T) {
	inBubble(t, func(f fixture) {
		stop := f.run(f.queue, 1, func(context.Context, *delay.Task) error {
			runtime.Goexit()
			return nil
		})
		f.put("k", 0, delay.Created)
		synctest.Wait()
		if state := f.state("k", "waiting"); state.Attempt != 1 {
			f.Errorf("%+v", state)
		}
		f.want(stop(), context.Canceled)
	})
}

// A task whose workers die is buried after its last attempt, without another run.
func TestDeadWorkers(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.put("k", 0, delay.Created)
		f.store.Break(storetest.RenewTasks, storetest.Down)
		for range 2 {
			task, err := f.queue.Take(f.Context())
			f.want(err, nil)
			<-task.Context().Done()
		}
		runs := make(log, 1)
		stop := f.run(f.another(delay.WithAttempts(2)), 1, func(context.Context, *delay.Task) error {
			runs.add("it ran")
			return nil
		})
		time.Sleep(time.Minute)
		runs.is(f)
		if state := f.state("k", "buried"); !strings.Contains(state.Reason, "2 attempts") {
			f.Errorf("%+v", state)
		}
		f.want(stop(), context.Canceled)
	}, delay.WithAttempts(2))
}

// A payload that the queue has not written is damaged: its task is buried.
func TestDamage(t *testing.T) {
	inBubble(t, func(f fixture) {
		_, err := f.store.PutTask(f.Context(), store.PutTaskRequest{
			Queue: "unpaid", Key: "k", ID: strings.Repeat("x", 22), Payload: []byte("2"),
		})
		f.want(err, nil)
		stop := f.run(f.queue, 1, func(context.Context, *delay.Task) error { return errors.New("it ran") })
		if state := f.state("k", "buried"); state.Reason != "damaged" {
			f.Errorf("%+v", state)
		}
		f.want(stop(), context.Canceled)
	})
}

// spent puts tasks whose attempts are used up: the workers of these have died.
func (f fixture) spent(keys ...string) {
	f.Helper()
	for _, key := range keys {
		f.put(key, 0, delay.Created)
	}
	reply, err := f.store.TakeTasks(f.Context(), store.TakeTasksRequest{
		Queue: "unpaid", Owner: strings.Repeat("o", 22), Max: len(keys), Lease: time.Second,
	})
	if f.want(err, nil); len(reply.Tasks) != len(keys) {
		f.Fatalf("%d of %d tasks were taken", len(reply.Tasks), len(keys))
	}
	time.Sleep(time.Second)
}

// A task runs at once beside others of its take that are used up or damaged, also while these cannot
// be buried.
func TestBurialsDuringAnOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.spent("a", "b", "c")
		damaged := store.PutTaskRequest{Queue: "unpaid", Key: "d", ID: strings.Repeat("x", 22), Payload: []byte("2")}
		_, err := f.store.PutTask(f.Context(), damaged)
		f.want(err, nil)
		f.put("whole", 0, delay.Created)
		f.store.Break(storetest.SettleTasks, storetest.Down)
		runs := make(log, 1)
		stop := f.run(f.queue, 10, func(_ context.Context, t *delay.Task) error {
			runs.add("%s, attempt %d", t.Key(), t.Attempt())
			return nil
		})
		runs.is(f, "whole, attempt 1")
		time.Sleep(3 * time.Second)
		f.store.Mend(storetest.SettleTasks)
		time.Sleep(2 * time.Second) // the longest pause between two calls
		for key, reason := range map[string]string{"a": "1 attempts", "b": "1 attempts", "c": "1 attempts", "d": "damaged"} {
			if state := f.state(key, "buried"); !strings.Contains(state.Reason, reason) {
				f.Errorf("%+v", state)
			}
		}
		_, err = f.queue.Inspect(f.Context(), "whole")
		f.want(err, delay.ErrNoTask)
		f.want(stop(), context.Canceled)
	}, delay.WithAttempts(1))
}

// A task that cannot be buried by the end of its lease is buried after a later take.
func TestBurialsAfterALongOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.spent("a")
		f.store.Break(storetest.SettleTasks, storetest.Down)
		stop := f.run(f.queue, 1, func(context.Context, *delay.Task) error { return errors.New("it ran") })
		time.Sleep(time.Minute)
		f.store.Mend(storetest.SettleTasks)
		time.Sleep(store.FirstTaskLease + time.Second)
		f.state("a", "buried")
		f.want(stop(), context.Canceled)
	}, delay.WithAttempts(1))
}

// A Take returns a task, or the error of its context, while others cannot be buried or given back.
func TestTakesDuringAnOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.spent("a")
		f.put("whole", 0, delay.Created)
		f.store.Break(storetest.SettleTasks, storetest.Down)
		began := time.Now()
		task, err := f.queue.Take(f.Context())
		if f.want(err, nil); task.Key() != "whole" || time.Since(began) != 0 {
			f.Errorf("%s after %v", task.Key(), time.Since(began))
		}
		f.put("late", 0, delay.Created)
		ctx, cancel := context.WithCancel(f.Context())
		f.store.Hook(nil, storetest.On(storetest.TakeTasks, func() error {
			cancel()
			return nil
		}))
		_, err = f.queue.Take(ctx)
		if f.want(err, context.Canceled); time.Since(began) != 0 {
			f.Errorf("cancelled after %v", time.Since(began))
		}
		f.store.Mend(storetest.SettleTasks)
		f.want(task.Done(f.Context()), nil)
		f.want(f.queue.Close(), nil)
		f.state("a", "buried")
		f.state("late", "waiting")
	}, delay.WithAttempts(1))
}

func TestBadInput(t *testing.T) {
	inBubble(t, func(f fixture) {
		put := func(key string, size int, after time.Duration, want error) {
			f.Helper()
			_, err := f.queue.Put(f.Context(), key, make([]byte, size), after)
			f.want(err, want)
		}
		put("", 0, 0, delay.ErrInvalidKey)
		put(strings.Repeat("k", 1025), 0, 0, delay.ErrInvalidKey)
		put("k", 101, 0, delay.ErrInvalidPayload)
		put("k", 0, -1, delay.ErrInvalidDelay)
		put("k", 0, 366*24*time.Hour+1, delay.ErrInvalidDelay)
		_, err := f.queue.Cancel(f.Context(), "")
		f.want(err, delay.ErrInvalidKey)
		_, err = f.queue.Inspect(f.Context(), "")
		f.want(err, delay.ErrInvalidKey)
		if err := f.queue.Run(f.Context(), 0, func(context.Context, *delay.Task) error { return nil }); err == nil {
			f.Error("Run with n = 0")
		}
		if err := f.queue.Run(f.Context(), 1, nil); err == nil {
			f.Error("Run without a function")
		}
		if calls := f.store.Calls(storetest.Any); calls != 0 {
			f.Errorf("%d calls of the store", calls)
		}
		put(strings.Repeat("k", 1024), 100, 366*24*time.Hour, nil)
		put("other", 0, 0, delay.ErrFull)
	}, delay.WithMaxPayload(100), delay.WithMaxTasks(1))
	st := storetest.NewFaulty(nil)
	for _, opts := range [][]delay.Option{
		{delay.WithLease(0)}, {delay.WithLease(25 * time.Hour)}, {delay.WithAttempts(0)},
		{delay.WithMaxPayload(-1)}, {delay.WithMaxPayload(1 << 20)},
		{delay.WithMaxTasks(0)}, {delay.WithBuriedFor(0)}, {delay.WithHolder(strings.Repeat("x", 257))},
	} {
		if _, err := delay.New(st, "n", opts...); err == nil {
			t.Error("New accepts what is out of range")
		}
	}
	for _, name := range []string{"", "ü", strings.Repeat("x", 129)} {
		if _, err := delay.New(st, name); err == nil {
			t.Errorf("New accepts the name %q", name)
		}
	}
	if _, err := delay.New(nil, "n"); err == nil {
		t.Error("New accepts a nil store")
	}
}
