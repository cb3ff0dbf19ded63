package store

import (
	"context"
	"iter"
	"time"
)

// Permits keeps semaphores. core/memstore and core/redisstore implement it; storetest.Permits is the
// suite that every implementation must pass.
//
// A semaphore is named by Name and Key. It has permits, each of a weight, and a queue of requests.
// Every request has an ID, a random string of 22 characters that is never used again; it names the
// request in the queue and then the permit. What is in use is the sum of the weights of the permits
// that have not expired; there is no second counter.
//
// The store knows no capacity. Every request brings its own, and is granted if what is in use and its
// weight together do not exceed it. So processes may differ, as during a rollout: what is in use never
// exceeds the largest of their capacities, and a request with a smaller one waits until less is in use.
//
// Every method but AwaitPermits is one atomic step that may be sent twice: a step that the ID has
// already taken succeeds again and changes nothing. Times are durations, counted by the store's own
// clock. Errors match ErrUnavailable, or are the context's. A store bounds the time of every step
// itself: a release is called with a context that never ends.
type Permits interface {
	// AcquirePermits grants the request if there is room for it, and no earlier request waits or the
	// request is Barging. If it is not granted and Queue is set, the request joins the end of the
	// queue, unless MaxWaiting requests are in it already: the caller continues with AwaitPermits, or
	// withdraws with ReleasePermits. A request that is in the queue keeps its place and takes over the
	// Capacity of the repeated request, which may have it granted; one whose permit is held is granted
	// again, with its TTL from now, or with the Sent of the first time.
	//
	// The queue is served from its head as room appears: the first request that does not fit blocks
	// those behind it, except Barging ones, which are granted as they fit: of the first ten in the
	// queue at least.
	AcquirePermits(ctx context.Context, req PermitRequest) (PermitReply, error)

	// AwaitPermits blocks until a request that AcquirePermits has queued is granted. If the store has
	// lost its place (a flush, a failover), the request is queued anew, whatever the queue's length.
	// When ctx ends the place is kept: the caller withdraws it with ReleasePermits. A place that no
	// caller awaits is lost within seconds.
	//
	// It returns [ErrWithdrawn] if ReleasePermits was called for the request, and an error that
	// matches ErrUnavailable if the store was silent for so long that the place is lost.
	AwaitPermits(ctx context.Context, req PermitRequest) (Grant, error)

	// RenewPermits extends permits to their TTL from now, and reports for each whether it is held:
	// never for one that has expired, even if there is room for it. With an error, the permits reported
	// as held are held, and the state of the others is unknown.
	RenewPermits(ctx context.Context, refs []PermitRef) ([]bool, error)

	// ReleasePermits ends permits, or withdraws requests from the queue, and makes sure that a
	// delayed AcquirePermits of the same ID does nothing. It reports for each whether it was held.
	// With an error, the permits reported as held were held, and the state of the others is unknown.
	// A full store does not refuse it.
	ReleasePermits(ctx context.Context, refs []PermitRef) ([]bool, error)

	// InspectPermits returns the state of a semaphore.
	InspectPermits(ctx context.Context, name, key string) (SemaphoreState, error)

	// ListPermits yields the semaphores of a name that are in use or waited for, in no order, as they
	// are found: one that changes during the listing may be seen as it was, twice, or not at all. It
	// ends with the first error.
	ListPermits(ctx context.Context, name string) iter.Seq2[SemaphoreState, error]

	Hooks
}

// PermitRequest asks for a permit. Its strings are no parts of longer ones, so a store may keep them.
type PermitRequest struct {
	Name, Key  string
	ID         string        // of this request, and of the permit if it is granted
	Weight     int           // 1 to Capacity
	Capacity   int           // 1 to [MaxCapacity]
	Queue      bool          // join the queue if it cannot be granted now
	Barging    bool          // it may be granted before earlier requests that do not fit
	MaxWaiting int           // with Queue: how many may be in the queue before it; 0 is no bound
	TTL        time.Duration // of the permit
	Holder     string        // label of the holder, which others can read; at most [MaxHolder] bytes
}

// Ref returns the reference to the permit, or the place in the queue, that the request is for.
func (r PermitRequest) Ref() PermitRef {
	return PermitRef{Name: r.Name, Key: r.Key, ID: r.ID, TTL: r.TTL}
}

// MaxCapacity is the largest capacity of a semaphore.
const MaxCapacity = 1 << 30

// PermitReply is the answer to a PermitRequest.
type PermitReply struct {
	Outcome   AcquireOutcome
	Grant                   // if Granted
	InUse     int           // if Queued or Taken: the weights of all permits, claimed or not
	Waiting   int           // if Queued or Taken: requests in the queue, this one not counted
	Remaining time.Duration // if Queued or Taken: until the first permit expires, unless it is renewed
	QueueFull bool          // if Taken: it would have been queued, but for MaxWaiting
}

// PermitRef names a permit, or a request in the queue.
type PermitRef struct {
	Name, Key string
	ID        string
	TTL       time.Duration // for RenewPermits
}

// SemaphoreState is the state of a semaphore.
type SemaphoreState struct {
	Key     string
	InUse   int            // the weights of all permits, claimed or not
	Holders []PermitHolder // at most [MaxHolders] of them
	Waiting int            // requests in the queue
}

// MaxHolders is how many permits a SemaphoreState lists.
const MaxHolders = 100

// PermitHolder is one permit of a semaphore.
type PermitHolder struct {
	Fence     int64
	Weight    int
	Meta      string        // the holder's label (semaphore.WithHolder)
	Remaining time.Duration // until it expires, unless it is renewed
}
