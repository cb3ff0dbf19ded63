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
	// BeginOperation looks an operation up, and starts or takes over an attempt at it if it may.
	BeginOperation(ctx context.Context, req BeginRequest) (BeginReply, error)

	// SettleOperation records how an attempt ended, as long as the attempt still owns the record,
	// its lease expired or not, or if the record is gone. It reports false if another attempt has
	// taken over. A result that the store has no room for is settled as [NotRetained].
	SettleOperation(ctx context.Context, req SettleRequest) (bool, error)

	// AbandonOperation ends an attempt as if it had not been, and makes sure that a delayed
	// BeginOperation of the same owner starts nothing. A record that tells of an earlier attempt
	// that may have had effects stays, with its lease ended. It reports false if the attempt
	// does not own the record.
	AbandonOperation(ctx context.Context, id, owner string) (bool, error)

	// MarkOperation records whether the attempt may have had effects. It reports false if the
	// attempt does not own the record.
	MarkOperation(ctx context.Context, id, owner string, dirty bool) (bool, error)

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
	// Unknown means that an attempt ended, and nobody knows what it did.
	Unknown
)

// BeginRequest asks to begin an attempt.
type BeginRequest struct {
	ID          string // of the operation: fixed length, no bytes of the user's
	Owner       string // of this attempt: 22 characters of base64url
	Fingerprint string // of the request: 43 characters of base64url
	Lease       time.Duration
	Retention   time.Duration
	Rerun       bool // an attempt of unknown outcome may be followed by another
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
)

// BeginReply is the answer to a BeginRequest.
type BeginReply struct {
	Outcome   BeginOutcome
	Number    int           // of the attempt in the record, from 1
	Remaining time.Duration // if Busy
	State     State         // if Settled
	Status    int           // if Settled
	Data      []byte        // if Settled as Completed
}

// SettleRequest ends an attempt with a result. It carries all that the record says, since the
// record may be gone.
type SettleRequest struct {
	ID, Owner, Fingerprint string
	Number                 int
	State                  State // Completed, NotRetained or Unknown
	Status                 int   // 0 to 9999
	Data                   []byte
	Retention              time.Duration
}

// RenewRequest extends one lease.
type RenewRequest struct {
	ID, Owner string
	Lease     time.Duration
	Retention time.Duration
}
