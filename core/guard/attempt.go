package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
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
	effects   store.Effects
	retention time.Duration // how long its record is kept

	steps steps

	telemetry telemetry.Beginning
	running   live.Mark
}

type contextKey struct{}

// FromContext returns the attempt whose context ctx is or derives from. In gin pass
// c.Request.Context(), not c: see package ginmw.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(contextKey{}).(*Attempt)
	return a, ok
}

// Number is 1 for the first attempt at an operation, and one more for each attempt that took over
// from one that died. It grows while the record is kept, so it can fence writes: refuse the write
// of an attempt with a lower number than the last one seen.
func (a *Attempt) Number() int { return a.number }

// OperationID identifies the operation: it is the same in every attempt at it, unique to it, and
// reveals nothing that users sent. It has 22 characters of base64url, or 44 if the operation has a
// scope. [Guard.InspectID] finds the operation by it.
//
// Pass it as the idempotency key to the service that the operation calls, so that a second attempt
// repeats nothing there. For several calls there is [Attempt.DownstreamKey].
func (a *Attempt) OperationID() string { return idOf(a.req.OperationRef) }

// Context ends when the attempt must stop. Its cause ([context.Cause]) is [ErrExpired] if its lease
// could not be renewed in time, [ErrLost] if it no longer owns the operation, [ErrSettled] once it
// is settled, or the cause of the context that was passed to Begin.
func (a *Attempt) Context() context.Context { return a.ctx }

// Dirty reports whether the attempt may have had effects outside of any [Step], by the last
// successful call of MarkClean, MarkDirty or Step.
func (a *Attempt) Dirty() bool {
	a.marking.Lock()
	defer a.marking.Unlock()
	return a.effects == store.MayHaveEffects
}

// MayRerun reports whether the operation may run again if this attempt has failed: it is not Dirty,
// or the guard was built [WithRerun]. Abandon then settles it, and otherwise CompleteUnknown.
func (a *Attempt) MayRerun() bool { return a.guard.config.rerun || !a.Dirty() }

// Keep sets how long the result is kept, and the record with it, instead of [WithRetention]. It
// applies to a later Complete or CompleteNotRetained; and to a later CompleteUnknown, if it is
// longer. It panics if d is negative or longer than 366 days.
func (a *Attempt) Keep(d time.Duration) {
	if d < 0 || d > maxRetention {
		panic(fmt.Sprintf("guard: Keep: %v is not between 0 and 366 days", d))
	}
	a.marking.Lock()
	defer a.marking.Unlock()
	a.retention = max(d, time.Millisecond)
}

// Forget removes the record when the attempt is completed: the next request with the same key is a
// new operation. It is for a handler that recognises an intended repeat.
func (a *Attempt) Forget() { a.Keep(0) }

// MarkClean records that the attempt has had no effect yet outside of a [Step]: if it dies now,
// another may take over. Call it before any effect, and MarkDirty before the first one. One round
// trip.
//
// An error is [ErrLost], [ErrSettled], the context's or one that matches store.ErrUnavailable. The
// attempt then counts as dirty here, but if the error matches store.ErrUnconfirmed or is the
// context's, the store may count it as clean: call MarkDirty before the first effect even then.
func (a *Attempt) MarkClean(ctx context.Context) error {
	a.steps.mu.Lock()
	effects := store.NoEffects
	if a.steps.declared = len(a.steps.byName) > 0; a.steps.declared {
		effects = store.EffectsInSteps
	}
	a.steps.mu.Unlock()
	return a.mark(ctx, effects)
}

// MarkDirty records that effects begin now: if the attempt dies after this, its outcome is unknown.
// One round trip. An earlier MarkClean that reaches the store later does not undo it. After an
// error (see MarkClean) the caller must not proceed to the effect, since the store may count the
// attempt as clean.
func (a *Attempt) MarkDirty(ctx context.Context) error {
	a.steps.mu.Lock()
	a.steps.declared = true // a later Step does not undo it
	a.steps.mu.Unlock()
	return a.mark(ctx, store.MayHaveEffects)
}

func (a *Attempt) mark(ctx context.Context, effects store.Effects) error {
	if a.settled.Load() {
		return ErrSettled
	}
	a.marking.Lock()
	a.sentMarks++
	seq := a.sentMarks
	a.effects = store.MayHaveEffects
	a.marking.Unlock()
	held, err := a.guard.store.MarkOperation(ctx, store.MarkRequest{AttemptRef: a.req.AttemptRef, Effects: effects, Seq: seq})
	if err != nil {
		return err
	}
	if !held {
		return ErrLost
	}
	a.marking.Lock()
	defer a.marking.Unlock()
	if seq == a.sentMarks { // no later mark was sent
		a.effects = effects
	}
	return nil
}

// Complete records the result of the operation: it does not run again while the record is kept, and
// later calls of Begin return this result. If its Data exceeds the limit of the guard, the store or
// the scope ([WithMaxScopeBytes]), they return a *[NotRetainedError] instead.
//
// Complete runs to its end even if ctx is cancelled. An error is
//
//   - [ErrSettled];
//   - [ErrLost] if another attempt has taken over, whose result will count; or
//   - one that matches store.ErrUnavailable: then the completion is retried in the background for
//     as long as the record would be kept. Until it succeeds, this guard's Begin returns the result
//     from memory.
//
// So the caller should send its answer to the client in any case. Pending completions take at most
// 64 MiB: a result beyond that is settled as not retained, and a completion that does not fit even
// without its result is dropped.
func (a *Attempt) Complete(ctx context.Context, r Result) error {
	state, status, data := a.stored(r)
	return a.settle(ctx, state, status, data)
}

// stored returns a result as the store keeps it.
func (a *Attempt) stored(r Result) (state store.RecordState, status int, data []byte) {
	if len(r.Data) > a.guard.config.maxResult {
		return store.NotRetained, r.Status, nil
	}
	status = statusOf(r.Status)
	p := place{ref: a.req.OperationRef, status: status}
	_, span := lease.CutSpan(a.req.Holder) // of the context of Begin
	return store.Completed, status, a.guard.sealer.seal(p, span, r.Data)
}

// CompleteNotRetained records that the operation ran, with a status and without a result: later
// calls of Begin return a *[NotRetainedError]. Its errors are Complete's.
func (a *Attempt) CompleteNotRetained(ctx context.Context, status int) error {
	return a.settle(ctx, store.NotRetained, status, nil)
}

// CompleteUnknown records that the attempt ended with an unknown outcome: later calls of Begin
// return [ErrOutcomeUnknown], or run the operation again if the guard was built [WithRerun]. Its
// errors are Complete's.
func (a *Attempt) CompleteUnknown(ctx context.Context) error {
	return a.settle(ctx, store.Unknown, 0, nil)
}

// Abandon releases the operation as if there had been no attempt: the next Begin runs it. The
// caller asserts that the attempt had no effects, or that they may happen again. Its errors are
// Complete's, and it is retried in the same way.
func (a *Attempt) Abandon(ctx context.Context) error {
	return a.finish(ctx, telemetry.Abandoned, func(ctx context.Context) (bool, error) {
		return a.guard.store.AbandonOperation(ctx, a.req.AttemptRef)
	}, func(err error) telemetry.IdempotencyResult {
		a.guard.abandonLater(a.ctx, a.req.AttemptRef, err, a.forget)
		return telemetry.IdempotencyError
	})
}

// CompleteBy is Complete by a step of the caller's, such as a statement in the transaction of the
// operation's effects: pgstore.Do and pgstore.Complete call it. step gets the guard's store, and
// the request that Complete would send to it. It reports whether the attempt owned the record: if
// so, the attempt is settled; if not, it is lost, and CompleteBy returns [ErrLost].
//
// If step returns an error, CompleteBy returns it, retries nothing, and leaves the attempt as it
// was: the caller settles it with another call. The attempt's context ends when the attempt is
// settled, not before. If it is settled already, CompleteBy returns [ErrSettled], and does not call
// step. No other method settles the attempt while step runs.
func (a *Attempt) CompleteBy(
	ctx context.Context, r Result, step func(context.Context, store.Records, store.SettleRequest) (owned bool, err error),
) error {
	if !a.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	settled := false
	defer func() { // also after a panic
		if !settled {
			a.settled.Store(false)
		}
	}()
	req := a.settlement(a.stored(r))
	owned, err := step(ctx, a.guard.store, *req)
	if err != nil {
		return err
	}
	settled = true
	defer a.ended()
	expired := a.expired()
	a.lease.End(ErrSettled)
	a.guard.typical.Add(time.Since(a.start))
	return a.finished(ctx, endOf(req.State), owned, expired)
}

func (a *Attempt) settle(ctx context.Context, s store.RecordState, status int, data []byte) error {
	g := a.guard
	req := a.settlement(s, status, data)
	g.typical.Add(time.Since(a.start))
	return a.finish(ctx, endOf(s), func(ctx context.Context) (bool, error) {
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

// endOf returns the result of an attempt that was settled in a state, for telemetry.
func endOf(s store.RecordState) telemetry.IdempotencyResult {
	switch s {
	case store.Unknown:
		return telemetry.Failed
	case store.NotRetained:
		return telemetry.Unretained
	default:
		return telemetry.Executed
	}
}

// settlement returns the request that settles the attempt.
func (a *Attempt) settlement(s store.RecordState, status int, data []byte) *store.SettleRequest {
	return &store.SettleRequest{
		AttemptRef: a.req.AttemptRef, Fingerprint: a.req.Fingerprint, Number: a.number,
		State: s, Status: statusOf(status), Data: data, Retention: a.keeps(s),
		MaxBytes: a.guard.config.maxScopeBytes, Holder: a.req.Holder,
	}
}

// statusOf returns a status as a store keeps it.
func statusOf(status int) int { return min(max(status, 0), 9999) }

// keeps returns how long the record is kept with this state.
func (a *Attempt) keeps(s store.RecordState) time.Duration {
	a.marking.Lock()
	defer a.marking.Unlock()
	if s == store.Unknown { // who forgets it would run the operation again
		return max(a.retention, a.req.Retention)
	}
	return a.retention
}

// finish runs the last step of the attempt, once. If it fails, finish calls later, which retries
// it.
func (a *Attempt) finish(ctx context.Context, ended telemetry.IdempotencyResult,
	step func(context.Context) (bool, error), later func(error) telemetry.IdempotencyResult,
) error {
	if !a.settled.CompareAndSwap(false, true) {
		return ErrSettled
	}
	defer a.ended()
	expired := a.expired()
	a.lease.End(ErrSettled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	owned, err := step(ctx)
	if err != nil {
		a.guard.telemetry.End(ctx, a.telemetry, later(err), err)
		return err
	}
	return a.finished(ctx, ended, owned, expired)
}

// finished ends the attempt here after the store has confirmed its last step.
func (a *Attempt) finished(ctx context.Context, ended telemetry.IdempotencyResult, owned, expired bool) error {
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

func (a *Attempt) ended() {
	a.running.End()
	a.guard.calls.End()
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
