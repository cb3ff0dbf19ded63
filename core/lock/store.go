package lock

import (
	"context"
	"iter"
	"time"
)

// Store keeps locks. core/memstore and core/redisstore implement it, and [Quorum] makes one of
// several; core/storetest holds the suite that every implementation must pass.
//
// A lock is named by Name and Key. It is held by one exclusive hold or by any number of shared ones,
// and has a queue. Every request for a hold has an ID, a random string of 22 characters that is
// never used again; it names the request in the queue and then the hold.
//
// Every method but AwaitLock is one atomic step that may be sent twice: a step that the ID has
// already taken succeeds again without doing more. Times are durations, counted by the store's own
// clock. Errors match core.ErrUnavailable, or are the context's. A store bounds the time of every step
// itself: a release is asked for with a context that never ends.
type Store interface {
	// AcquireLock grants the lock if it is free and nobody waits for it who may have it first. If
	// not, and Queue is set, it puts the request at the end of the queue: the caller goes on with
	// AwaitLock, or withdraws with ReleaseLock. A shared request is granted beside other shared
	// holds, unless an exclusive one waits.
	AcquireLock(ctx context.Context, req AcquireRequest) (AcquireReply, error)

	// AwaitLock waits until a request that AcquireLock has queued is granted. If the store has lost
	// its place (a flush, a failover), it is queued anew. When ctx ends the place is still there:
	// the caller withdraws it with ReleaseLock. A place that nobody awaits is lost within seconds.
	//
	// It returns [ErrWithdrawn] if ReleaseLock was called for the request, and an error that matches
	// core.ErrUnavailable if the store was silent for so long that the place is lost.
	AwaitLock(ctx context.Context, req AcquireRequest) (Grant, error)

	// RenewLocks extends holds to their TTL from now, and reports for each whether it is held: never
	// for one that has expired, even if nobody took the lock since. With an error, those that it
	// reports are held, and of the others nothing is known.
	RenewLocks(ctx context.Context, reqs []HoldRequest) ([]bool, error)

	// ReleaseLock ends a hold, or withdraws a request from the queue, and makes sure that a delayed
	// AcquireLock of the same ID does nothing. If that lets others have the lock, it is theirs. It
	// reports whether the ID held the lock. It is never refused for want of room.
	ReleaseLock(ctx context.Context, req HoldRequest) (bool, error)

	// DowngradeLock makes an exclusive hold a shared one, with its fence and a new TTL, and admits
	// the shared requests that wait before the next exclusive one. It reports whether the ID holds
	// the lock.
	DowngradeLock(ctx context.Context, req HoldRequest) (bool, error)

	// VerifyLock reports whether the ID holds the lock. It changes nothing.
	VerifyLock(ctx context.Context, req HoldRequest) (bool, error)

	// InspectLock says who holds a lock. A lock that is free has no holders.
	InspectLock(ctx context.Context, name, key string) (State, error)

	// ListLocks yields the locks of a name that are held or waited for, in no order, as they are
	// found: one that changes meanwhile may be seen as it was, twice, or not at all. It ends with
	// the first error.
	ListLocks(ctx context.Context, name string) iter.Seq2[State, error]

	// ForceUnlock ends the hold that has this fence, as if it had been released, and tells its
	// holder. It reports whether there was such a hold.
	ForceUnlock(ctx context.Context, name, key string, fence int64) (bool, error)

	// NotifyLost has f called with the ID of a hold that the store knows to have ended without its
	// holder's doing. It is a courtesy: whoever is not told finds out when it renews. f must not
	// block. The function that it returns takes f back.
	NotifyLost(f func(id string)) (remove func())

	// AtShutdown has f called by the store's Shutdown, before the store goes. The function that
	// it returns takes f back.
	AtShutdown(f func(context.Context) error) (remove func())
}

// AcquireRequest asks for a lock. Its key is no piece of a longer text, so a store may keep it.
type AcquireRequest struct {
	Name, Key string
	ID        string // of this request, and of the hold if it is granted
	Shared    bool   // beside other shared holds
	Queue     bool   // if it cannot be granted now
	Fair      bool   // nobody who came later has it first, not even if this one's process seems to be gone
	TTL       time.Duration
	Delay     time.Duration // for how long after an expiry nobody else has the lock
	Fences    int           // how many the hold may use, 1 to [MaxFences]; the store may give fewer
	Holder    string        // what others are told of the holder, at most [MaxHolder] bytes
}

// hold is the request about the hold that the request asks for.
func (r AcquireRequest) hold() HoldRequest {
	return HoldRequest{Name: r.Name, Key: r.Key, ID: r.ID, Shared: r.Shared, TTL: r.TTL, Delay: r.Delay}
}

const (
	// MaxFences is the largest block of fences that a request asks for.
	MaxFences = 64
	// MaxHolder is the largest Holder of a request, in bytes.
	MaxHolder = maxMeta + spanBytes
)

// AcquireOutcome is what AcquireLock did.
type AcquireOutcome int

const (
	// Granted means that the ID holds the lock; Grant says the rest.
	Granted AcquireOutcome = iota
	// Queued means that the ID waits for it.
	Queued
	// Taken means that somebody else has it, or is before the request.
	Taken
	// Withdrawn means that the ID was released before this request arrived.
	Withdrawn
)

// AcquireReply is the answer to an AcquireRequest.
type AcquireReply struct {
	Outcome   AcquireOutcome
	Grant                   // if Granted
	Holder    string        // if Queued or Taken: of the exclusive hold, or of one of the shared ones; may be empty
	Remaining time.Duration // if Queued or Taken: until the last of the holds expires, unless it is renewed
	Waiting   int           // if Queued or Taken: requests in the queue, this one not counted
}

// Grant says that a request has become a hold.
type Grant struct {
	// Sent is when the request was sent that the store granted, by the clock of the process: the
	// hold's TTL began no earlier.
	Sent time.Time
	// Fence to LastFence are the hold's fences. Each is larger than every fence of an earlier
	// exclusive hold of the lock. A shared hold has one, which only tells it from others.
	Fence, LastFence int64
}

// HoldRequest is about a hold, or a request in the queue.
type HoldRequest struct {
	Name, Key string
	ID        string
	Shared    bool
	TTL       time.Duration // for RenewLocks and DowngradeLock
	Delay     time.Duration // for RenewLocks and DowngradeLock
}

// State is what a store says of a lock.
type State struct {
	Key     string
	Holders []Holder // one exclusive or any number of shared ones
	Waiting int      // requests in the queue
}

// Holder is one hold of a lock.
type Holder struct {
	Fence, LastFence int64
	Shared           bool
	Meta             string        // what the holder said of itself ([WithHolder])
	Remaining        time.Duration // until it expires, unless it is renewed
}
