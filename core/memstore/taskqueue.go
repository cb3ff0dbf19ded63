package memstore

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// taskQueue has the tasks of a queue.
type taskQueue struct {
	mu        sync.Mutex
	tasks     map[string]*task // by key
	due       heap.Heap[*task]
	puts      uint64                              // how many tasks the heap has ever had
	buried    expiry.Table[string, buriedTask]    // by key
	cancelled expiry.Table[string, cancelledTask] // by key
	changed   chan struct{}                       // closed when the first task is due earlier
	waiting   int                                 // calls of AwaitTasks
	bytes     *atomic.Int64                       // of all tasks of the store
}

// task is a task that waits or runs.
type task struct {
	waitingTask
	key   string
	at    int64  // when it is due, or its lease ends
	order uint64 // among tasks that are due at the same time
	// Of the attempts.
	running   bool
	tried     bool   // an owner has had it
	lost      bool   // the lease of its last owner has ended
	cancelled bool   // no further attempt begins
	owner     string // of the attempt that runs, or that ended by TaskAgain
	holder    string
	attempt   int
	fence     int64

	follows *waitingTask
	index   int // in the heap
}

// waitingTask is what a put has put.
type waitingTask struct {
	id      string
	payload []byte
	due     int64
	outcome store.PutOutcome // for a repeat
	ran     bool             // perhaps, before this put of it
}

type buriedTask struct {
	id, reason string
	payload    []byte
	attempt    int
	fence      int64
	at         int64
}

// cancelledTask is what a repeat of a cancel returns, and the put whose repeats change nothing.
type cancelledTask struct {
	id, put string
	outcome store.CancelOutcome
}

// Before implements heap.Item.
func (t *task) Before(other *task) bool {
	return t.at < other.at || t.at == other.at && t.order < other.order
}

// Index implements heap.Item.
func (t *task) Index() *int { return &t.index }

func newTaskQueue(bytes *atomic.Int64) *taskQueue {
	q := &taskQueue{tasks: make(map[string]*task), changed: make(chan struct{}), bytes: bytes}
	// The store's bytes bound the tables.
	q.buried = expiry.NewTable[string](math.MaxInt, func(b *buriedTask) { q.free(b.payload) })
	q.cancelled = expiry.NewTable[string](math.MaxInt, func(*cancelledTask) { q.free(nil) })
	return q
}

// taskBytes is about what a task takes beside its payload, with a key of average length.
const taskBytes = 512

func (q *taskQueue) use(payload []byte)  { q.bytes.Add(taskBytes + int64(len(payload))) }
func (q *taskQueue) free(payload []byte) { q.bytes.Add(-taskBytes - int64(len(payload))) }

// find returns the task of a key, or nil. The task does not run unless its lease lasts.
func (q *taskQueue) find(key string, now int64) *task {
	t := q.tasks[key]
	if t != nil && t.running && t.at <= now && q.end(t, now) {
		return nil
	}
	return t
}

// end ends the lease of a task that runs: it waits. It returns true if the task was cancelled, and
// is removed.
func (q *taskQueue) end(t *task, now int64) (removed bool) {
	t.running, t.lost, t.owner, t.holder = false, true, "", ""
	switch {
	case t.follows != nil:
		q.follow(t, now)
		t.tried = true // its owner may not know yet
	case t.cancelled:
		q.remove(t)
		return true
	}
	return false
}

// follow has the task that follows take the place of the one that it follows. It is due after its
// end.
func (q *taskQueue) follow(t *task, now int64) {
	next := *t.follows
	q.free(t.payload)
	t.waitingTask, t.follows = next, nil
	t.due = max(t.due, min(t.at, now))
	t.at, t.attempt, t.owner, t.holder = t.due, 0, "", ""
	t.tried, t.lost, t.cancelled, t.running = next.ran, false, false, false
	q.schedule(t)
}

// schedule moves a task to its place in the heap, and wakes the calls of AwaitTasks if it has
// become the first.
func (q *taskQueue) schedule(t *task) {
	if t.index < 0 {
		q.puts++
		t.order = q.puts
		q.due.Push(t)
	} else {
		q.due.Fix(t)
	}
	if q.due[0] == t {
		q.wake()
	}
}

func (q *taskQueue) wake() {
	if q.waiting > 0 {
		close(q.changed)
		q.changed = make(chan struct{})
	}
}

func (q *taskQueue) remove(t *task) {
	q.due.Remove(t)
	delete(q.tasks, t.key)
	q.free(t.payload)
	q.unfollow(t)
}

func (q *taskQueue) unfollow(t *task) {
	if t.follows != nil {
		q.free(t.follows.payload)
		t.follows = nil
	}
}

// put carries out a PutTask. A full store takes no new task.
func (q *taskQueue) put(req *store.PutTaskRequest, full bool, now int64) (reply store.PutTaskReply, err error) {
	t := q.find(req.Key, now)
	c := q.cancelled.Get(req.Key, now)
	switch {
	case t != nil && t.id == req.ID:
		reply.Outcome = t.outcome
	case t != nil && t.follows != nil && t.follows.id == req.ID:
		reply.Outcome = store.TaskFollows
	case c != nil && c.Value.put == req.ID:
		reply.Outcome = store.TaskKept
	case t != nil && req.Keep:
		reply.Outcome = store.TaskKept
		if !t.running {
			reply.Due = max(until(t.at, now), 0)
		}
	case t == nil && req.MaxTasks > 0 && !q.fits(req.MaxTasks, now):
		reply.Outcome = store.QueueFull
	case full:
		err = store.ErrFull
	default:
		reply.Outcome = q.add(t, req, now)
	}
	return reply, err
}

// add puts a task, beside the key's one if that is not nil.
func (q *taskQueue) add(t *task, req *store.PutTaskRequest, now int64) store.PutOutcome {
	put := waitingTask{strings.Clone(req.ID), append([]byte(nil), req.Payload...), now + micros(req.After), store.TaskCreated, req.Repeated}
	q.use(put.payload)
	switch {
	case t == nil:
		t = &task{key: strings.Clone(req.Key), waitingTask: put, at: put.due, tried: put.ran, index: -1}
		q.tasks[t.key] = t
		q.schedule(t)
	case t.running:
		put.outcome = store.TaskFollows
		q.unfollow(t)
		t.follows = &put
	default:
		put.outcome = store.TaskMoved
		t.follows = &put
		lost := t.lost
		q.follow(t, now)
		t.tried = t.tried || lost // its owner may not know yet
	}
	return put.outcome
}

// fits reports whether the queue has room for one more task, after a sweep of buried ones.
func (q *taskQueue) fits(most int, now int64) bool {
	if len(q.tasks)+q.buried.Len() >= most {
		q.buried.Sweep(expiry.SweepFull, now)
	}
	return len(q.tasks)+q.buried.Len() < most
}

// cancel carries out a CancelTask. A full store does not remember the cancels of keys without a
// task.
func (q *taskQueue) cancel(req *store.CancelTaskRequest, full bool, now int64) store.CancelOutcome {
	c := cancelledTask{id: strings.Clone(req.ID)}
	earlier := q.cancelled.Get(req.Key, now)
	if earlier != nil {
		if earlier.Value.id == req.ID {
			return earlier.Value.outcome
		}
		c.put = earlier.Value.put // a cancel of nothing forgets nothing
	}
	if b := q.buried.Get(req.Key, now); b != nil && (req.Task == "" || req.Task == b.Value.id) {
		q.buried.Remove(req.Key)
		c.outcome = store.TaskEnded
	}
	if t := q.find(req.Key, now); t != nil && (req.Task == "" || req.Task == t.id) {
		c.put, c.outcome = q.prevent(t, req.Task == "")
	}
	if c.outcome == store.TaskAbsent && (full || req.Task != "") {
		return c.outcome // without a record: a client could cancel any number of keys
	}
	if earlier != nil {
		q.cancelled.Remove(req.Key)
	}
	q.use(nil)
	q.cancelled.Add(strings.Clone(req.Key), c, now+micros(store.CancelRemembered), now)
	return c.outcome
}

// prevent cancels a task, and the one that follows it if following is true. It returns the last put
// that it cancels, whose repeat must not put it again.
func (q *taskQueue) prevent(t *task, following bool) (put string, outcome store.CancelOutcome) {
	put = t.id
	if t.running {
		t.cancelled = true
		if following && t.follows != nil {
			put = t.follows.id
			q.unfollow(t)
		}
		return put, store.TaskRunning
	}
	q.remove(t)
	if t.tried {
		return put, store.TaskEnded
	}
	return put, store.TaskPrevented
}

// take carries out a TakeTasks.
func (q *taskQueue) take(req *store.TakeTasksRequest, fences *fences, now int64, reply *store.TakeTasksReply) {
	lease := min(req.Lease, store.FirstTaskLease)
	for len(reply.Tasks) < req.Max && len(q.due) > 0 && q.due[0].at <= now {
		t := q.due[0]
		if t.running {
			if follows := t.follows != nil; q.end(t, now) || follows {
				continue
			}
		}
		late := now - t.at
		t.running, t.tried, t.lost = true, true, false
		t.owner, t.holder = req.Owner, req.Holder
		t.attempt = min(t.attempt+1, store.MaxTaskAttempts)
		t.fence, _ = fences.mint(1, now)
		t.at = now + micros(lease)
		q.due.Fix(t)
		reply.Tasks = append(reply.Tasks, store.TakenTask{
			Key: t.key, ID: t.id, Payload: append([]byte(nil), t.payload...), Attempt: t.attempt, Fence: t.fence, Late: duration(late), TTL: lease,
		})
	}
	reply.Next = -1
	if len(q.due) > 0 {
		reply.Next = max(until(q.due[0].at, now), 0)
	}
	reply.Idle = q.waiting
}

// enter registers a call of AwaitTasks. It returns a channel that is closed when a task is due
// earlier, and the time until the first is due; negative if there is none.
func (q *taskQueue) enter(now int64) (changed <-chan struct{}, due time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
	if len(q.due) == 0 {
		return q.changed, -1
	}
	return q.changed, max(until(q.due[0].at, now), 0)
}

func (q *taskQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
}

// owned returns the task if it is the reference's, and its lease lasts; otherwise nil.
func (q *taskQueue) owned(ref *store.TaskRef, now int64) *task {
	t := q.find(ref.Key, now)
	if t == nil || !t.running || t.owner != ref.Owner || t.id != ref.ID {
		return nil
	}
	return t
}

func (q *taskQueue) renew(ref *store.TaskRef, now int64) bool {
	t := q.owned(ref, now)
	if t == nil {
		return false
	}
	t.at = now + micros(ref.Lease)
	q.due.Fix(t)
	return true
}

// settle carries out a SettleTasks.
func (q *taskQueue) settle(req *store.SettleTaskRequest, now int64) bool {
	t := q.owned(&req.TaskRef, now)
	if t == nil {
		return q.settled(req, now)
	}
	if req.How == store.TaskBuried {
		q.use(t.payload)
		q.buried.Remove(t.key)
		q.buried.Add(t.key, buriedTask{t.id, strings.Clone(req.Reason), t.payload, t.attempt, t.fence, now}, now+micros(req.After), now)
	}
	switch {
	case t.follows != nil:
		q.follow(t, now)
	case req.How == store.TaskAgain && !t.cancelled:
		if req.Uncounted {
			t.attempt--
		}
		t.running, t.holder = false, ""
		t.at = now + micros(req.After)
		t.due = t.at
		q.schedule(t)
	default:
		q.remove(t)
	}
	return true
}

// settled reports whether a settlement is a repeat.
func (q *taskQueue) settled(req *store.SettleTaskRequest, now int64) bool {
	t := q.find(req.Key, now)
	if t != nil && t.id == req.ID {
		return req.How == store.TaskAgain && !t.running && t.owner == req.Owner
	}
	if req.How == store.TaskBuried {
		b := q.buried.Get(req.Key, now)
		return b != nil && b.Value.id == req.ID
	}
	return req.Repeated // the task is gone
}

// revive carries out a ReviveTask.
func (q *taskQueue) revive(ref *store.TaskRef, now int64) bool {
	if t := q.find(ref.Key, now); t != nil {
		return t.id == ref.ID
	}
	b := q.buried.Get(ref.Key, now)
	if b == nil || b.Value.id != ref.ID {
		return false
	}
	t := &task{
		key: strings.Clone(ref.Key), waitingTask: waitingTask{b.Value.id, b.Value.payload, now, store.TaskCreated, false},
		at: now, fence: b.Value.fence, tried: true, index: -1,
	}
	q.use(t.payload)
	q.buried.Remove(ref.Key)
	q.tasks[t.key] = t
	q.schedule(t)
	return true
}

// count returns the numbers of the queue.
func (q *taskQueue) count(now int64) (c store.TaskCounts) {
	for _, t := range q.tasks {
		if t.running && t.at > now {
			c.Running++
		}
	}
	c.Waiting = len(q.tasks) - c.Running
	if len(q.due) > 0 {
		c.Oldest = max(duration(now-q.due[0].at), 0)
	}
	q.buried.Sweep(q.buried.Len(), now)
	c.Buried = q.buried.Len()
	return c
}

// inspect returns the buried task of a key, or the other one.
func (q *taskQueue) inspect(key string, buried bool, now int64) (store.TaskRecord, bool) {
	if buried {
		if b := q.buried.Get(key, now); b != nil {
			return b.Value.record(key, b.Expires, now), true
		}
	} else if t := q.find(key, now); t != nil {
		return t.record(now), true
	}
	return store.TaskRecord{}, false
}

func (t *task) record(now int64) store.TaskRecord {
	r := store.TaskRecord{Key: t.key, ID: t.id, Bytes: len(t.payload), Attempt: t.attempt, Fence: t.fence, Follows: t.follows != nil}
	if t.running && t.at > now {
		r.State, r.Lease, r.Holder = store.TaskTaken, until(t.at, now), t.holder
	} else {
		r.Due = until(t.at, now)
	}
	return r
}

func (b *buriedTask) record(key string, expires, now int64) store.TaskRecord {
	return store.TaskRecord{
		Key: key, ID: b.id, State: store.TaskKeptBuried, Bytes: len(b.payload), Attempt: b.attempt, Fence: b.fence, Reason: b.reason,
		Age: duration(now - b.at), Expires: until(expires, now),
	}
}

// keys returns the keys of the buried tasks, or of the others.
func (q *taskQueue) keys(buried bool) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var keys []string
	if buried {
		for key := range q.buried.Keys() {
			keys = append(keys, key)
		}
		return keys
	}
	for key := range q.tasks {
		keys = append(keys, key)
	}
	return keys
}

// until returns the time from now until a time, which may be negative.
func until(at, now int64) time.Duration { return duration(at - now) }
