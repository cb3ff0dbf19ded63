package storetest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Op is an operation of a store.
type Op string

// The operations of a store. Any means all of them.
const (
	Any              Op = "any"
	TakeTokens       Op = "TakeTokens"
	SettleTokens     Op = "SettleTokens"
	HoldTokens       Op = "HoldTokens"
	ResetTokens      Op = "ResetTokens"
	BeginOperation   Op = "BeginOperation"
	SettleOperation  Op = "SettleOperation"
	AbandonOperation Op = "AbandonOperation"
	MarkOperation    Op = "MarkOperation"
	RenewOperations  Op = "RenewOperations"
	RecordStep       Op = "RecordStep"
	AwaitOperation   Op = "AwaitOperation"
	InspectOperation Op = "InspectOperation"
	ListUnresolved   Op = "ListUnresolved"
	ResolveOperation Op = "ResolveOperation"
	AcquireLease     Op = "AcquireLease"
	AwaitLease       Op = "AwaitLease"
	RenewLeases      Op = "RenewLeases"
	ReleaseLeases    Op = "ReleaseLeases"
	DowngradeLease   Op = "DowngradeLease"
	VerifyLease      Op = "VerifyLease"
	InspectLease     Op = "InspectLease"
	ListLeases       Op = "ListLeases"
	RevokeLease      Op = "RevokeLease"
	CountDownLatch   Op = "CountDownLatch"
	InspectLatch     Op = "InspectLatch"
	AwaitLatch       Op = "AwaitLatch"
	PutTask          Op = "PutTask"
	CancelTask       Op = "CancelTask"
	TakeTasks        Op = "TakeTasks"
	AwaitTasks       Op = "AwaitTasks"
	RenewTasks       Op = "RenewTasks"
	SettleTasks      Op = "SettleTasks"
	InspectTask      Op = "InspectTask"
	ListTasks        Op = "ListTasks"
	CountTasks       Op = "CountTasks"
	ReviveTask       Op = "ReviveTask"
	PutDocument      Op = "PutDocument"
	GetDocument      Op = "GetDocument"
	ListDocuments    Op = "ListDocuments"
	RemoveDocument   Op = "RemoveDocument"
	Ping             Op = "Ping"
)

// Fault is a kind of failure.
type Fault int

const (
	// Down means that the request does not reach the store. The error is store.ErrUnavailable.
	Down Fault = iota + 1
	// LostReply means that the store carries out the request, and its reply is lost. The error is
	// store.ErrUnconfirmed.
	LostReply
	// Full means that the store has no room for new state. The error is store.ErrFull.
	Full
	// Misconfigured means that the store's server is misconfigured. The error is
	// store.ErrMisconfigured.
	Misconfigured
	// Hung means that the call blocks until the caller's context ends or the fault is mended. It
	// then returns the context's error, or carries out the request.
	Hung
)

// Faulty is a store that fails on command, for tests of a program with a failing store. Without a
// fault it forwards calls to another store. Faults may be set while it is in use.
type Faulty struct {
	store.Store

	mu            sync.Mutex
	faults        map[Op]*fault
	calls         map[Op]int
	before, after func(Op) error
}

type fault struct {
	kind   Fault
	left   int           // calls that still fail; negative for all
	mended chan struct{} // closed when the fault is mended
}

// NewFaulty returns a store without faults.
func NewFaulty(st store.Store) *Faulty {
	return &Faulty{Store: st, faults: make(map[Op]*fault), calls: make(map[Op]int)}
}

// Break makes every call of an operation fail until Mend.
func (f *Faulty) Break(op Op, how Fault) { f.BreakNext(op, how, -1) }

// BreakNext makes the next n calls of an operation fail.
func (f *Faulty) BreakNext(op Op, how Fault, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mend(op)
	f.faults[op] = &fault{how, n, make(chan struct{})}
}

// Mend ends the fault of an operation; of all of them, if op is Any.
func (f *Faulty) Mend(op Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op == Any {
		for op := range f.faults {
			f.mend(op)
		}
	}
	f.mend(op)
}

func (f *Faulty) mend(op Op) {
	if old := f.faults[op]; old != nil {
		close(old.mended)
		delete(f.faults, op)
	}
}

// Hook calls a function before each call of an operation and another one after it, until the next
// Hook; nil is none. An error of before is the result of the call, which is not made; an error of
// after replaces its result.
func (f *Faulty) Hook(before, after func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// On returns a function for Hook that calls do for one operation.
func On(op Op, do func() error) func(Op) error {
	return func(called Op) error {
		if called == op {
			return do()
		}
		return nil
	}
}

// Failing returns a function for Hook that fails calls of some operations.
func Failing(err error, ops ...Op) func(Op) error {
	return func(op Op) error {
		if slices.Contains(ops, op) {
			return err
		}
		return nil
	}
}

// Calls returns how often an operation was called, including failed calls.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op == Any {
		n := 0
		for _, calls := range f.calls {
			n += calls
		}
		return n
	}
	return f.calls[op]
}

// hooks counts a call and returns its hooks, which are nil if there are none.
func (f *Faulty) hooks(op Op) (before, after func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	return f.before, f.after
}

// next returns the fault of a call, if any.
func (f *Faulty) next(op Op) *fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range []Op{op, Any} {
		found := f.faults[op]
		if found == nil || found.left == 0 {
			continue
		}
		found.left--
		return found
	}
	return nil
}

func disturb[T any](ctx context.Context, f *Faulty, op Op, do func() (T, error)) (T, error) {
	var none T
	before, after := f.hooks(op)
	if before != nil {
		if err := before(op); err != nil {
			return none, err
		}
	}
	v, err := fail(ctx, f, op, do)
	if after != nil {
		if err := after(op); err != nil {
			return none, err
		}
	}
	return v, err
}

// fail makes a call, unless a fault prevents it.
func fail[T any](ctx context.Context, f *Faulty, op Op, do func() (T, error)) (T, error) {
	var none T
	found := f.next(op)
	if found == nil {
		return do()
	}
	if found.kind != LostReply && ctx.Err() != nil {
		return none, ctx.Err()
	}
	switch found.kind {
	case Down:
		return none, fmt.Errorf("%w: %s fails on command", store.ErrUnavailable, op)
	case Full:
		return none, fmt.Errorf("%w: %s fails on command", store.ErrFull, op)
	case Misconfigured:
		return none, fmt.Errorf("%w: %s fails on command", store.ErrMisconfigured, op)
	case LostReply:
		_, _ = do()
		return none, fmt.Errorf("%w: %s loses its reply on command", store.ErrUnconfirmed, op)
	case Hung:
		select {
		case <-found.mended:
			return do()
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", store.ErrUnconfirmed, context.Cause(ctx))
		}
	}
	panic(fmt.Sprintf("storetest: unknown fault %d", found.kind))
}

// TakeTokens implements store.Buckets.
func (f *Faulty) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	return disturb(ctx, f, TakeTokens, func() (store.TakeReply, error) { return f.Store.TakeTokens(ctx, r, more...) })
}

// SettleTokens implements store.Buckets.
func (f *Faulty) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	return disturb(ctx, f, SettleTokens, func() (store.TakeReply, error) { return f.Store.SettleTokens(ctx, r) })
}

// HoldTokens implements store.Buckets.
func (f *Faulty) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	_, err := disturb(ctx, f, HoldTokens, func() (struct{}, error) { return struct{}{}, f.Store.HoldTokens(ctx, r, d) })
	return err
}

// ResetTokens implements store.Buckets.
func (f *Faulty) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	_, err := disturb(ctx, f, ResetTokens, func() (struct{}, error) { return struct{}{}, f.Store.ResetTokens(ctx, r) })
	return err
}

// BeginOperation implements store.Records.
func (f *Faulty) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	return disturb(ctx, f, BeginOperation, func() (store.BeginReply, error) { return f.Store.BeginOperation(ctx, req) })
}

// SettleOperation implements store.Records.
func (f *Faulty) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	return disturb(ctx, f, SettleOperation, func() (bool, error) { return f.Store.SettleOperation(ctx, req) })
}

// AbandonOperation implements store.Records.
func (f *Faulty) AbandonOperation(ctx context.Context, ref store.AttemptRef) (bool, error) {
	return disturb(ctx, f, AbandonOperation, func() (bool, error) { return f.Store.AbandonOperation(ctx, ref) })
}

// MarkOperation implements store.Records.
func (f *Faulty) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	return disturb(ctx, f, MarkOperation, func() (bool, error) { return f.Store.MarkOperation(ctx, req) })
}

// RenewOperations implements store.Records.
func (f *Faulty) RenewOperations(ctx context.Context, reqs []store.RenewRequest) ([]bool, error) {
	return disturb(ctx, f, RenewOperations, func() ([]bool, error) { return f.Store.RenewOperations(ctx, reqs) })
}

// RecordStep implements store.StepRecords.
func (f *Faulty) RecordStep(ctx context.Context, req store.StepRequest) (bool, error) {
	return disturb(ctx, f, RecordStep, func() (bool, error) { return f.Store.RecordStep(ctx, req) })
}

// AwaitOperation implements store.AwaitedRecords.
func (f *Faulty) AwaitOperation(ctx context.Context, ref store.OperationRef) error {
	_, err := disturb(ctx, f, AwaitOperation, func() (struct{}, error) { return struct{}{}, f.Store.AwaitOperation(ctx, ref) })
	return err
}

// InspectOperation implements store.ResolvableRecords.
func (f *Faulty) InspectOperation(ctx context.Context, ref store.OperationRef) (record store.OperationRecord, found bool, err error) {
	record, err = disturb(ctx, f, InspectOperation, func() (record store.OperationRecord, err error) {
		record, found, err = f.Store.InspectOperation(ctx, ref)
		return record, err
	})
	return record, found && err == nil, err
}

// ListUnresolved implements store.ResolvableRecords. A fault is an error that it yields.
func (f *Faulty) ListUnresolved(ctx context.Context, guard string) iter.Seq2[store.OperationRecord, error] {
	return listed(ctx, f, ListUnresolved, func() iter.Seq2[store.OperationRecord, error] { return f.Store.ListUnresolved(ctx, guard) })
}

// ResolveOperation implements store.ResolvableRecords.
func (f *Faulty) ResolveOperation(ctx context.Context, req store.ResolveRequest) (store.ResolveOutcome, error) {
	return disturb(ctx, f, ResolveOperation, func() (store.ResolveOutcome, error) { return f.Store.ResolveOperation(ctx, req) })
}

// AcquireLease implements store.Leases.
func (f *Faulty) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	return disturb(ctx, f, AcquireLease, func() (store.LeaseReply, error) { return f.Store.AcquireLease(ctx, req) })
}

// AwaitLease implements store.Leases.
func (f *Faulty) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	return disturb(ctx, f, AwaitLease, func() (store.Grant, error) { return f.Store.AwaitLease(ctx, req) })
}

// RenewLeases implements store.Leases.
func (f *Faulty) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	return disturb(ctx, f, RenewLeases, func() ([]bool, error) { return f.Store.RenewLeases(ctx, refs) })
}

// ReleaseLeases implements store.Leases.
func (f *Faulty) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	return disturb(ctx, f, ReleaseLeases, func() ([]store.ReleaseOutcome, error) { return f.Store.ReleaseLeases(ctx, refs) })
}

// DowngradeLease implements store.LeaseDowngrader.
func (f *Faulty) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	return disturb(ctx, f, DowngradeLease, func() (bool, error) { return f.Store.DowngradeLease(ctx, ref, weight) })
}

// VerifyLease implements store.LeaseVerifier.
func (f *Faulty) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	return disturb(ctx, f, VerifyLease, func() (bool, error) { return f.Store.VerifyLease(ctx, ref) })
}

// InspectLease implements store.LeaseLister.
func (f *Faulty) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	return disturb(ctx, f, InspectLease, func() (store.LeaseState, error) { return f.Store.InspectLease(ctx, name, key) })
}

// ListLeases implements store.LeaseLister. A fault is an error that it yields.
func (f *Faulty) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return listed(ctx, f, ListLeases, func() iter.Seq2[store.LeaseState, error] { return f.Store.ListLeases(ctx, name) })
}

func listed[T any](ctx context.Context, f *Faulty, op Op, list func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		all, err := disturb(ctx, f, op, func() (iter.Seq2[T, error], error) { return list(), nil })
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		all(yield)
	}
}

// RevokeLease implements store.LeaseRevoker.
func (f *Faulty) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	return disturb(ctx, f, RevokeLease, func() (bool, error) { return f.Store.RevokeLease(ctx, name, key, fence) })
}

// CountDownLatch implements store.Latches.
func (f *Faulty) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	return disturb(ctx, f, CountDownLatch, func() (int, error) { return f.Store.CountDownLatch(ctx, req, participant) })
}

// InspectLatch implements store.Latches.
func (f *Faulty) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	return disturb(ctx, f, InspectLatch, func() (int, error) { return f.Store.InspectLatch(ctx, req) })
}

// AwaitLatch implements store.Latches.
func (f *Faulty) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	_, err := disturb(ctx, f, AwaitLatch, func() (struct{}, error) { return struct{}{}, f.Store.AwaitLatch(ctx, req) })
	return err
}

// PutTask implements store.Delays.
func (f *Faulty) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	return disturb(ctx, f, PutTask, func() (store.PutTaskReply, error) { return f.Store.PutTask(ctx, req) })
}

// CancelTask implements store.Delays.
func (f *Faulty) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	return disturb(ctx, f, CancelTask, func() (store.CancelOutcome, error) { return f.Store.CancelTask(ctx, req) })
}

// TakeTasks implements store.Delays.
func (f *Faulty) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (store.TakeTasksReply, error) {
	return disturb(ctx, f, TakeTasks, func() (store.TakeTasksReply, error) { return f.Store.TakeTasks(ctx, req) })
}

// AwaitTasks implements store.Delays.
func (f *Faulty) AwaitTasks(ctx context.Context, queue string, in time.Duration) error {
	_, err := disturb(ctx, f, AwaitTasks, func() (struct{}, error) { return struct{}{}, f.Store.AwaitTasks(ctx, queue, in) })
	return err
}

// RenewTasks implements store.Delays.
func (f *Faulty) RenewTasks(ctx context.Context, refs []store.TaskRef) ([]bool, error) {
	return disturb(ctx, f, RenewTasks, func() ([]bool, error) { return f.Store.RenewTasks(ctx, refs) })
}

// SettleTasks implements store.Delays.
func (f *Faulty) SettleTasks(ctx context.Context, reqs []store.SettleTaskRequest) ([]bool, error) {
	return disturb(ctx, f, SettleTasks, func() ([]bool, error) { return f.Store.SettleTasks(ctx, reqs) })
}

// InspectTask implements store.TaskKeeper.
func (f *Faulty) InspectTask(ctx context.Context, queue, key string) (record store.TaskRecord, found bool, err error) {
	record, err = disturb(ctx, f, InspectTask, func() (record store.TaskRecord, err error) {
		record, found, err = f.Store.InspectTask(ctx, queue, key)
		return record, err
	})
	return record, found && err == nil, err
}

// ListTasks implements store.TaskKeeper. A fault is an error that it yields.
func (f *Faulty) ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[store.TaskRecord, error] {
	return listed(ctx, f, ListTasks, func() iter.Seq2[store.TaskRecord, error] { return f.Store.ListTasks(ctx, queue, buried) })
}

// CountTasks implements store.TaskKeeper.
func (f *Faulty) CountTasks(ctx context.Context, queue string) (store.TaskCounts, error) {
	return disturb(ctx, f, CountTasks, func() (store.TaskCounts, error) { return f.Store.CountTasks(ctx, queue) })
}

// ReviveTask implements store.TaskKeeper.
func (f *Faulty) ReviveTask(ctx context.Context, ref store.TaskRef) (bool, error) {
	return disturb(ctx, f, ReviveTask, func() (bool, error) { return f.Store.ReviveTask(ctx, ref) })
}

// PutDocument implements store.Documents.
func (f *Faulty) PutDocument(ctx context.Context, req store.DocumentRequest) (version int64, ok bool, err error) {
	version, err = disturb(ctx, f, PutDocument, func() (version int64, err error) {
		version, ok, err = f.Store.PutDocument(ctx, req)
		return version, err
	})
	return version, ok && err == nil, err
}

// GetDocument implements store.Documents.
func (f *Faulty) GetDocument(ctx context.Context, space, name string) (doc store.Document, found bool, err error) {
	doc, err = disturb(ctx, f, GetDocument, func() (doc store.Document, err error) {
		doc, found, err = f.Store.GetDocument(ctx, space, name)
		return doc, err
	})
	return doc, found && err == nil, err
}

// ListDocuments implements store.Documents. A fault is an error that it yields.
func (f *Faulty) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return listed(ctx, f, ListDocuments, func() iter.Seq2[store.Document, error] { return f.Store.ListDocuments(ctx, space) })
}

// RemoveDocument implements store.Documents.
func (f *Faulty) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	return disturb(ctx, f, RemoveDocument, func() (bool, error) { return f.Store.RemoveDocument(ctx, space, name, version) })
}

// Ping implements store.Store.
func (f *Faulty) Ping(ctx context.Context) error {
	_, err := disturb(ctx, f, Ping, func() (struct{}, error) { return struct{}{}, f.Store.Ping(ctx) })
	return err
}
