// Package inspect is the read model of operators' tools: who holds and who waits, whose outcome is
// unknown, which tasks wait, run or are buried, which mechanisms this process has, and what weakens
// the store's promises.
//
// It needs a store and the name of a mechanism, not the mechanism: a tool shows what another
// service holds, without that service's settings. It changes nothing. Listings take no snapshot: a
// key that changes during one may be seen in its old state or not at all. An error matches
// store.ErrUnavailable, or store.ErrNotSupported if the store cannot list, or is the context's.
package inspect

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/internal/taskid"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// MaxListed is the largest number of items of a [Listing].
const MaxListed = 500

// Listing is a part of what a store has under a name.
type Listing[T any] struct {
	Items []T  // at most [MaxListed], in the order in which an operator looks at them
	More  bool // there are others, which may come before these in that order
}

// Mechanism describes the mechanisms of one kind and name that this process has on a store.
type Mechanism struct {
	Kind, Name string // the kind is that of log lines: lock, semaphore, rate_limit, idempotency or delay
	Settings   string // of the first of them, without secrets
	Members    int    // mechanisms of the kind and name
}

// Mechanisms returns the mechanisms that this process has on a store, by kind and name. There are
// none of a store from outside of this module, and at most 4,096 names. An election is listed as its
// locker.
func Mechanisms(st any) []Mechanism {
	var found []Mechanism
	for _, m := range namesake.Members(st) {
		found = append(found, Mechanism{m.Kind, m.Name, m.Settings, m.Members})
	}
	slices.SortFunc(found, func(a, b Mechanism) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// Limiter returns a limiter of a name that this process has on a store, with its plan. It returns
// false if there is none.
func Limiter(st any, name string) (*tokenbucket.Limiter, bool) {
	l, ok := namesake.Owner(st, "rate_limit", name).(*tokenbucket.Limiter)
	return l, ok
}

// Guard returns a guard of a name that this process has on a store, with its secrets. It returns
// false if there is none.
func Guard(st any, name string) (*guard.Guard, bool) {
	g, ok := namesake.Owner(st, "idempotency", name).(*guard.Guard)
	return g, ok
}

// Findings returns the settings of a store and of its server that weaken a promise.
func Findings(ctx context.Context, st any) ([]store.Finding, error) {
	able, err := store.As[store.Checker](st)
	if err != nil {
		return nil, err
	}
	return able.Check(ctx)
}

// Key is a lock or semaphore with holders or waiters.
type Key struct {
	Key     string
	InUse   int      // the weights of all holds
	Holders []Holder // at most [store.MaxListed] of them
	Waiting int      // requests in the queue
	Waiters []Waiter // the first [store.MaxListed] of them
}

// Holder is one hold. A lock's weight is 1 if it is shared, and [store.MaxCapacity] otherwise.
type Holder struct {
	store.LeaseHolder
	Trace trace.SpanContext // of the request, if it was sampled
}

// Waiter is one request in the queue.
type Waiter struct {
	store.LeaseWaiter
	Trace trace.SpanContext // of the request, if it was sampled
}

// Locks lists the locks of a name, the longest held first.
func Locks(ctx context.Context, st any, name string) (Listing[Key], error) {
	return keys(ctx, st, store.LockKind+name)
}

// Lock returns the state of one lock. A lock that is not in use has neither holders nor waiters.
func Lock(ctx context.Context, st any, name, key string) (Key, error) {
	return one(ctx, st, store.LockKind+name, key)
}

// Semaphores lists the semaphores of a name, the longest held first.
func Semaphores(ctx context.Context, st any, name string) (Listing[Key], error) {
	return keys(ctx, st, store.SemaphoreKind+name)
}

// Semaphore returns the state of one semaphore. One that is not in use has neither holders nor
// waiters.
func Semaphore(ctx context.Context, st any, name, key string) (Key, error) {
	return one(ctx, st, store.SemaphoreKind+name, key)
}

func keys(ctx context.Context, st any, name string) (Listing[Key], error) {
	able, err := store.As[store.LeaseLister](st)
	if err != nil {
		return Listing[Key]{}, err
	}
	return list(able.ListLeases(ctx, name), keyOf, func(a, b Key) int { return cmp.Compare(b.age(), a.age()) })
}

func one(ctx context.Context, st any, name, key string) (Key, error) {
	able, err := store.As[store.LeaseLister](st)
	if err != nil {
		return Key{}, err
	}
	state, err := able.InspectLease(ctx, name, key)
	return keyOf(state), err
}

func keyOf(s store.LeaseState) Key {
	key := Key{Key: s.Key, InUse: s.InUse, Waiting: s.Waiting}
	for _, h := range s.Holders {
		holder := Holder{LeaseHolder: h}
		holder.Label, holder.Trace = lease.CutSpan(h.Label)
		key.Holders = append(key.Holders, holder)
	}
	for _, w := range s.Waiters {
		waiter := Waiter{LeaseWaiter: w}
		waiter.Label, waiter.Trace = lease.CutSpan(w.Label)
		key.Waiters = append(key.Waiters, waiter)
	}
	return key
}

// age returns the age of the oldest hold.
func (k *Key) age() (oldest int64) {
	for i := range k.Holders {
		oldest = max(oldest, int64(k.Holders[i].Age))
	}
	return oldest
}

// Operation is the record of a guarded operation.
type Operation struct {
	store.OperationRecord
	Trace trace.SpanContext // of the last attempt's request, if it was sampled
}

// Unresolved lists the operations of a guard whose outcome is unknown, the one that has been
// unknown for longest first.
func Unresolved(ctx context.Context, st any, guard string) (Listing[Operation], error) {
	able, err := store.As[store.ResolvableRecords](st)
	if err != nil {
		return Listing[Operation]{}, err
	}
	return list(able.ListUnresolved(ctx, guard), operationOf, func(a, b Operation) int { return cmp.Compare(b.Changed, a.Changed) })
}

func operationOf(r store.OperationRecord) Operation {
	op := Operation{OperationRecord: r}
	op.Holder, op.Trace = lease.CutSpan(r.Holder)
	return op
}

// DelayedTask is a delayed task. The ID of its record is that of its put, for CancelTask of
// [store.Delays] and ReviveTask of [store.TaskKeeper].
type DelayedTask struct {
	store.TaskRecord
	TaskID string // the delay.Task.ID: log lines and guards have it
}

// Queue returns the numbers of a queue of delayed tasks: how many wait, run and are buried, and for
// how long the first one has been due. A queue that does not exist has none.
func Queue(ctx context.Context, st any, queue string) (store.TaskCounts, error) {
	able, err := store.As[store.TaskKeeper](st)
	if err != nil {
		return store.TaskCounts{}, err
	}
	return able.CountTasks(ctx, queue)
}

// Task returns the task of a key; the buried one if there is no other. It returns false if there is
// none.
func Task(ctx context.Context, st any, queue, key string) (task DelayedTask, found bool, err error) {
	able, err := store.As[store.TaskKeeper](st)
	if err != nil {
		return task, false, err
	}
	record, found, err := able.InspectTask(ctx, queue, key)
	if err != nil || !found {
		return task, false, err
	}
	return taskOf(queue)(record), true, nil
}

// Tasks lists the tasks of a queue that wait or run, in this order:
//   - tasks that are due, the longest due first;
//   - running tasks;
//   - the other tasks, by the time until they are due.
func Tasks(ctx context.Context, st any, queue string) (Listing[DelayedTask], error) {
	return tasks(ctx, st, queue, false, func(a, b DelayedTask) int { return cmp.Compare(a.Due, b.Due) })
}

// Buried lists the buried tasks of a queue, the one that has been buried for longest first.
func Buried(ctx context.Context, st any, queue string) (Listing[DelayedTask], error) {
	return tasks(ctx, st, queue, true, func(a, b DelayedTask) int { return cmp.Compare(b.Age, a.Age) })
}

func tasks(
	ctx context.Context, st any, queue string, buried bool, order func(a, b DelayedTask) int,
) (Listing[DelayedTask], error) {
	able, err := store.As[store.TaskKeeper](st)
	if err != nil {
		return Listing[DelayedTask]{}, err
	}
	return list(able.ListTasks(ctx, queue, buried), taskOf(queue), order)
}

func taskOf(queue string) func(store.TaskRecord) DelayedTask {
	return func(r store.TaskRecord) DelayedTask { return DelayedTask{r, taskid.Of(queue, r.Key, r.ID)} }
}

// list sorts the first items of a sequence, up to its error.
func list[S, T any](found iter.Seq2[S, error], of func(S) T, order func(a, b T) int) (l Listing[T], err error) {
	for item, failed := range found {
		if err = failed; err != nil {
			break
		}
		if l.More = len(l.Items) == MaxListed; l.More {
			break
		}
		l.Items = append(l.Items, of(item))
	}
	slices.SortStableFunc(l.Items, order)
	return l, err
}
