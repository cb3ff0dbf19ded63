package store

import (
	"context"
	"iter"
	"time"
)

// Locks keeps locks. core/memstore and core/redisstore implement it, and core/quorum makes one of
// several others; storetest.Locks is the suite that every implementation must pass.
//
// A lock is named by Name and Key. It is held by one exclusive hold or by any number of shared ones,
// and has a queue. Every request has an ID, a random string of 22 characters that is never used
// again; it names the request in the queue and then the hold.
//
// Every method but AwaitLock is one atomic step that may be sent twice: a step that the ID has
// already taken succeeds again and changes nothing. Times are durations, counted by the store's own
// clock. Errors match ErrUnavailable, or are the context's. A store bounds the time of every step
// itself: a release is called with a context that never ends.
type Locks interface {
	// AcquireLock grants the lock if it is free and no waiter has precedence. If it is not granted and
	// Queue is set, the request joins the end of the queue: the caller continues with AwaitLock, or
	// withdraws with ReleaseLock. A shared request is granted beside other shared holds, unless an
	// exclusive request waits.
	AcquireLock(ctx context.Context, req LockRequest) (LockReply, error)

	// AwaitLock blocks until a request that AcquireLock has queued is granted. If the store has lost
	// its place (a flush, a failover), the request is queued anew. When ctx ends the place is kept:
	// the caller withdraws it with ReleaseLock. A place that no caller awaits is lost within seconds.
	//
	// It returns [ErrWithdrawn] if ReleaseLock was called for the request, and an error that matches
	// ErrUnavailable if the store was silent for so long that the place is lost.
	AwaitLock(ctx context.Context, req LockRequest) (Grant, error)

	// RenewLocks extends holds to their TTL from now, and reports for each whether it is held: never
	// for one that has expired, even if the lock is still free. With an error, the holds reported as
	// held are held, and the state of the others is unknown.
	RenewLocks(ctx context.Context, refs []LockRef) ([]bool, error)

	// ReleaseLock ends a hold, or withdraws a request from the queue, and makes sure that a delayed
	// AcquireLock of the same ID does nothing. Waiters that the release admits are granted the lock
	// in the same step. It reports whether the ID held the lock. A full store does not refuse it.
	ReleaseLock(ctx context.Context, ref LockRef) (bool, error)

	// DowngradeLock makes an exclusive hold a shared one, with its fence and a new TTL, and admits
	// the shared requests that wait before the next exclusive one. It reports whether the ID holds
	// the lock.
	DowngradeLock(ctx context.Context, ref LockRef) (bool, error)

	// VerifyLock reports whether the ID holds the lock. It changes nothing.
	VerifyLock(ctx context.Context, ref LockRef) (bool, error)

	// InspectLock returns the state of a lock. A lock that is free has no holders.
	InspectLock(ctx context.Context, name, key string) (LockState, error)

	// ListLocks yields the locks of a name that are held or waited for, in no order, as they are
	// found: one that changes during the listing may be seen as it was, twice, or not at all. It ends
	// with the first error.
	ListLocks(ctx context.Context, name string) iter.Seq2[LockState, error]

	// ForceUnlock ends the hold that has this fence, as if it had been released, and notifies its
	// holder. It reports whether there was such a hold.
	ForceUnlock(ctx context.Context, name, key string, fence int64) (bool, error)

	// NotifyLost registers f, which the store calls with the ID of a hold that it knows to have ended
	// without its holder's doing. Best effort: a holder that is not notified learns of it at its next
	// renewal. f must not block. The returned function removes it.
	NotifyLost(f func(id string)) (remove func())

	Hooks
}

// LockRequest asks for a lock. Its strings are no parts of longer ones, so a store may keep them.
type LockRequest struct {
	Name, Key string
	ID        string        // of this request, and of the hold if it is granted
	Shared    bool          // beside other shared holds
	Queue     bool          // join the queue if it cannot be granted now
	Fair      bool          // no later request is granted first, even if this one's process seems dead
	TTL       time.Duration // of the hold
	Delay     time.Duration // after an expiry, how long the lock stays taken for all others
	Fences    int           // how many the hold may use, 1 to [MaxFences]; the store may grant fewer
	Holder    string        // label of the holder, which others can read; at most [MaxHolder] bytes
}

// Ref returns the reference to the hold, or the place in the queue, that the request is for.
func (r LockRequest) Ref() LockRef {
	return LockRef{Name: r.Name, Key: r.Key, ID: r.ID, Shared: r.Shared, TTL: r.TTL, Delay: r.Delay}
}

const (
	// MaxFences is the largest block of fences that a request asks for.
	MaxFences = 64
	// MaxHolder is the largest Holder of a request, in bytes.
	MaxHolder = 320
)

// AcquireOutcome is what AcquireLock or AcquirePermits did.
type AcquireOutcome int

const (
	// Granted means that the request is granted; Grant has the details.
	Granted AcquireOutcome = iota
	// Queued means that the request is in the queue.
	Queued
	// Taken means that there is no room for the request, or that others are before it, and that it
	// was not queued: it did not ask for that, or QueueFull is set.
	Taken
	// Withdrawn means that the ID was released before this request arrived.
	Withdrawn
)

// LockReply is the answer to a LockRequest.
type LockReply struct {
	Outcome   AcquireOutcome
	Grant                   // if Granted
	Holder    string        // if Queued or Taken: of the exclusive hold, or of one of the shared ones; may be empty
	Remaining time.Duration // if Queued or Taken: until the last of the holds expires, unless it is renewed
	Waiting   int           // if Queued or Taken: requests in the queue, this one not counted
}

// Grant describes a request that was granted.
type Grant struct {
	// Sent is when the granted request was sent, by the clock of the process: the TTL began no earlier.
	Sent time.Time
	// Fence to LastFence are the fences of a lock's hold. Each is larger than every fence of an earlier
	// exclusive hold of the lock. A shared hold has one, which only tells it from others. A permit has
	// Fence alone, which tells it from others of the semaphore.
	Fence, LastFence int64
}

// LockRef names a hold of a lock, or a request in its queue.
type LockRef struct {
	Name, Key string
	ID        string
	Shared    bool
	TTL       time.Duration // for RenewLocks and DowngradeLock
	Delay     time.Duration // for RenewLocks and DowngradeLock
}

// LockState is the state of a lock.
type LockState struct {
	Key     string
	Holders []LockHolder // one exclusive or any number of shared ones
	Waiting int          // requests in the queue
}

// LockHolder is one hold of a lock.
type LockHolder struct {
	Fence, LastFence int64
	Shared           bool
	Meta             string        // the holder's label (lock.WithHolder)
	Remaining        time.Duration // until it expires, unless it is renewed
}
