package delay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/taskid"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Task is a task that this process has, under a lease that is renewed until the task is settled: by
// the error that the function of [Queue.Run] returns, or by Done, Again or Bury. The first
// settlement counts.
type Task struct {
	queue   *Queue
	taken   store.TakenTask
	owner   string
	payload []byte
	instead *store.SettleTaskRequest // of a task that may not run: it is settled with this
	term    lease.Term
	lease   lease.Context
	ctx     context.Context // the lease, with the task and the span of its run
	kept    lease.Entry[keptTask]
	run     telemetry.Run

	settled      atomic.Bool
	stepping     atomic.Bool // a step of SettleBy may run, which may fail
	stepped      atomic.Bool // a step of SettleBy may have settled it
	lossReported atomic.Bool
}

type contextKey struct{}

// FromContext returns the task whose context ctx is or derives from.
func FromContext(ctx context.Context) (*Task, bool) {
	t, ok := ctx.Value(contextKey{}).(*Task)
	return t, ok
}

// begin returns a taken task, and starts to renew its lease. Its context ends with ctx. A task that
// is damaged, or has used up its attempts, is to be buried.
func (q *Queue) begin(ctx context.Context, sent time.Time, taken store.TakenTask, owner string) *Task {
	t := &Task{queue: q, taken: taken, owner: owner}
	payload, put, err := unpacked(taken.Payload)
	t.payload = payload
	switch {
	case err != nil:
		q.telemetry.Damaged(ctx)
		t.insteadBury(err.Error())
	case t.Attempt() > q.config.attempts:
		t.insteadBury(fmt.Sprintf("%d attempts ended without a result", q.config.attempts))
	}
	ctx, t.run = q.telemetry.Begin(ctx, taken.Late, put)
	t.term.Init(lease.ValidUntil(sent, taken.TTL))
	t.term.Begin(ctx, &t.lease, 0, ErrExpired)
	t.ctx = context.WithValue(&t.lease, contextKey{}, t)
	q.running.Begin()
	q.mu.Lock()
	q.tasks[t] = struct{}{}
	q.mu.Unlock()
	q.keeper.AddFor(keptTask{t}, sent, taken.TTL)
	if q.closing.Err() != nil {
		t.term.Stop(ErrClosed)
	}
	return t
}

func (t *Task) insteadBury(reason string) {
	burial := t.burial(reason)
	t.instead = &burial
}

// settleInstead settles a task that may not run. The telemetry reports an error: then the task is
// due again when its lease has ended.
func (t *Task) settleInstead() { _ = t.settle(t.ctx, *t.instead) }

// Key returns the task's key.
func (t *Task) Key() string { return t.taken.Key }

// Payload returns what was put. The caller may change it.
func (t *Task) Payload() []byte { return t.payload }

// Attempt is 1 for the first attempt at the task, and one more for each further one.
func (t *Task) Attempt() int { return t.taken.Attempt }

// Late is how long after it was due the attempt began.
func (t *Task) Late() time.Duration { return t.taken.Late }

// ID identifies the task: it is the same in all attempts, another one after a put that has moved
// the task, and reveals nothing of the key. It has 22 characters of base64url. As the key of a
// guard (guard.Operation), it makes the effect of the task happen once.
func (t *Task) ID() string { return taskid.Of(t.queue.name, t.taken.Key, t.taken.ID) }

// Fence is larger than that of every earlier attempt at a task of the key. A resource that refuses
// writes with a smaller fence than the last one refuses those of a worker that has lost its lease.
func (t *Task) Fence() int64 { return t.taken.Fence }

// Context ends when the worker must stop. Its cause ([context.Cause]) is [ErrExpired] if the lease
// could not be renewed in time, [ErrLost] if another worker may have the task, [ErrSettled] once it
// is settled, [ErrClosed] if the queue is closed, or the cause of the context that was passed to
// Run or Take.
func (t *Task) Context() context.Context { return t.ctx }

// Done ends the task. It runs to its end even if ctx is cancelled. The error is
//   - [ErrSettled];
//   - [ErrLost] if the lease had ended: nothing was changed, and another attempt follows; or
//   - one that matches store.ErrUnavailable if the store has not confirmed it by the end of the
//     lease: another attempt may follow.
func (t *Task) Done(ctx context.Context) error {
	return t.settle(ctx, store.SettleTaskRequest{How: store.TaskDone})
}

// Again makes the task due again after a time, 366 days at most. The attempt counts. A task that
// was put since takes its place. Errors are those of Done.
func (t *Task) Again(ctx context.Context, after time.Duration) error {
	return t.settle(ctx, store.SettleTaskRequest{How: store.TaskAgain, After: min(max(after, 0), store.MaxTaskDelay)})
}

// Bury ends the task, and keeps it with a reason, of which 512 bytes are kept, for an operator: see
// [Queue.Buried]. Errors are those of Done.
func (t *Task) Bury(ctx context.Context, reason string) error {
	return t.settle(ctx, t.burial(reason))
}

func (t *Task) burial(reason string) store.SettleTaskRequest {
	reason = strings.ToValidUTF8(reason[:min(len(reason), store.MaxReason)], "")
	return store.SettleTaskRequest{How: store.TaskBuried, After: t.queue.config.buriedFor, Reason: reason}
}

// SettleBy is Done by a step of the caller's, such as a statement in the transaction of the task's
// effects: pgstore.Finish calls it. step gets the queue's store, and the request that Done would
// send to it. It reports whether the worker had the task: if not, SettleBy returns [ErrLost].
//
// If step returns an error, SettleBy returns it, retries nothing, and leaves the task as it was:
// the caller settles it with another call. If step has settled it nevertheless, that call changes
// nothing, and returns nil while the task's context lasts, and [ErrLost] after that. If the task is
// settled already, SettleBy returns [ErrSettled], and does not call step.
func (t *Task) SettleBy(ctx context.Context, step Step[store.SettleTaskRequest, bool]) error {
	t.stepping.Store(true)
	if !t.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	settled := false
	defer func() { // also after a panic
		if !settled {
			t.settled.Store(false)
		}
	}()
	t.stepped.Store(true)
	owned, err := step(ctx, t.queue.store, store.SettleTaskRequest{TaskRef: t.ref()})
	if err != nil {
		return err
	}
	settled = true
	return t.finish(ctx, store.SettleTaskRequest{}, owned, nil)
}

func (t *Task) ref() store.TaskRef {
	q := t.queue
	return store.TaskRef{Queue: q.name, Key: t.taken.Key, ID: t.taken.ID, Owner: t.owner, Lease: q.config.lease}
}

// settle sends a settlement, and repeats it until the store confirms it, or the lease has ended.
func (t *Task) settle(ctx context.Context, req store.SettleTaskRequest) error {
	if !t.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	if !t.term.Valid() {
		return t.finish(ctx, req, false, nil)
	}
	req.TaskRef = t.ref()
	req.Repeated = t.stepped.Load()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), t.term.ValidUntil())
	defer cancel()
	pause := backoff.Growing{Min: 20 * time.Millisecond, Max: time.Second}
	for {
		owned, err := t.queue.settleOne(ctx, &req)
		switch {
		case err == nil || errors.Is(err, store.ErrClosed):
			return t.finish(ctx, req, owned, err)
		case !backoff.Sleep(ctx, pause.Next()):
			return t.finish(ctx, req, false, fmt.Errorf("%w: the lease has ended: %w", store.ErrUnconfirmed, err))
		}
		req.Repeated = true
	}
}

var runEnds = [...]telemetry.RunEnd{
	store.TaskDone: telemetry.RunDone, store.TaskAgain: telemetry.RunAgain, store.TaskBuried: telemetry.RunBuried,
}

// finish ends the task here after its settlement.
func (t *Task) finish(ctx context.Context, req store.SettleTaskRequest, owned bool, err error) error {
	q := t.queue
	expired := !t.term.Valid()
	t.term.End(ErrSettled)
	q.keeper.Remove(keptTask{t})
	q.mu.Lock()
	delete(q.tasks, t)
	q.mu.Unlock()
	end := runEnds[req.How]
	switch {
	case err != nil:
		end = telemetry.RunError
	case !owned:
		end, err = telemetry.RunLost, ErrLost
		t.reportLoss(expired)
	case req.How == store.TaskBuried:
		q.telemetry.Buried(ctx, t.ID(), t.taken.Attempt, req.Reason)
	}
	q.telemetry.End(ctx, t.run, end, err)
	q.running.End()
	return err
}

func (t *Task) reportLoss(expired bool) {
	if t.lossReported.Swap(true) {
		return
	}
	how := telemetry.Lost
	if expired {
		how = telemetry.Expired
	}
	t.queue.leases.Lost(t.ctx, how)
}

// settlement is a settlement that waits for its call.
type settlement struct {
	ctx   context.Context
	req   *store.SettleTaskRequest
	owned bool
	err   error
	done  chan struct{}
}

// settleOne sends a settlement, with others that are sent at the same time.
func (q *Queue) settleOne(ctx context.Context, req *store.SettleTaskRequest) (bool, error) {
	s := &settlement{ctx: ctx, req: req, done: make(chan struct{})}
	if !q.settlements.Add(s) {
		return false, fmt.Errorf("%w: too many settlements wait", store.ErrOverloaded)
	}
	<-s.done // the store bounds its calls
	return s.owned, s.err
}

// send sends settlements in one call, which may last until the last of their leases ends.
func (q *Queue) send(all []*settlement) {
	reqs := make([]store.SettleTaskRequest, len(all))
	longest := all[0].ctx
	for i, s := range all {
		reqs[i] = *s.req
		if ends, _ := s.ctx.Deadline(); ends.After(deadline(longest)) {
			longest = s.ctx
		}
	}
	owned, err := q.store.SettleTasks(longest, reqs)
	for i, s := range all {
		if i < len(owned) && owned[i] {
			s.owned = true
		} else {
			s.err = err
		}
		close(s.done)
	}
}

func deadline(ctx context.Context) time.Time {
	ends, _ := ctx.Deadline()
	return ends
}

// keptTask implements lease.Kept for a task.
type keptTask struct{ *Task }

// TTL implements lease.Kept.
func (k keptTask) TTL() time.Duration { return k.queue.config.lease }

// Due implements lease.Kept. A task is renewed while its function stops, and during a step: if that
// fails, the worker still has the task.
func (k keptTask) Due() bool { return (!k.settled.Load() || k.stepping.Load()) && k.term.Due() }

// Renewed implements lease.Kept.
func (k keptTask) Renewed(sent time.Time) { k.term.Extend(lease.ValidUntil(sent, k.TTL())) }

// Lost implements lease.Kept.
func (k keptTask) Lost() {
	if k.settled.Load() {
		return
	}
	cause := ErrExpired
	if k.term.Valid() {
		cause = ErrLost
	}
	k.term.End(cause)
	k.reportLoss(errors.Is(cause, ErrExpired))
}

// Entry implements lease.Kept.
func (k keptTask) Entry() *lease.Entry[keptTask] { return &k.kept }

func (q *Queue) renew(ctx context.Context, tasks []keptTask) ([]bool, error) {
	refs := make([]store.TaskRef, len(tasks))
	for i, t := range tasks {
		refs[i] = t.ref()
	}
	owned, err := q.store.RenewTasks(ctx, refs)
	q.leases.Renewed(ctx, owned, len(refs), err)
	return owned, err
}

// A payload in the store begins with "0", or with "1" and the span of its put.
const spanBytes = 1 + len(trace.TraceID{}) + len(trace.SpanID{})

func packed(ctx context.Context, payload []byte) []byte {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() || !span.IsValid() {
		return append([]byte("0"), payload...)
	}
	traceID, spanID := span.TraceID(), span.SpanID()
	return append(append(append([]byte("1"), traceID[:]...), spanID[:]...), payload...)
}

var errDamaged = errors.New("damaged")

func unpacked(text []byte) (payload []byte, span trace.SpanContext, err error) {
	switch {
	case len(text) > 0 && text[0] == '0':
		return text[1:], span, nil
	case len(text) >= spanBytes && text[0] == '1':
		c := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
		copy(c.TraceID[:], text[1:])
		copy(c.SpanID[:], text[1+len(c.TraceID):])
		return text[spanBytes:], trace.NewSpanContext(c), nil
	}
	return nil, span, errDamaged
}
