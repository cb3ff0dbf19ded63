package guard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// settleTimeout bounds a settling step, since the caller's context does not end it. Stores have
// shorter timeouts of their own.
const settleTimeout = 5 * time.Second

// Attempt is one run of an operation. Its caller settles it with Complete, CompleteNotRetained,
// CompleteUnknown or Abandon; the first of them counts.
//
// An attempt begins dirty: if its process dies, it may have had effects. MarkClean and MarkDirty
// narrow that down.
type Attempt struct {
	guard        *Guard
	req          store.BeginRequest
	number       int
	start        time.Time
	lease        *lease.Context
	ctx          context.Context // the lease with the attempt as a value
	kept         lease.Entry[keptAttempt]
	settled      atomic.Bool
	lossReported atomic.Bool // the loss was reported

	marking   sync.Mutex
	sentMarks int // number of marks sent
	clean     bool

	telemetry telemetry.Beginning
}

type contextKey struct{}

// FromContext returns the attempt whose context ctx is or derives from.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(contextKey{}).(*Attempt)
	return a, ok
}

// Number is 1 for the first attempt at an operation, and one more for each that took over from an
// attempt that died. It grows while the record is kept, so it can fence writes: refuse the write of
// an attempt with a lower number than the last one seen.
func (a *Attempt) Number() int { return a.number }

// OperationID identifies the operation: it is the same in every attempt at it, unique to it, and
// reveals nothing that users sent. It has 22 characters of base64url. Pass it as the idempotency
// key to the services that the operation calls, so that a second attempt repeats nothing there.
func (a *Attempt) OperationID() string { return a.req.ID }

// Context ends when the attempt must stop, with the cause ([context.Cause]) [ErrExpired] when its
// lease could not be renewed in time, [ErrLost] when it no longer owns the operation, [ErrSettled]
// once it is settled, or with the context that was passed to Begin.
func (a *Attempt) Context() context.Context { return a.ctx }

// Dirty reports whether the attempt may have had effects, by the last successful call of MarkClean
// or MarkDirty.
func (a *Attempt) Dirty() bool {
	a.marking.Lock()
	defer a.marking.Unlock()
	return !a.clean
}

// MarkClean records that the attempt has had no effect yet: if it dies now, another may take over.
// Call it before any effect, and MarkDirty before the first one. One round trip.
//
// On an error, which is [ErrLost], [ErrSettled], the context's or store.ErrUnavailable, the attempt
// counts as dirty. If the error matches store.ErrUnconfirmed or is the context's, the store may
// count it as clean nevertheless: call MarkDirty before the first effect even then.
func (a *Attempt) MarkClean(ctx context.Context) error { return a.mark(ctx, false) }

// MarkDirty records that effects begin now: if the attempt dies after this, its outcome is unknown.
// One round trip. An earlier MarkClean that reaches the store later does not undo it. On an error
// (see MarkClean) the caller must not proceed to the effect, since the store may count the attempt
// as clean.
func (a *Attempt) MarkDirty(ctx context.Context) error { return a.mark(ctx, true) }

func (a *Attempt) mark(ctx context.Context, dirty bool) error {
	if a.settled.Load() {
		return ErrSettled
	}
	a.marking.Lock()
	a.sentMarks++
	seq := a.sentMarks
	a.clean = false
	a.marking.Unlock()
	held, err := a.guard.store.MarkOperation(ctx, store.MarkRequest{AttemptRef: a.req.AttemptRef, Dirty: dirty, Seq: seq})
	if err != nil {
		return err
	}
	if !held {
		return ErrLost
	}
	a.marking.Lock()
	defer a.marking.Unlock()
	if seq == a.sentMarks { // no later mark was sent
		a.clean = !dirty
	}
	return nil
}

// Complete records the result of the operation: it will not run again while the record is kept, and
// later calls of Begin return this result. If its Data exceeds the limit of the guard, the store or
// the scope ([WithMaxScopeBytes]), they return a *[NotRetainedError] instead.
//
// It runs to its end even if ctx is cancelled. An error is [ErrSettled]; [ErrLost] if another
// attempt has taken over, whose result will count; or store.ErrUnavailable: then the completion is
// retried in the background for as long as the record would be kept, and until it succeeds this
// guard's Begin returns the result from memory. So the caller should send its answer to the client
// in any case. Pending completions take at most 64 MiB: a result beyond that is settled as not
// retained, and a completion that does not fit even without its result is dropped.
func (a *Attempt) Complete(ctx context.Context, r Result) error {
	if len(r.Data) > a.guard.config.maxResult {
		return a.settle(ctx, store.NotRetained, r.Status, nil)
	}
	return a.settle(ctx, store.Completed, r.Status, seal(a.ctx, r.Data))
}

// CompleteNotRetained records that the operation ran, with a status and without a result: later
// calls of Begin return a *[NotRetainedError]. Errors are those of Complete.
func (a *Attempt) CompleteNotRetained(ctx context.Context, status int) error {
	return a.settle(ctx, store.NotRetained, status, nil)
}

// CompleteUnknown records that the attempt ended with an unknown outcome: later calls of Begin
// return [ErrOutcomeUnknown], or run the operation again if the guard was built [WithRerun]. Errors
// are those of Complete.
func (a *Attempt) CompleteUnknown(ctx context.Context) error {
	return a.settle(ctx, store.Unknown, 0, nil)
}

// Abandon releases the operation as if there had been no attempt: the next Begin runs it. The
// caller asserts that the attempt had no effects, or that they may happen again. Errors are those
// of Complete; it is retried in the same way.
func (a *Attempt) Abandon(ctx context.Context) error {
	return a.finish(ctx, telemetry.Abandoned, func(ctx context.Context) (bool, error) {
		return a.guard.store.AbandonOperation(ctx, a.req.AttemptRef)
	}, func(err error) telemetry.IdempotencyResult {
		a.guard.abandonLater(a.ctx, a.req.AttemptRef, err, a.forget)
		return telemetry.IdempotencyError
	})
}

func (a *Attempt) settle(ctx context.Context, s store.RecordState, status int, data []byte) error {
	g := a.guard
	req := &store.SettleRequest{
		AttemptRef: a.req.AttemptRef, Fingerprint: a.req.Fingerprint, Number: a.number,
		State: s, Status: min(max(status, 0), 9999), Data: data, Retention: g.config.retention,
		MaxBytes: g.config.maxScopeBytes,
	}
	g.typical.Add(time.Since(a.start))
	ended := telemetry.Executed
	if s == store.Unknown {
		ended = telemetry.Failed
	}
	return a.finish(ctx, ended, func(ctx context.Context) (bool, error) {
		if time.Until(a.lease.ValidUntil()) < settleTimeout { // another attempt could begin before the store replies
			g.pending.put(req)
		}
		owned, err := g.store.SettleOperation(ctx, *req)
		if err == nil {
			g.pending.remove(req)
		}
		return owned, err
	}, func(err error) telemetry.IdempotencyResult { return a.settleLater(req, err) })
}

// finish runs the last step of the attempt, once. If it fails, finish calls later, which retries
// it.
func (a *Attempt) finish(ctx context.Context, ended telemetry.IdempotencyResult,
	step func(context.Context) (bool, error), later func(error) telemetry.IdempotencyResult,
) error {
	if !a.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	defer a.guard.calls.End()
	expired := a.expired()
	a.lease.End(ErrSettled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	owned, err := step(ctx)
	if err != nil {
		a.guard.telemetry.End(ctx, a.telemetry, later(err), err)
		return err
	}
	a.guard.noteReply()
	a.forget()
	if !owned {
		a.recordLoss(expired)
		a.guard.telemetry.End(ctx, a.telemetry, telemetry.Overtaken, nil)
		return ErrLost
	}
	a.guard.telemetry.End(ctx, a.telemetry, ended, nil)
	return nil
}

func (a *Attempt) forget() { a.guard.keeper.Remove(keptAttempt{a}) }

// keptAttempt implements lease.Kept for an attempt.
type keptAttempt struct{ *Attempt }

func (a keptAttempt) TTL() time.Duration               { return a.guard.config.ttl }
func (a keptAttempt) Due() bool                        { return true } // it may still own its operation
func (a keptAttempt) Entry() *lease.Entry[keptAttempt] { return &a.kept }

func (a keptAttempt) Renewed(sent time.Time) {
	a.lease.Extend(lease.ValidUntil(sent, a.guard.config.ttl))
}

func (a keptAttempt) Lost() {
	expired := a.expired()
	a.lease.End(ErrLost)
	if !a.settled.Load() {
		a.recordLoss(expired)
	}
}

// expired reports whether the lease was not renewed in time.
func (a *Attempt) expired() bool {
	return a.lease.Err() != nil && errors.Is(context.Cause(a.lease), ErrExpired)
}

// recordLoss records, once, that another attempt may have taken over while this one was not
// settled.
func (a *Attempt) recordLoss(expired bool) {
	how := telemetry.Lost
	if expired {
		how = telemetry.Expired
	}
	if !a.lossReported.Swap(true) {
		a.guard.leases.Lost(a.ctx, how)
	}
}
