package guard

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// State is the state of an operation in its [Record].
type State string

// The states of an operation.
const (
	InFlight    State = "in flight"    // an attempt runs, or has died: see [Record.Unresolved]
	Reconciling State = "reconciling"  // the function of [WithReconcile] runs
	Completed   State = "completed"    // it ran, and its result is kept
	NotRetained State = "not retained" // it ran, and its result is not kept
	Unknown     State = "unknown"      // an attempt ended, and may have had effects
)

var states = map[store.RecordState]State{
	store.InFlight: InFlight, store.Reconciling: Reconciling, store.Completed: Completed, store.NotRetained: NotRetained, store.Unknown: Unknown,
}

// Record is the record of an operation, for operators and for [WithReconcile]. Times are measured
// by the store's clock.
type Record struct {
	// ID identifies the operation: it is [Attempt.OperationID]. It reveals nothing that users sent.
	ID    string
	State State
	// Attempt is the number of the last attempt.
	Attempt int
	// Dirty reports whether the attempt in flight, or an earlier one, may have had effects outside of
	// any [Step]. It is false once the state is [Unknown], which says the same.
	Dirty bool
	// Holder describes the process of the last attempt ([WithHolder]).
	Holder string
	// Trace is the span of the last attempt's request, if it was sampled.
	Trace trace.SpanContext
	// Age is the time since the first attempt began. Changed is the time since the record last
	// changed; renewals of the lease are no change.
	Age, Changed time.Duration
	// Lease is the rest of the lease of an attempt in flight, or zero.
	Lease time.Duration
	// Expires is the time until the record is removed: the same key is then a new operation.
	Expires time.Duration
	// Status is the [Result]'s. Size is the size of its stored data, in bytes.
	Status, Size int
	// Steps are the names of the recorded steps, in their order, while no result is recorded.
	Steps []string

	unresolved bool
	ref        store.OperationRef
	version    string
}

// Unresolved reports whether the outcome of the operation is unknown, and not being reconciled: its
// state is [Unknown], or its attempt died and may have had effects, if only in a [Step].
func (r Record) Unresolved() bool { return r.unresolved }

// Version identifies this state of the record, in 22 characters of base64url: it changes with the
// record, but not with renewals of a lease. A console that shows a record in one request and
// resolves it in another compares the version that it has shown with that of [Guard.InspectID].
func (r Record) Version() string {
	sum := sha256.Sum256([]byte(r.version)) // which may contain the attempt's token
	return encode(sum[:16])
}

func recordOf(r store.OperationRecord) Record {
	holder, span := lease.CutSpan(r.Holder)
	return Record{
		ID: idOf(r.OperationRef), State: states[r.State], Attempt: r.Number,
		Dirty:  (r.State == store.InFlight || r.State == store.Reconciling) && r.Effects == store.MayHaveEffects,
		Holder: holder, Trace: span, Age: r.Age, Changed: r.Changed, Lease: r.Lease, Expires: r.Expires, Status: r.Status, Size: r.Bytes,
		Steps: r.Steps, unresolved: r.Unresolved(), ref: r.OperationRef, version: r.Version,
	}
}

// idSize is the size of the hashes of an operation and of its scope, as text.
const idSize = 22

func idOf(ref store.OperationRef) string { return ref.ID + ref.Scope }

// refOf is the reverse of idOf.
func (g *Guard) refOf(id string) (store.OperationRef, error) {
	_, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(id) != idSize && len(id) != 2*idSize || strings.ContainsAny(id, "\r\n") { // which the decoder ignores
		return store.OperationRef{}, fmt.Errorf("%w: %q is not the ID of one", ErrInvalidOperation, id[:min(len(id), 2*idSize+1)])
	}
	return store.OperationRef{Guard: g.name, ID: id[:idSize], Scope: id[idSize:]}, nil
}

// Inspect returns the record of an operation, whatever its fingerprint. One round trip.
//
// It returns [ErrNoRecord] if there is none, [ErrInvalidOperation], the context's error, or one
// that matches store.ErrUnavailable.
func (g *Guard) Inspect(ctx context.Context, op Operation) (Record, error) {
	if err := op.check(&g.config); err != nil {
		return Record{}, err
	}
	return g.inspect(ctx, g.ref(op))
}

// InspectID is Inspect by the ID of an operation, as in logs and refusals.
func (g *Guard) InspectID(ctx context.Context, id string) (Record, error) {
	ref, err := g.refOf(id)
	if err != nil {
		return Record{}, err
	}
	return g.inspect(ctx, ref)
}

func (g *Guard) inspect(ctx context.Context, ref store.OperationRef) (Record, error) {
	able, err := store.As[store.ResolvableRecords](g.store)
	if err != nil {
		return Record{}, err
	}
	record, found, err := able.InspectOperation(ctx, ref)
	if err == nil && !found {
		err = ErrNoRecord
	}
	if err != nil {
		return Record{}, err
	}
	return recordOf(record), nil
}

// Unresolved yields the records of the guard for which [Record.Unresolved] holds, in no order. It
// takes no snapshot: a record that changes during the listing may be missing. An error ends it: the
// context's, or one that matches store.ErrUnavailable.
//
// On Redis it scans the keys of all masters, which takes seconds for a million keys: it is for
// people, and for jobs that run every few minutes.
func (g *Guard) Unresolved(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		able, err := store.As[store.ResolvableRecords](g.store)
		if err != nil {
			yield(Record{}, err)
			return
		}
		for record, err := range able.ListUnresolved(ctx, g.name) {
			if !yield(recordOf(record), err) || err != nil {
				return
			}
		}
	}
}

// Resolution is the outcome of an operation whose outcome was unknown: [Happened],
// [HappenedAnswerLost] or [NeverHappened].
type Resolution struct {
	how    telemetry.Resolution
	state  store.RecordState
	result Result
}

// Happened resolves an operation that has happened: later calls of Begin return this result. The
// middleware replays only answers in its own encoding: idempotency.Answer of the framework makes
// one.
func Happened(r Result) Resolution {
	return Resolution{how: telemetry.Happened, state: store.Completed, result: r}
}

// HappenedAnswerLost resolves an operation that has happened without a known result: later calls of
// Begin return a *[NotRetainedError] with this status.
func HappenedAnswerLost(status int) Resolution {
	return Resolution{how: telemetry.AnswerLost, state: store.NotRetained, result: Result{Status: status}}
}

// NeverHappened resolves an operation that has had no effects: the next call of Begin runs it, as
// the attempt with the next number. Steps that were recorded are forgotten.
func NeverHappened() Resolution {
	return Resolution{how: telemetry.NeverHappened, state: store.InFlight}
}

// Resolve settles an operation whose outcome is unknown, as an operator has found it: by is the
// operator, and why the evidence, both for the log. The log and the metrics of the guard report
// every resolution.
//
// The record is then kept for [WithRetention], or for the rest of its time at the inspection if
// that is longer.
//
// Resolve changes nothing and returns an error:
//
//   - [ErrChanged] if the record has changed since the caller inspected it, or is gone;
//   - *[InFlightError] while the lease of an attempt has not ended;
//   - [ErrOutcomeKnown] if the operation has a result; and
//   - another one if by or why is empty or the result is larger than [WithMaxResult].
//
// If it returns the context's error, or one that matches store.ErrUnavailable, it may be called
// again with the same arguments: it returns nil if the call before has settled the operation.
func (g *Guard) Resolve(ctx context.Context, seen Record, how Resolution, by, why string) error {
	switch {
	case how.how == "":
		return errors.New("guard: Resolve: no resolution")
	case by == "" || why == "":
		return errors.New("guard: Resolve: by and why must not be empty")
	case seen.ref.Guard != g.name || seen.version == "":
		return errors.New("guard: Resolve: the record was not inspected by this guard")
	case len(how.result.Data) > g.config.maxResult:
		return fmt.Errorf("guard: Resolve: a result of %d bytes, at most %d are kept", len(how.result.Data), g.config.maxResult)
	}
	if err := g.resolve(ctx, seen.ref, how.owner(seen, by, why), seen.version, how, max(g.config.retention, min(seen.Expires, maxRetention))); err != nil {
		var inFlight *InFlightError
		if errors.As(err, &inFlight) {
			inFlight.ID, inFlight.Remaining = seen.ID, seen.Lease
		}
		return err
	}
	g.telemetry.Resolved(ctx, how.how, seen.ID, by, why)
	return nil
}

// owner is what a store recognises a repeat of a call of Resolve by: no other call has it, for no
// record has a version twice.
func (how Resolution) owner(seen Record, by, why string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %q %q %q", seen.ID, seen.version, how.how, how.result.Status, how.result.Data, by, why))
	return encode(sum[:16])
}

func (g *Guard) resolve(ctx context.Context, ref store.OperationRef, owner, version string, how Resolution, retention time.Duration) error {
	req := store.ResolveRequest{
		OperationRef: ref, Owner: owner, Version: version, State: how.state, Status: statusOf(how.result.Status),
		Retention: retention,
	}
	if how.state == store.Completed {
		req.Data = g.sealer.seal(place{ref: ref, status: req.Status}, trace.SpanContextFromContext(ctx), how.result.Data)
	}
	able, err := store.As[store.ResolvableRecords](g.store)
	if err != nil {
		return err
	}
	outcome, err := able.ResolveOperation(ctx, req)
	if errors.Is(err, store.ErrUnconfirmed) && ctx.Err() == nil { // a repeat is recognised
		outcome, err = able.ResolveOperation(ctx, req)
	}
	switch {
	case err != nil:
		return err
	case outcome == store.RecordChanged:
		return ErrChanged
	case outcome == store.RecordInUse:
		return &InFlightError{}
	case outcome == store.RecordResolved:
		return ErrOutcomeKnown
	}
	return nil
}

// reconcile calls the function of WithReconcile, and settles the operation with its resolution. The
// attempt owns the operation during the call. It returns nil if the request is to begin again,
// because the outcome is known or another request owns the operation.
func (g *Guard) reconcile(ctx context.Context, a *Attempt) error {
	how, err := g.findOut(ctx, a)
	if err != nil {
		return &UnknownError{ID: a.OperationID(), Err: err}
	}
	if len(how.result.Data) > g.config.maxResult { // as for Complete
		how.state, how.result.Data = store.NotRetained, nil
	}
	err = a.finish(ctx, telemetry.Executed, func(ctx context.Context) (bool, error) {
		err := g.resolve(ctx, a.req.OperationRef, a.req.Owner, "", how, a.keeps(how.state))
		if errors.Is(err, ErrChanged) {
			return false, nil
		}
		if err == nil {
			g.telemetry.Resolved(ctx, how.how, a.OperationID(), "reconciliation", "")
		}
		return err == nil, err
	}, func(error) telemetry.IdempotencyResult {
		a.forget() // its lease ends
		return telemetry.IdempotencyError
	})
	if errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

var (
	errReconcilePanicked = errors.New("guard: WithReconcile: the function panicked")
	errNoResolution      = errors.New("guard: WithReconcile: the function returned no resolution")
)

// findOut calls the function of WithReconcile. Without a resolution, the outcome stays unknown.
func (g *Guard) findOut(ctx context.Context, a *Attempt) (how Resolution, err error) {
	panicked := true
	defer func() {
		if panicked {
			err = errReconcilePanicked
		}
		if err != nil {
			g.telemetry.NotReconciled(ctx, a.OperationID(), err)
			_ = a.CompleteUnknown(ctx)
		}
	}()
	record, err := g.inspect(ctx, a.req.OperationRef)
	if err == nil {
		how, err = g.config.reconcile(a.lease, record)
	}
	if err == nil && how.how == "" {
		err = errNoResolution
	}
	panicked = false
	return how, err
}
