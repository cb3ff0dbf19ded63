package store

import (
	"context"
	"iter"
	"time"
)

// Leases keeps the leases of locks and of semaphores, which differ only in their requests.
// core/memstore, core/redisstore, core/pgstore, core/etcdstore and core/zkstore implement it, and
// core/quorum makes one of several others; storetest.Leases is the suite that every implementation
// must pass.
//
// A lease is of a capacity, which Name and Key identify. The first byte of a name is its kind,
// [LockKind] or [SemaphoreKind]. Every request has a weight. A granted request is a hold. Other
// requests wait in one queue: by their reserve, the smallest first, and then by their place, a
// number. A request is granted as soon as
//
//   - its weight, and the weights of all that hold or stand before it in the queue, together fit
//     into its capacity less its reserve, and
//   - every request before it with the same reserve holds.
//
// The store does not keep the capacity: every request brings its own. So processes may differ, as
// during a rollout: the weight in use never exceeds the largest of their capacities.
//
// Every request has an ID, a random string of 22 characters that is never used again. The ID and
// the first fence identify a hold: another fence is another hold, even of the same ID, as after a
// failover that has lost the first.
//
// Every method but AwaitLease is one atomic step for each request, and may be sent twice: a step
// that has been taken succeeds again and changes nothing. Times are durations, counted by the
// store's own clock. Errors match ErrUnavailable, or are the context's. A store bounds the time of
// every step itself: a release is called with a context that never ends.
type Leases interface {
	// AcquireLease grants the request if it can be granted now. If not, and Queue is set, the request
	// joins the queue, unless MaxWaiting requests are in it already: the caller continues with
	// AwaitLease and the reply's Place, or withdraws with ReleaseLeases.
	//
	// A repeated request keeps its place in the queue, or its hold with the same fences. In the queue
	// it takes over the Capacity of the repeat, and may be granted by it. A request whose weight does
	// not fit into its capacity less its reserve is Taken, and leaves the queue.
	AcquireLease(ctx context.Context, req LeaseRequest) (LeaseReply, error)

	// AwaitLease blocks until a request that AcquireLease has queued is granted; req.Place is the
	// place of the reply. If the store has lost the place (a flush, a failover), the request is queued
	// anew with that number, whatever the queue's length. The place of a process that seems dead is
	// lost within seconds. When ctx ends the place is kept: the caller withdraws it with
	// ReleaseLeases.
	//
	// The grant may be for a shorter time than the request's TTL: then its Untaken is set.
	//
	// It returns [ErrWithdrawn] if ReleaseLeases was called for the request, and an error that matches
	// ErrUnavailable if the store was silent for so long that the place is lost.
	AwaitLease(ctx context.Context, req LeaseRequest) (Grant, error)

	// RenewLeases extends holds to their TTL from now, and reports for each whether it is held: never
	// for one that has expired, even if there is room for it. With an error, the reported holds are
	// held, and the state of the others is unknown.
	RenewLeases(ctx context.Context, refs []LeaseRef) ([]bool, error)

	// ReleaseLeases ends everything that the store has under the IDs: a hold with any fence, or a
	// place in the queue. The same step grants the waiters that fit then. No AcquireLease of an ID may
	// be in flight when it is called; one that is still on its way to the store does nothing after it.
	//
	// It returns for each reference whether the hold with its Fence, or any hold if that is zero, was
	// held until now. With an error, requests that are ReleaseUnknown may still be there. A full store
	// does not refuse a release.
	ReleaseLeases(ctx context.Context, refs []LeaseRef) ([]ReleaseOutcome, error)

	Hooks
}

// LeaseDowngrader is a store that can reduce the weight of a hold. Without it, a lock cannot become
// a shared one.
type LeaseDowngrader interface {
	// DowngradeLease reduces the weight of a hold, with its fences and a new TTL, and grants the
	// waiters that can be granted then. It reports whether the hold is held.
	DowngradeLease(ctx context.Context, ref LeaseRef, weight int) (bool, error)
}

// LeaseVerifier is a store that can look for a hold. Without it, a check renews the hold.
type LeaseVerifier interface {
	// VerifyLease reports whether a hold is held. It changes nothing.
	VerifyLease(ctx context.Context, ref LeaseRef) (bool, error)
}

// Verify reports whether a hold is held. A store that is no LeaseVerifier renews it.
func Verify(ctx context.Context, st Leases, ref LeaseRef) (bool, error) {
	if able, ok := st.(LeaseVerifier); ok {
		return able.VerifyLease(ctx, ref)
	}
	held, err := st.RenewLeases(ctx, []LeaseRef{ref})
	return len(held) == 1 && held[0], err
}

// LeaseLister is a store that shows holders and waiters. Without it, those of other processes are
// not visible.
type LeaseLister interface {
	// InspectLease returns the holders and the waiters of a key.
	InspectLease(ctx context.Context, name, key string) (LeaseState, error)

	// ListLeases yields the states of the keys of a name that are held or waited for, in no order. It
	// takes no snapshot: a key that changes during the listing may be seen in its old state, twice, or
	// not at all. It ends with the first error.
	ListLeases(ctx context.Context, name string) iter.Seq2[LeaseState, error]
}

// LeaseRevoker is a store that can end another process's hold. Without it, a hold ends by its
// holder or by its lease.
type LeaseRevoker interface {
	// RevokeLease ends the hold that has this fence, as if it had been released, and notifies its
	// holder. It reports whether there was such a hold.
	RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error)

	// NotifyLost registers f, which the store calls with the ID of a hold that ended without its
	// holder's doing. It is best effort: a holder that is not notified learns of it at its next
	// renewal. f must not block. The returned function removes it.
	NotifyLost(f func(id string)) (remove func())
}

// The kinds of leases: the first byte of a Name.
const (
	LockKind      = "l"
	SemaphoreKind = "s"
)

// LeaseRequest asks for a lease. Its strings are not parts of longer ones, so a store may keep
// them.
type LeaseRequest struct {
	Name, Key  string
	ID         string        // of this request, and of the hold if it is granted
	Weight     int           // 1 to Capacity
	Capacity   int           // 1 to [MaxCapacity]
	Reserve    int           // how much of the capacity the request leaves to others, from 0
	Queue      bool          // join the queue if it cannot be granted now
	MaxWaiting int           // with Queue: how many may be in the queue before it; 0 is no bound
	TTL        time.Duration // of the hold
	Fences     int           // how many the hold may use, 1 to [MaxFences]; the store may grant fewer
	Label      string        // of the holder, which others can read; at most [MaxLabel] bytes
	Place      int64         // its number in the queue, if it has been there
	// Confirmed means that AwaitLease must not return a grant that is Untaken.
	Confirmed bool
}

// Ref returns the reference to the request, or to its hold if that has this fence.
func (r *LeaseRequest) Ref(fence int64) LeaseRef {
	return LeaseRef{Name: r.Name, Key: r.Key, ID: r.ID, Fence: fence, TTL: r.TTL}
}

const (
	// MaxCapacity is the largest capacity.
	MaxCapacity = 1 << 30
	// MaxFences is the largest block of fences that a request asks for.
	MaxFences = 64
	// MaxLabel is the largest Label of a request, in bytes.
	MaxLabel = 320
	// MaxListed is how many holders and waiters a LeaseState lists.
	MaxListed = 100
)

// AcquireOutcome is the outcome of AcquireLease.
type AcquireOutcome int

const (
	// Granted means that the request is granted; Grant has the details.
	Granted AcquireOutcome = iota
	// Queued means that the request is in the queue.
	Queued
	// Taken means that there is no room for the request, or that others are before it, and that it was
	// not queued: either Queue was not set, or QueueFull is.
	Taken
	// Withdrawn means that the ID was released before this request arrived.
	Withdrawn
)

// Grant describes a request that was granted.
type Grant struct {
	// Sent is when the process sent the granted request, or a later heartbeat, by its own clock: TTL
	// began no earlier.
	Sent time.Time
	// Fence to LastFence are the fences of the hold. A lock's are larger than every fence of an
	// earlier hold; a semaphore's only tell its holds apart.
	Fence, LastFence int64
	// Place is the number of the request in the queue; zero if it never was there.
	Place int64
	// TTL is how long the hold lasts from Sent; zero is the request's TTL.
	TTL time.Duration
	// Untaken means that the hold lasts only for TTL, which is short, until its first renewal. That is
	// due soon, and makes the hold as long as the request's TTL.
	Untaken bool
}

// LeaseReply is the answer to a LeaseRequest.
type LeaseReply struct {
	Outcome   AcquireOutcome
	Grant                   // if Granted; if Queued its Place is set
	Holder    string        // if Queued or Taken: the label of a holder; may be empty
	InUse     int           // if Queued or Taken: the weights of all holds
	Waiting   int           // if Queued or Taken: requests in the queue, this one not counted
	Remaining time.Duration // if Queued or Taken: until enough holds expire for the request, if none is renewed
	QueueFull bool          // if Taken: MaxWaiting kept it out of the queue
}

// LeaseRef names a hold, or a request.
type LeaseRef struct {
	Name, Key string
	ID        string
	Fence     int64         // the hold's first; zero for a request of which no grant is known
	TTL       time.Duration // for RenewLeases and DowngradeLease
	Repeated  bool          // for ReleaseLeases: an earlier release may have been carried out
}

// ReleaseOutcome is the outcome of a release for one reference.
type ReleaseOutcome int

const (
	// ReleaseUnknown means that the request has ended, by this release or by an earlier one that this
	// repeats. With an error, not even this is known.
	ReleaseUnknown ReleaseOutcome = iota
	// Released means that it was held until now.
	Released
	// NotHeld means that it was not held. A request that was waiting has left the queue.
	NotHeld
)

// LeaseState is the state of a key.
type LeaseState struct {
	Key     string
	InUse   int           // the weights of all holds
	Holders []LeaseHolder // at most [MaxListed] of them
	Waiting int           // requests in the queue
	Waiters []LeaseWaiter // the first [MaxListed] of them
}

// LeaseHolder is one hold.
type LeaseHolder struct {
	Fence, LastFence int64
	Weight           int
	Label            string
	Age              time.Duration // since it was granted
	Remaining        time.Duration // until it expires, unless it is renewed
}

// LeaseWaiter is one request in the queue.
type LeaseWaiter struct {
	Weight, Reserve int
	Label           string
	Age             time.Duration // since it joined the queue
}
