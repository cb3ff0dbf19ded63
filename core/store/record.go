package store

import (
	"context"
	"iter"
	"math"
	"time"
)

// Records keeps the records of guarded operations. core/memstore, core/redisstore and core/pgstore
// implement it; storetest.Records is the suite that every implementation must pass.
//
// Every method is one atomic step that may be sent twice. An attempt is identified by its Owner, a
// random string that is never used again: a step that this owner has already taken succeeds again
// and changes nothing. Times are durations, counted by the store's own clock. Errors match
// ErrUnavailable or are the context's.
type Records interface {
	// BeginOperation reads the record of an operation. It starts an attempt if there is no record. It
	// takes one over if the attempt died and has had no effects, if it died and all its effects are in
	// steps, or if its outcome is unknown and re-runs are allowed.
	//
	// A scope that has MaxRecords records takes no further one ([ScopeFull]); operations that have a
	// record are answered as before. A store may exceed the bound by less than a sixteenth, and may
	// count a record for up to a sixteenth of its retention after its end. A store without room for a
	// new record fails with ErrFull, but answers for existing records.
	BeginOperation(ctx context.Context, req BeginRequest) (BeginReply, error)

	// SettleOperation records the end of an attempt, whether its lease has expired or not, if the
	// attempt still owns the record or the record is gone. It returns false if another attempt has
	// taken over.
	//
	// A result is settled as [NotRetained] if the store has no room for it, or if the results of its
	// scope would exceed MaxBytes. A store may exceed MaxBytes by less than a sixteenth, and by
	// results that are settled at the same time.
	SettleOperation(ctx context.Context, req SettleRequest) (bool, error)

	// AbandonOperation ends an attempt as if it had not begun, and makes sure that a delayed
	// BeginOperation of the same owner starts nothing. It returns false if the attempt does not own
	// the record.
	//
	// The record stays if an earlier attempt may have had effects or has EffectsInSteps. Its lease is
	// ended and it has no owner, so that a delayed step of this attempt changes nothing.
	AbandonOperation(ctx context.Context, ref AttemptRef) (bool, error)

	// MarkOperation records the effects that the attempt may have had. The marks of an attempt are
	// ordered: one that arrives after a mark with a higher Seq changes nothing. It returns false if
	// the attempt does not own the record.
	MarkOperation(ctx context.Context, req MarkRequest) (bool, error)

	// RenewOperations extends the leases of attempts in flight, and keeps their records for at least
	// the retention from now. It reports for each whether the attempt owns the record. With an error,
	// the attempts reported as owners are owners, and the state of the others is unknown.
	RenewOperations(ctx context.Context, reqs []RenewRequest) ([]bool, error)

	Hooks
}

// StepRecords is a store that keeps the results of steps. Without it, an operation has none.
type StepRecords interface {
	// RecordStep keeps the result of a step of the operation, until the operation is settled. An
	// existing result stays as it is. It returns false if the attempt does not own the record. A store
	// without room for it fails with ErrFull.
	RecordStep(ctx context.Context, req StepRequest) (bool, error)
}

// AwaitedRecords is a store that can wait for the end of an attempt. Without it, twins ask again.
type AwaitedRecords interface {
	// AwaitOperation blocks while an attempt at the operation is in flight. It returns nil when the
	// attempt or its lease has ended; at once if there is none. It may return nil earlier.
	AwaitOperation(ctx context.Context, ref OperationRef) error
}

// ResolvableRecords is a store whose records an operator can see and resolve.
type ResolvableRecords interface {
	// InspectOperation returns the record of an operation, and false if there is none.
	InspectOperation(ctx context.Context, ref OperationRef) (OperationRecord, bool, error)

	// ListUnresolved yields the records of a guard that are [OperationRecord.Unresolved]. It takes no
	// snapshot: records that change during the listing may be missing.
	ListUnresolved(ctx context.Context, guard string) iter.Seq2[OperationRecord, error]

	// ResolveOperation settles an operation whose outcome is unknown, if its record is as it was
	// inspected.
	ResolveOperation(ctx context.Context, req ResolveRequest) (ResolveOutcome, error)
}

// RecordState is the state of an operation in its record.
type RecordState int

const (
	// InFlight means that an attempt is in flight, or died without settling.
	InFlight RecordState = iota
	// Completed means that the operation ran, and its result is kept.
	Completed
	// NotRetained means that the operation ran, and its result is not kept.
	NotRetained
	// Unknown means that an attempt ended, and its outcome is unknown.
	Unknown
	// Reconciling means that an owner is finding out the unknown outcome, under a lease as an attempt
	// in flight.
	Reconciling
)

// Effects says which effects an attempt in flight may have had, should it die.
type Effects int

const (
	// MayHaveEffects means that it may have had effects: its outcome is unknown.
	MayHaveEffects Effects = iota
	// NoEffects means that it has had none: another attempt may take over.
	NoEffects
	// EffectsInSteps means that all its effects are in steps, which may be repeated or are recorded
	// ([StepRequest]): another attempt may take over.
	EffectsInSteps
)

// OperationRef names an operation. Only the guard's name is readable: everything that a user sent
// is hashed.
type OperationRef struct {
	Guard string // 1 to 128 characters of printable ASCII
	Scope string // 22 characters of base64url, or empty if it has none
	ID    string // 22 characters of base64url
}

// AttemptRef names an attempt at an operation.
type AttemptRef struct {
	OperationRef
	Owner string // 22 characters of base64url
}

// BeginRequest asks to begin an attempt.
type BeginRequest struct {
	AttemptRef
	Fingerprint string // of the request: 43 characters of base64url
	Lease       time.Duration
	Retention   time.Duration
	Rerun       bool   // another attempt may follow one of unknown outcome
	Reconcile   bool   // the caller may find out an unknown outcome: see [ToReconcile]
	MaxRecords  int    // of the scope, if there is one; zero is no bound
	Holder      string // of the attempt, for people: at most MaxHolder bytes
}

// MaxHolder is the largest Holder of a [BeginRequest], in bytes.
const MaxHolder = 512

// BeginOutcome is the outcome of BeginOperation.
type BeginOutcome int

const (
	// Started means that this owner's attempt is in flight; it may be a takeover (Number above 1).
	Started BeginOutcome = iota
	// Settled means that the record is settled; the reply has its State, Status and Data.
	Settled
	// Busy means that another attempt is in flight; its lease has Remaining to live.
	Busy
	// Mismatched means that the record belongs to a request with another fingerprint.
	Mismatched
	// Undecided means that another attempt died and may have had effects, and that re-runs are not
	// allowed.
	Undecided
	// Refused means that this owner's attempt was abandoned before this request arrived.
	Refused
	// ScopeFull means that the operation is new, and that its scope has reached MaxRecords. The
	// first of its records ends after Remaining, if that is not zero.
	ScopeFull
	// ToReconcile means that the outcome is unknown, and that this owner has the operation to find it
	// out. The owner resolves it ([ResolveRequest]), or settles it as [Unknown] again; until then
	// others get [Busy]. Number is the last attempt's.
	ToReconcile
)

// BeginReply is the answer to a BeginRequest.
type BeginReply struct {
	Outcome   BeginOutcome
	Number    int           // of the attempt in the record, from 1
	Remaining time.Duration // if Busy or ScopeFull
	State     RecordState   // if Settled
	Status    int           // if Settled
	Data      []byte        // if Settled as Completed
	Effects   Effects       // if Started: of the operation so far; MayHaveEffects at first
	Steps     []Step        // if Started: results that earlier attempts recorded
	// Records is the number of the scope's records, if Started made a new one and the store has
	// counted them. It counts at least whenever they have grown by a sixteenth of MaxRecords since the
	// first one. Otherwise it is zero.
	Records int
}

// Step is the result of a part of an operation.
type Step struct {
	Name string // 1 to MaxStepName bytes
	Data []byte // at most MaxStepData bytes
}

// Bounds of a [Step], and of the steps of an operation.
const (
	MaxStepName = 128
	MaxStepData = 1 << 20
	MaxSteps    = 64
)

// StepRequest records the result of a step.
type StepRequest struct {
	AttemptRef
	Step
}

// SettleRequest ends an attempt with a result. It carries the whole record, since the stored one
// may be gone.
type SettleRequest struct {
	AttemptRef
	Fingerprint string
	Number      int
	State       RecordState // Completed, NotRetained or Unknown
	Status      int         // 0 to 9999
	Data        []byte
	Retention   time.Duration
	MaxBytes    int    // of the results of the scope, if there is one; zero is no bound
	Holder      string // as in the BeginRequest
}

// OperationRecord is a record, as an operator sees it. Times are counted by the store's clock.
type OperationRecord struct {
	OperationRef
	State   RecordState
	Number  int     // of the last attempt, from 1
	Effects Effects // if in flight: of all attempts
	Holder  string
	Age     time.Duration // since the first attempt began
	Changed time.Duration // since its last change other than a renewal
	Lease   time.Duration // the rest of the lease, if in flight; zero if it has ended
	Expires time.Duration // until the record is removed
	Status  int           // if settled
	Bytes   int           // of its data, if completed
	Steps   []string      // names of the recorded steps
	Version string        // changes with the record, but not with renewals
}

// Unresolved reports whether the outcome is unknown, and not being reconciled: its state is
// Unknown, or its attempt is in flight with its lease ended, and may have had effects.
func (r *OperationRecord) Unresolved() bool {
	return r.State == Unknown || (r.State == InFlight || r.State == Reconciling) && r.Lease == 0 && r.Effects != NoEffects
}

// ResolveRequest settles an operation of unknown outcome.
type ResolveRequest struct {
	OperationRef
	// Owner is the owner of a record [ToReconcile], or 22 characters of base64url that are never used
	// again. A repeat is recognised by it.
	Owner   string
	Version string // of the inspected record; empty for that of Owner
	// State is Completed or NotRetained, or InFlight: then the operation had no effects, and the next
	// attempt may begin.
	State     RecordState
	Status    int
	Data      []byte
	Retention time.Duration
}

// ResolveOutcome is the outcome of ResolveOperation.
type ResolveOutcome int

const (
	// Resolved means that the operation is settled as requested.
	Resolved ResolveOutcome = iota
	// RecordChanged means that the record has changed since it was inspected, or is gone.
	RecordChanged
	// RecordInUse means that the lease of an attempt has not ended.
	RecordInUse
	// RecordResolved means that the outcome is known.
	RecordResolved
)

// MarkRequest records the effects that an attempt may have had.
type MarkRequest struct {
	AttemptRef
	Effects Effects
	Seq     int // 1 for the first mark of the attempt, and one more for each further one
}

// MaxSeq is the largest Seq of a [MarkRequest], which fits an int on 32-bit platforms.
const MaxSeq = math.MaxInt32

// RenewRequest extends one lease.
type RenewRequest struct {
	AttemptRef
	Lease     time.Duration
	Retention time.Duration
}
