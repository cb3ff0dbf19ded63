package store

import (
	"context"
	"time"
)

// Records keeps the records of guarded operations. core/memstore and core/redisstore implement it;
// storetest.Records is the suite that every implementation must pass.
//
// Every method is one atomic step that may be sent twice: an attempt is named by its Owner, a random
// string that is never used again, and a step that this owner has already taken succeeds again and
// changes nothing. Times are durations, counted by the store's own clock. Errors match
// ErrUnavailable or are the context's.
type Records interface {
	// BeginOperation reads the record of an operation, and starts an attempt at the operation, or
	// takes one over, if the record allows it. A scope that has MaxRecords records takes no further
	// one ([ScopeFull]); operations that have a record are answered as before. A store may exceed the
	// bound by less than a sixteenth, and may count a record for up to a sixteenth of its retention
	// after its end.
	// A store without room for a new record fails with ErrFull, but answers about those that it has.
	BeginOperation(ctx context.Context, req BeginRequest) (BeginReply, error)

	// SettleOperation records how an attempt ended, if the attempt still owns the record, its lease
	// expired or not, or if the record is gone. It returns false if another attempt has taken over. A
	// result that the store has no room for, or with which the results of its scope would have more
	// than MaxBytes bytes (or less than a sixteenth more), is settled as [NotRetained].
	SettleOperation(ctx context.Context, req SettleRequest) (bool, error)

	// AbandonOperation ends an attempt as if it had not begun, and makes sure that a delayed
	// BeginOperation of the same owner starts nothing. The record of an earlier attempt that may have
	// had effects stays, with its lease ended and without an owner, so that a delayed step of this
	// attempt changes nothing. It returns false if the attempt does not own the record.
	AbandonOperation(ctx context.Context, ref AttemptRef) (bool, error)

	// MarkOperation records whether the attempt may have had effects. The marks of an attempt are
	// ordered: one that arrives after a mark with a higher Seq changes nothing. It returns false if
	// the attempt does not own the record.
	MarkOperation(ctx context.Context, req MarkRequest) (bool, error)

	// RenewOperations extends the leases of attempts in flight, and keeps their records for at least
	// the retention from now. It reports for each whether the attempt owns the record. With an error,
	// the attempts reported as owners are owners, and the state of the others is unknown.
	RenewOperations(ctx context.Context, reqs []RenewRequest) ([]bool, error)

	Hooks
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
)

// AttemptRef names an attempt at an operation. It holds nothing that a user sent in readable form.
type AttemptRef struct {
	Scope string // of the operation: 22 characters of base64url, or empty if it has none
	ID    string // of the operation: 22 characters of base64url
	Owner string // of this attempt: 22 characters of base64url
}

// BeginRequest asks to begin an attempt.
type BeginRequest struct {
	AttemptRef
	Fingerprint string // of the request: 43 characters of base64url
	Lease       time.Duration
	Retention   time.Duration
	Rerun       bool // an attempt of unknown outcome may be followed by another
	MaxRecords  int  // of the scope, if there is one; zero is no bound
}

// BeginOutcome is what BeginOperation found and did.
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
	// Undecided means that another attempt died, may have had effects, and re-runs are not allowed.
	Undecided
	// Refused means that this owner's attempt was abandoned before this request arrived.
	Refused
	// ScopeFull means that the operation is new, and that its scope has reached MaxRecords. The
	// first of its records ends after Remaining, if that is not zero.
	ScopeFull
)

// BeginReply is the answer to a BeginRequest.
type BeginReply struct {
	Outcome   BeginOutcome
	Number    int           // of the attempt in the record, from 1
	Remaining time.Duration // if Busy or ScopeFull
	State     RecordState   // if Settled
	Status    int           // if Settled
	Data      []byte        // if Settled as Completed
}

// SettleRequest ends an attempt with a result. It carries the whole record, since the stored one may
// be gone.
type SettleRequest struct {
	AttemptRef
	Fingerprint string
	Number      int
	State       RecordState // Completed, NotRetained or Unknown
	Status      int         // 0 to 9999
	Data        []byte
	Retention   time.Duration
	MaxBytes    int // of the results of the scope, if there is one; zero is no bound
}

// MarkRequest records whether an attempt may have had effects.
type MarkRequest struct {
	AttemptRef
	Dirty bool
	Seq   int // 1 for the first mark of the attempt, and one more for each further one
}

// MaxSeq is the largest Seq of a [MarkRequest].
const MaxSeq = 9_999_999_999

// RenewRequest extends one lease.
type RenewRequest struct {
	AttemptRef
	Lease     time.Duration
	Retention time.Duration
}
