package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A task is a row of tasks, which is locked by every step. See tasks.sql.

const putTaskSQL = `SELECT outcome, remaining, coalesce(size, -1), pushes
FROM lk.put_task_1($1, $2, $3, $4, $5, $6, $7, $8, false)`

// PutTask implements store.Delays: one statement. With MaxTasks it counts the tasks of the queue at
// times: see queueHints. Concurrent puts may exceed the bound by their number.
func (s *Store) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	if s.hooks.Begun() {
		return store.PutTaskReply{}, store.ErrClosed
	}
	args := s.putArgs(&req)
	call := statement.Call{Operation: opPutTask, Writes: true}
	p, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (p putReply, err error) {
		var pushes []string
		args[repeatedPut] = req.Repeated || statement.IsRepeat(ctx)
		err = c.QueryRow(ctx, s.db.Text(putTaskSQL), args...).Scan(&p.outcome, &p.remaining, &p.size, &pushes)
		if err == nil {
			s.db.Deliver(pushes)
		}
		return p, err
	})
	if err != nil {
		return store.PutTaskReply{}, err
	}
	return s.put(&req, p)
}

// repeatedPut is the index of the argument that says that the put may have been carried out before.
const repeatedPut = 6

// putArgs are the arguments of the function that puts.
func (s *Store) putArgs(req *store.PutTaskRequest) []any {
	return []any{
		req.Queue, []byte(req.Key), req.ID, append([]byte{}, req.Payload...), req.After.Microseconds(), req.Keep, req.Repeated,
		s.queues.bound(req.Queue, req.MaxTasks),
	}
}

// putReply is the reply of the function that puts.
type putReply struct {
	outcome   string
	remaining int64
	size      int64 // of the queue before the put, or -1
}

var putOutcomes = map[string]store.PutOutcome{
	"C": store.TaskCreated, "M": store.TaskMoved, "F": store.TaskFollows, "K": store.TaskKept, "full": store.QueueFull,
}

// put returns the reply to a put.
func (s *Store) put(req *store.PutTaskRequest, p putReply) (store.PutTaskReply, error) {
	outcome, known := putOutcomes[p.outcome]
	if !known {
		return store.PutTaskReply{}, fmt.Errorf("%w: pgstore: odd reply to a put: %q", store.ErrUnavailable, p.outcome)
	}
	if p.size >= 0 {
		s.queues.counted(req.Queue, req.MaxTasks, int(p.size))
	}
	return store.PutTaskReply{Outcome: outcome, Due: micros(p.remaining)}, nil
}

const cancelTaskSQL = `SELECT lk.cancel_task_1($1, $2, $3, $4, $5)`

// CancelTask implements store.Delays: one statement.
func (s *Store) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	call := statement.Call{Operation: opCancelTask, Writes: true}
	outcome, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (outcome string, err error) {
		err = c.QueryRow(ctx, s.db.Text(cancelTaskSQL), cancelArgs(&req)...).Scan(&outcome)
		return outcome, err
	})
	if err != nil {
		return 0, err
	}
	return cancelled(outcome)
}

// cancelArgs are the arguments of the function that cancels.
func cancelArgs(req *store.CancelTaskRequest) []any {
	return []any{req.Queue, []byte(req.Key), req.ID, store.CancelRemembered.Microseconds(), req.Task}
}

var cancelOutcomes = map[string]store.CancelOutcome{
	"A": store.TaskAbsent, "P": store.TaskPrevented, "E": store.TaskEnded, "R": store.TaskRunning,
}

// cancelled returns the outcome of a cancel.
func cancelled(letter string) (store.CancelOutcome, error) {
	outcome, known := cancelOutcomes[letter]
	if !known {
		return 0, fmt.Errorf("%w: pgstore: odd reply to a cancel: %q", store.ErrUnavailable, letter)
	}
	return outcome, nil
}

const takeTasksSQL = `SELECT key, coalesce(put, ''), payload, coalesce(attempt, 0), coalesce(fence, 0),
  coalesce(due, 0), coalesce(late, 0), coalesce(next, -1), coalesce(idle, 0)
FROM lk.take_tasks_1($1, $2, $3, $4, $5, $6, $7)`

// TakeTasks implements store.Delays: one statement. The payloads of its tasks are about 16 MiB at
// most.
func (s *Store) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (reply store.TakeTasksReply, err error) {
	if s.hooks.Begun() {
		return reply, store.ErrClosed
	}
	lease := min(req.Lease, store.FirstTaskLease)
	from := s.queues.from(req.Queue)
	call := statement.Call{Operation: opTakeTasks, Writes: true}
	t, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (t takeReply, err error) {
		t.Sent = time.Now()
		rows, err := c.Query(ctx, s.db.Text(takeTasksSQL), req.Queue, req.Owner, req.Max, lease.Microseconds(),
			holderOf(req.Holder), s.db.Inbox(), from)
		if err != nil {
			return t, err
		}
		return t, t.read(rows, lease)
	})
	if err != nil {
		return reply, err
	}
	s.queues.took(req.Queue, from, t.first)
	return t.TakeTasksReply, nil
}

// takeReply is the reply to a take.
type takeReply struct {
	store.TakeTasksReply
	first int64 // when the first of the tasks was due; or 0
}

// read reads the rows of a take.
func (t *takeReply) read(rows pgx.Rows, lease time.Duration) error {
	var (
		key                   []byte
		due, late, next, idle int64
		task                  store.TakenTask
	)
	into := []any{&key, &task.ID, &task.Payload, &task.Attempt, &task.Fence, &due, &late, &next, &idle}
	_, err := pgx.ForEachRow(rows, into, func() error {
		if key == nil { // the last row
			t.Next, t.Idle = micros(next), int(idle)
			return nil
		}
		if t.first == 0 || due < t.first {
			t.first = due
		}
		task.Key, task.Late, task.TTL = string(key), micros(late), lease
		t.Tasks = append(t.Tasks, task)
		task.Payload = nil
		return nil
	})
	if t.Next < 0 {
		t.Next = -1
	}
	slices.SortFunc(t.Tasks, func(a, b store.TakenTask) int { return cmp.Compare(b.Late, a.Late) })
	return err
}

// duePush is the push for a task that is due earlier than the first one of its queue.
func duePush(queue string) string { return "due " + queue }

// freshCheck is the time after which a process that has begun to wait checks again. A put that was
// in progress, and has not seen its inbox, has ended by then.
const freshCheck = 50 * time.Millisecond

// head is what a check finds: when the first task of a queue is due, and how long it is until then,
// or 0 and -1 if there is none.
type head struct {
	due, remaining int64
	fresh          bool // the process was not registered before
}

// AwaitTasks implements store.Delays. It waits for a push, and checks every three seconds, and once
// soon after it has begun.
func (s *Store) AwaitTasks(ctx context.Context, queue string, in time.Duration) error {
	var limit, due time.Time // zero if there is none
	if in >= 0 {
		limit = time.Now().Add(in)
	}
	return s.waiting.AwaitPush(ctx, duePush(queue), func(pushed bool) (bool, time.Duration, error) {
		if pushed {
			s.queues.saw(queue, 0) // the take that follows searches for what was put
		}
		if pushed || passed(limit) || passed(due) {
			return true, 0, nil
		}
		h, err := s.head(ctx, queue)
		if err != nil || h.remaining == 0 {
			return err == nil, 0, err
		}
		times := []time.Time{limit}
		if due = (time.Time{}); h.remaining > 0 {
			due = time.Now().Add(micros(h.remaining))
			times = append(times, due)
		}
		if h.fresh {
			times = append(times, time.Now().Add(freshCheck))
		}
		return false, untilFirst(times), nil
	})
}

// head registers the process for tasks that are due earlier than the first one.
func (s *Store) head(ctx context.Context, queue string) (head, error) {
	call := statement.Call{Operation: opTakeTasks, Writes: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (h head, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT coalesce(due, 0), coalesce(remaining, -1), coalesce(fresh, false)
			FROM lk.await_tasks_1($1, $2, $3)`), queue, s.db.Inbox(), waiting.NoticeLife.Microseconds()).
			Scan(&h.due, &h.remaining, &h.fresh)
		if err == nil && h.due != 0 {
			s.queues.saw(queue, h.due)
		}
		return h, err
	})
}

// passed reports whether a time that is not zero has passed.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// untilFirst returns the time until the first of several times that are not zero; zero if there is
// none.
func untilFirst(times []time.Time) (d time.Duration) {
	for _, t := range times {
		if left := max(time.Until(t), 1); !t.IsZero() && (d == 0 || left < d) {
			d = left
		}
	}
	return d
}
