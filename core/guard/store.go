package guard

import (
	"context"
	"time"
)

// Store keeps the records of operations. core/memstore and core/redisstore implement it;
// core/storetest holds the suite that every implementation must pass.
//
// Every method is one atomic step that may be sent twice: an attempt is named by its Owner, a
// random string that is never used again, and a step that this owner has already taken succeeds
// again without doing more. Times are durations, counted by the store's own clock.
// Errors match core.ErrUnavailable or are the context's.
type Store interface {
	// BeginOperation looks an operation up, and starts or takes over an attempt at it if it may. A
	// scope that has MaxRecords records takes no further one ([ScopeFull]); what it has is answered
	// as ever. A store may exceed the bound by less than a sixteenth, and may count a record for up to
	// a sixteenth of its retention after its end.
	// A store without room for a new record fails with core.ErrFull, and answers about those that it
	// has all the same.
	BeginOperation(ctx context.Context, req BeginRequest) (BeginReply, error)

	// SettleOperation records how an attempt ended, as long as the attempt still owns the record,
	// its lease expired or not, or if the record is gone. It reports false if another attempt has
	// taken over. A result that the store has no room for, or with which the results of its scope
	// would have more than MaxBytes bytes (or less than a sixteenth more), is settled as [NotRetained].
	SettleOperation(ctx context.Context, req SettleRequest) (bool, error)

	// AbandonOperation ends an attempt as if it had not been, and makes sure that a delayed
	// BeginOperation of the same owner starts nothing. A record that tells of an earlier attempt
	// that may have had effects stays, with its lease ended, and has no owner any more: a delayed
	// step of the attempt changes nothing. It reports false if the attempt does not own the record.
	AbandonOperation(ctx context.Context, ref AttemptRef) (bool, error)

	// MarkOperation records whether the attempt may have had effects. The marks of an attempt have an
	// order: one that arrives after a mark with a higher Seq changes nothing. It reports false if the
	// attempt does not own the record.
	MarkOperation(ctx context.Context, req MarkRequest) (bool, error)

	// RenewOperations extends the leases of attempts in flight, and keeps their records for at
	// least the retention from now. It reports for each whether the attempt owns the record. With an
	// error, those that it reports do, and of the others nothing is known.
	RenewOperations(ctx context.Context, reqs []RenewRequest) ([]bool, error)

	// AtShutdown has f called by the store's Shutdown, before the store goes. The function that
	// it returns takes f back.
	AtShutdown(f func(context.Context) error) (remove func())
}

// State is what a record says of its operation.
type State int

const (
	// InFlight means that an attempt is under way, or died without settling.
	InFlight State = iota
	// Completed means that the operation ran, and its result is kept.
	Completed
	// NotRetained means that the operation ran, and its result is not kept.
	NotRetained
	// Unknown means that an attempt ended, and its outcome is unknown.
	Unknown
)

// AttemptRef names an attempt at an operation. Nothing in it can be read that a user sent.
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

// BeginOutcome is what BeginOperation found, and did.
type BeginOutcome int

const (
	// Started means that this owner's attempt is in flight; it may be a takeover (Number above 1).
	Started BeginOutcome = iota
	// Settled means that there is a settled record; State says how, and Status and Data what is kept.
	Settled
	// Busy means that another attempt's lease has Remaining to live.
	Busy
	// Mismatched means that the record belongs to a request with another fingerprint.
	Mismatched
	// Undecided means that another attempt died, may have had effects, and re-runs are not allowed.
	Undecided
	// Refused means that this owner's attempt was abandoned before this request arrived.
	Refused
	// ScopeFull means that the operation is new, and that its scope has as many records as it may
	// have. The first of them ends after Remaining, if that is not zero.
	ScopeFull
)

// BeginReply is the answer to a BeginRequest.
type BeginReply struct {
	Outcome   BeginOutcome
	Number    int           // of the attempt in the record, from 1
	Remaining time.Duration // if Busy or ScopeFull
	State     State         // if Settled
	Status    int           // if Settled
	Data      []byte        // if Settled as Completed
}

// SettleRequest ends an attempt with a result. It carries all that the record says, since the
// record may be gone.
type SettleRequest struct {
	AttemptRef
	Fingerprint string
	Number      int
	State       State // Completed, NotRetained or Unknown
	Status      int   // 0 to 9999
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
