package redisstore

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// taskKeys returns the keys of a queue: scripts/lib/task.lua says what each has.
func (s *Store) taskKeys(queue string) []string {
	stem := s.config.prefix + ofTasks + s.tag(queue, "") + "}"
	return []string{stem, stem + "s", stem + "p", stem + "b", stem + "w"}
}

// keysOfTask returns the keys of a queue, and the one with the outcome of the last cancel of a key.
func (s *Store) keysOfTask(queue, key string) []string {
	keys := s.taskKeys(queue)
	return append(keys, keys[0]+"x"+s.tag(queue, key))
}

// taskFields returns the fields of a reply, after the first one, which is the number of damaged
// tasks that the script has buried: these are logged.
func (s *Store) taskFields(ctx context.Context, queue string, reply any) *script.Reader {
	fields := script.Fields(reply)
	if n := fields.Number(); n > 0 {
		s.redis.LogDamage(ctx, "policy", queue, "tasks", n)
	}
	return fields
}

// PutTask implements store.Delays: one script call.
func (s *Store) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	if s.hooks.Begun() {
		return store.PutTaskReply{}, store.ErrClosed
	}
	call := putTask.Call(s.keysOfTask(req.Queue, req.Key), req.Key, req.ID, req.Payload, ceilMicros(req.After),
		digit(req.Keep), req.MaxTasks, sendsOf(req.Repeated))
	st := script.Step{Call: call, Operation: opPutTask, Begins: true}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (store.PutTaskReply, error) {
		fields := s.taskFields(ctx, req.Queue, r.Value)
		outcome, due := fields.Number(), fields.Micros()
		if outcome < 0 || outcome > int64(store.QueueFull) {
			return store.PutTaskReply{}, script.ErrOddReply
		}
		return store.PutTaskReply{Outcome: store.PutOutcome(outcome), Due: due}, fields.Err
	})
}

// CancelTask implements store.Delays: one script call.
func (s *Store) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	call := cancelTask.Call(s.keysOfTask(req.Queue, req.Key), req.Key, req.ID,
		store.CancelRemembered.Milliseconds(), req.Task)
	st := script.Step{Call: call, Operation: opCancelTask, Urgency: script.Finishing}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (store.CancelOutcome, error) {
		fields := s.taskFields(ctx, req.Queue, r.Value)
		n := fields.Number()
		if n < 0 || n > int64(store.TaskRunning) {
			return 0, script.ErrOddReply
		}
		return store.CancelOutcome(n), fields.Err
	})
}

// maxTakenBytes bounds the payloads of a reply, about: see take_tasks.lua.
const maxTakenBytes = 256<<10 + store.MaxTaskPayload

// TakeTasks implements store.Delays: one script call. It takes fewer than Max tasks if their
// payloads are larger than 256 KiB.
func (s *Store) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (store.TakeTasksReply, error) {
	if s.hooks.Begun() {
		return store.TakeTasksReply{}, store.ErrClosed
	}
	lease := min(req.Lease, store.FirstTaskLease)
	call := takeTasks.Call(s.taskKeys(req.Queue), req.Owner, req.Max, ceilMicros(lease), req.Holder, s.inbox.channel)
	st := script.Step{Call: call, Operation: opTakeTasks, Begins: true, ReplySize: maxTakenBytes}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (store.TakeTasksReply, error) {
		fields := s.taskFields(ctx, req.Queue, r.Value)
		reply := store.TakeTasksReply{Sent: r.Sent, Next: microsOrNone(fields.Number()), Idle: int(fields.Number())}
		for len(fields.Left) > 0 && fields.Err == nil {
			reply.Tasks = append(reply.Tasks, store.TakenTask{
				Key: fields.Text(), ID: fields.Text(), Payload: []byte(fields.Text()), Attempt: int(fields.Number()), Fence: fields.Number(),
				Late: fields.Micros(), TTL: lease,
			})
		}
		return reply, fields.Err
	})
}

func microsOrNone(n int64) time.Duration {
	if n < 0 {
		return -1
	}
	return time.Duration(n) * time.Microsecond
}

// AwaitTasks implements store.Delays. It waits for a push and for the time at which the first task
// is due, and asks for that every three seconds.
func (s *Store) AwaitTasks(ctx context.Context, queue string, in time.Duration) error {
	keys := s.taskKeys(queue)
	var due time.Time
	if in >= 0 {
		due = time.Now().Add(in)
	}
	return s.waiting.AwaitPush(ctx, "due "+keys[0], func(pushed bool) (bool, time.Duration, error) {
		if pushed || !due.IsZero() && !time.Now().Before(due) {
			return true, 0, nil
		}
		call := awaitTasks.Call(keys, s.inbox.channel, waiting.NoticeLife.Milliseconds())
		left, err := script.Run(ctx, s.redis, script.Step{Call: call, Operation: opTakeTasks, Begins: true},
			func(r script.Reply) (int, error) { return script.Int(r.Value) })
		if err != nil || left < 0 {
			return false, 0, err
		}
		wait := time.Duration(left) * time.Microsecond
		due = time.Now().Add(wait)
		return left == 0, wait, nil
	})
}

// RenewTasks implements store.Delays: one script call for each hundred of a queue.
func (s *Store) RenewTasks(ctx context.Context, refs []store.TaskRef) ([]bool, error) {
	return s.taskSteps(ctx, opRenewTasks, renewTasks, len(refs), func(i int) (queue string, args []any) {
		r := &refs[i]
		return r.Queue, []any{r.Key, r.ID, r.Owner, ceilMicros(r.Lease)}
	})
}

var settlements = [...]string{store.TaskDone: "done", store.TaskAgain: "again", store.TaskBuried: "buried"}

// SettleTasks implements store.Delays: one script call for each hundred of a queue.
func (s *Store) SettleTasks(ctx context.Context, reqs []store.SettleTaskRequest) ([]bool, error) {
	return s.taskSteps(ctx, opSettleTasks, settleTasks, len(reqs), func(i int) (queue string, args []any) {
		r := &reqs[i]
		how := settlements[r.How]
		if r.How == store.TaskAgain && r.Uncounted {
			how = "uncounted"
		}
		return r.Queue, []any{r.Key, r.ID, r.Owner, how, ceilMicros(r.After), r.Reason, sendsOf(r.Repeated)}
	})
}

// taskSteps runs a script for each hundred of n steps on the same queue. The script returns 1 or 0
// for each step. With an error, the outcomes that are true hold nevertheless.
func (s *Store) taskSteps(
	ctx context.Context, op script.Operation, sc *script.Script, n int, of func(i int) (queue string, args []any),
) ([]bool, error) {
	var (
		calls  []script.Call
		queues []string // of each call
		steps  [][]int  // of each call
		last   = make(map[string]int)
	)
	for i := range n {
		queue, args := of(i)
		at, ok := last[queue]
		if !ok || len(steps[at]) == maxTaskSteps {
			at = len(calls)
			last[queue] = at
			calls, steps = append(calls, sc.Call(s.taskKeys(queue))), append(steps, nil)
			queues = append(queues, queue)
		}
		calls[at].Args, steps[at] = append(calls[at].Args, args...), append(steps[at], i)
	}
	owned := make([]bool, n)
	err := s.redis.RunEach(ctx, op, script.Finishing, calls, func(c int, reply any, err error) error {
		if err != nil {
			return err
		}
		fields := s.taskFields(ctx, queues[c], reply)
		for _, i := range steps[c] {
			owned[i] = fields.Number() == 1
		}
		return fields.Err
	})
	return owned, err
}

// maxTaskSteps bounds a script call, since other requests wait for it.
const maxTaskSteps = 100

// InspectTask implements store.TaskKeeper: one script call.
func (s *Store) InspectTask(ctx context.Context, queue, key string) (record store.TaskRecord, found bool, err error) {
	records, _, err := s.inspectTasks(ctx, queue, "key", key)
	if err != nil || len(records) == 0 {
		return record, false, err
	}
	return records[0], true, nil
}

// ListTasks implements store.TaskKeeper: one script call for about a hundred tasks.
func (s *Store) ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[store.TaskRecord, error] {
	kind := "l"
	if buried {
		kind = "b"
	}
	return func(yield func(store.TaskRecord, error) bool) {
		for cursor := "0"; ; {
			records, next, err := s.inspectTasks(ctx, queue, "list", kind, cursor)
			if err != nil {
				yield(store.TaskRecord{}, err)
				return
			}
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
			if cursor = next; cursor == "0" {
				return
			}
		}
	}
}

var taskStates = map[string]store.TaskState{"W": store.TaskWaiting, "R": store.TaskTaken, "B": store.TaskKeptBuried}

func (s *Store) inspectTasks(ctx context.Context, queue string, args ...any) (records []store.TaskRecord, cursor string, err error) {
	st := script.Step{Call: inspectTask.Call(s.taskKeys(queue), args...), Operation: opInspectTasks, Urgency: script.Reading}
	records, err = script.Run(ctx, s.redis, st, func(reply script.Reply) (records []store.TaskRecord, err error) {
		fields := s.taskFields(ctx, queue, reply.Value)
		cursor = fields.Text()
		for len(fields.Left) > 0 && fields.Err == nil {
			r := store.TaskRecord{Key: fields.Text(), ID: fields.Text()}
			state, ok := taskStates[fields.Text()]
			if !ok {
				return nil, script.ErrOddReply
			}
			r.State, r.Bytes, r.Attempt, r.Fence, r.Follows = state, int(fields.Number()), int(fields.Number()), fields.Number(), fields.Text() == "1"
			text, left, age := fields.Text(), time.Duration(fields.Number())*time.Microsecond, fields.Micros()
			switch state {
			case store.TaskTaken:
				r.Holder, r.Lease = text, left
			case store.TaskKeptBuried:
				r.Reason, r.Expires, r.Age = text, left, age
			default:
				r.Due = left
			}
			records = append(records, r)
		}
		return records, fields.Err
	})
	return records, cursor, err
}

// CountTasks implements store.TaskKeeper: one script call.
func (s *Store) CountTasks(ctx context.Context, queue string) (store.TaskCounts, error) {
	st := script.Step{Call: inspectTask.Call(s.taskKeys(queue), "count"), Operation: opInspectTasks, Urgency: script.Reading}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (store.TaskCounts, error) {
		fields := s.taskFields(ctx, queue, r.Value)
		return store.TaskCounts{
			Waiting: int(fields.Number()), Running: int(fields.Number()), Buried: int(fields.Number()), Oldest: fields.Micros(),
		}, fields.Err
	})
}

// ReviveTask implements store.TaskKeeper: one script call.
func (s *Store) ReviveTask(ctx context.Context, ref store.TaskRef) (bool, error) {
	if s.hooks.Begun() {
		return false, store.ErrClosed
	}
	st := script.Step{Call: reviveTask.Call(s.taskKeys(ref.Queue), ref.Key, ref.ID), Operation: opPutTask, Begins: true}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (bool, error) {
		fields := s.taskFields(ctx, ref.Queue, r.Value)
		return fields.Number() == 1, fields.Err
	})
}

// digit returns a condition as an argument of a script.
func digit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// ceilMicros returns a duration in µs, rounded up, so that no task is due too early.
func ceilMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }
