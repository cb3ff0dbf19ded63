package memstore

import (
	"context"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// tasks are the delayed tasks of a store.
type tasks struct {
	mu     sync.RWMutex
	queues map[string]*taskQueue
	bytes  atomic.Int64
	limit  int64
}

func (ts *tasks) init(limit int) {
	ts.queues = make(map[string]*taskQueue)
	ts.limit = int64(limit)
}

// queue returns a queue, which is kept from its first use on.
func (ts *tasks) queue(name string) *taskQueue {
	ts.mu.RLock()
	q := ts.queues[name]
	ts.mu.RUnlock()
	if q != nil {
		return q
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if q = ts.queues[name]; q == nil {
		q = newTaskQueue(&ts.bytes)
		ts.queues[strings.Clone(name)] = q
	}
	return q
}

func (ts *tasks) full(payload []byte) bool {
	return ts.bytes.Load()+taskBytes+int64(len(payload)) > ts.limit
}

func (ts *tasks) count() (n int) {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	for _, q := range ts.queues {
		q.mu.Lock()
		n += len(q.tasks) + q.buried.Len()
		q.mu.Unlock()
	}
	return n
}

// inQueue runs a step on a queue.
func inQueue[T any](s *Store, name string, step func(q *taskQueue, now int64) T) T {
	q := s.tasks.queue(name)
	q.mu.Lock()
	defer q.mu.Unlock()
	return step(q, s.now())
}

// PutTask implements store.Delays.
func (s *Store) PutTask(ctx context.Context, req store.PutTaskRequest) (reply store.PutTaskReply, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return reply, err
	}
	full := s.tasks.full(req.Payload)
	err = inQueue(s, req.Queue, func(q *taskQueue, now int64) (err error) {
		reply, err = q.put(&req, full, now)
		return err
	})
	return reply, err
}

// CancelTask implements store.Delays.
func (s *Store) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	full := s.tasks.full(nil)
	return inQueue(s, req.Queue, func(q *taskQueue, now int64) store.CancelOutcome { return q.cancel(&req, full, now) }), nil
}

// TakeTasks implements store.Delays.
func (s *Store) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (store.TakeTasksReply, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return store.TakeTasksReply{}, err
	}
	sent := time.Now()
	return inQueue(s, req.Queue, func(q *taskQueue, now int64) store.TakeTasksReply {
		reply := store.TakeTasksReply{Sent: sent}
		q.take(&req, &s.fences, now, &reply)
		return reply
	}), nil
}

// AwaitTasks implements store.Delays.
func (s *Store) AwaitTasks(ctx context.Context, queue string, in time.Duration) error {
	if err := s.acceptsNew(ctx); err != nil {
		return err
	}
	q := s.tasks.queue(queue)
	changed, due := q.enter(s.now())
	defer q.leave()
	if in < 0 || due >= 0 && due < in {
		in = due
	}
	if in == 0 {
		return nil
	}
	var timer <-chan time.Time
	if in > 0 {
		t := time.NewTimer(in)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.hooks.Over():
		return store.ErrClosed
	}
	return nil
}

// RenewTasks implements store.Delays.
func (s *Store) RenewTasks(ctx context.Context, refs []store.TaskRef) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	owned := make([]bool, len(refs))
	for i := range refs {
		owned[i] = inQueue(s, refs[i].Queue, func(q *taskQueue, now int64) bool { return q.renew(&refs[i], now) })
	}
	return owned, nil
}

// SettleTasks implements store.Delays.
func (s *Store) SettleTasks(ctx context.Context, reqs []store.SettleTaskRequest) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	owned := make([]bool, len(reqs))
	for i := range reqs {
		owned[i] = inQueue(s, reqs[i].Queue, func(q *taskQueue, now int64) bool { return q.settle(&reqs[i], now) })
	}
	return owned, nil
}

// InspectTask implements store.TaskKeeper.
func (s *Store) InspectTask(ctx context.Context, queue, key string) (record store.TaskRecord, found bool, err error) {
	if record, found, err = s.inspectTask(ctx, queue, key, false); found || err != nil {
		return record, found, err
	}
	return s.inspectTask(ctx, queue, key, true)
}

// ListTasks implements store.TaskKeeper.
func (s *Store) ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[store.TaskRecord, error] {
	return func(yield func(store.TaskRecord, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(store.TaskRecord{}, err)
			return
		}
		for _, key := range s.tasks.queue(queue).keys(buried) {
			record, found, err := s.inspectTask(ctx, queue, key, buried)
			if (found || err != nil) && !yield(record, err) || err != nil {
				return
			}
		}
	}
}

func (s *Store) inspectTask(ctx context.Context, queue, key string, buried bool) (record store.TaskRecord, found bool, err error) {
	if err := s.ready(ctx); err != nil {
		return record, false, err
	}
	found = inQueue(s, queue, func(q *taskQueue, now int64) bool {
		record, found = q.inspect(key, buried, now)
		return found
	})
	return record, found, nil
}

// CountTasks implements store.TaskKeeper.
func (s *Store) CountTasks(ctx context.Context, queue string) (store.TaskCounts, error) {
	if err := s.ready(ctx); err != nil {
		return store.TaskCounts{}, err
	}
	return inQueue(s, queue, (*taskQueue).count), nil
}

// ReviveTask implements store.TaskKeeper.
func (s *Store) ReviveTask(ctx context.Context, ref store.TaskRef) (bool, error) {
	if err := s.acceptsNew(ctx); err != nil {
		return false, err
	}
	return inQueue(s, ref.Queue, func(q *taskQueue, now int64) bool { return q.revive(&ref, now) }), nil
}
