package semaphore

import (
	"context"
	"iter"
	"time"
)

// Store keeps semaphores. core/memstore and core/redisstore implement it; core/storetest holds the
// suite that every implementation must pass.
//
// A semaphore is named by Name and Key. It has permits, each of a weight, and a queue of requests.
// Every request for a permit has an ID, a random string of 22 characters that is never used again; it
// names the request in the queue and then the permit. What is in use is the sum of the weights of the
// permits that have not expired: nobody counts it a second time.
//
// The store knows no capacity. Every request brings its own, and is granted if what is in use and its
// weight together do not exceed it. So processes may differ, as during a rollout: what is in use never
// exceeds the largest of their capacities, and whoever has a smaller one waits until less is in use.
//
// Every method but AwaitPermits is one atomic step that may be sent twice: a step that the ID has
// already taken succeeds again without doing more. Times are durations, counted by the store's own
// clock. Errors match core.ErrUnavailable, or are the context's. A store bounds the time of every step
// itself: a release is asked for with a context that never ends.
type Store interface {
	// AcquirePermits grants the request if there is room for it, and nobody waits who came before it
	// or the request is Barging. If not, and Queue is set, it puts the request at the end of the
	// queue, unless MaxWaiting are in the queue already: the caller goes on with AwaitPermits, or
	// withdraws with ReleasePermits. A request that is in the queue keeps its place, and takes the
	// request's Capacity for its own from then on, which may have it granted; one whose permit is held is
	// granted again, with its TTL from now on, or with the Sent of the first time.
	//
	// The queue is served from its head as room appears: the first request that does not fit keeps
	// those behind it waiting, except Barging ones, which are granted as they fit: of the first ten in
	// the queue at least.
	AcquirePermits(ctx context.Context, req AcquireRequest) (AcquireReply, error)

	// AwaitPermits waits until a request that AcquirePermits has queued is granted. If the store has
	// lost its place (a flush, a failover), it is queued anew, however many wait. When ctx ends the place
	// is still there: the caller withdraws it with ReleasePermits. A place that nobody awaits is lost
	// within seconds.
	//
	// It returns [ErrWithdrawn] if ReleasePermits was called for the request, and an error that
	// matches core.ErrUnavailable if the store was silent for so long that the place is lost.
	AwaitPermits(ctx context.Context, req AcquireRequest) (Grant, error)

	// RenewPermits extends permits to their TTL from now, and reports for each whether it is held:
	// never for one that has expired, even if there is room for it. With an error, those that it
	// reports are held, and of the others nothing is known.
	RenewPermits(ctx context.Context, reqs []PermitRequest) ([]bool, error)

	// ReleasePermits ends permits, or withdraws requests from the queue, and makes sure that a
	// delayed AcquirePermits of the same ID does nothing. It reports for each whether it was held.
	// With an error, those that it reports were held, and of the others nothing is known. It is never
	// refused for want of room.
	ReleasePermits(ctx context.Context, reqs []PermitRequest) ([]bool, error)

	// InspectPermits says what is in use of a semaphore.
	InspectPermits(ctx context.Context, name, key string) (State, error)

	// ListPermits yields the semaphores of a name that are in use or waited for, in no order, as they
	// are found: one that changes meanwhile may be seen as it was, twice, or not at all. It ends with
	// the first error.
	ListPermits(ctx context.Context, name string) iter.Seq2[State, error]

	// AtShutdown has f called by the store's Shutdown, before the store goes. The function that it
	// returns takes f back.
	AtShutdown(f func(context.Context) error) (remove func())
}

// AcquireRequest asks for a permit. Its key is no piece of a longer text, so a store may keep it.
type AcquireRequest struct {
	Name, Key  string
	ID         string        // of this request, and of the permit if it is granted
	Weight     int           // 1 to Capacity
	Capacity   int           // 1 to [MaxCapacity]
	Queue      bool          // if it cannot be granted now
	Barging    bool          // it may be granted before those who came earlier and do not fit
	MaxWaiting int           // with Queue: so many may be in the queue before it; 0 is no bound
	TTL        time.Duration // of the permit
	Holder     string        // what others are told of the holder, at most [MaxHolder] bytes
}

// permit is the request about the permit that the request asks for.
func (r AcquireRequest) permit() PermitRequest {
	return PermitRequest{Name: r.Name, Key: r.Key, ID: r.ID, TTL: r.TTL}
}

const (
	// MaxCapacity is the largest capacity of a semaphore.
	MaxCapacity = 1 << 30
	// MaxHolder is the largest Holder of a request, in bytes.
	MaxHolder = 256
)

// AcquireOutcome is what AcquirePermits did.
type AcquireOutcome int

const (
	// Granted means that the ID has its permit; Grant says the rest.
	Granted AcquireOutcome = iota
	// Queued means that the ID waits for it.
	Queued
	// Taken means that there is no room for it, or that somebody is before it, and it was not queued:
	// either it did not ask to be, or QueueFull is set.
	Taken
	// Withdrawn means that the ID was released before this request arrived.
	Withdrawn
)

// AcquireReply is the answer to an AcquireRequest.
type AcquireReply struct {
	Outcome   AcquireOutcome
	Grant                   // if Granted
	InUse     int           // if Queued or Taken: the weights of all permits, and of those that have still to be claimed
	Waiting   int           // if Queued or Taken: requests in the queue, this one not counted
	Remaining time.Duration // if Queued or Taken: until the first permit expires, unless it is renewed
	QueueFull bool          // if Taken: it would have been queued, but for MaxWaiting
}

// Grant says that a request has become a permit.
type Grant struct {
	// Sent is when the request was sent that the store granted, by the clock of the process: the
	// permit's TTL began no earlier.
	Sent time.Time
	// Fence tells the permit from others of the semaphore. It excludes nobody.
	Fence int64
}

// PermitRequest is about a permit, or a request in the queue.
type PermitRequest struct {
	Name, Key string
	ID        string
	TTL       time.Duration // for RenewPermits
}

// State is what a store says of a semaphore.
type State struct {
	Key     string
	InUse   int      // the weights of all permits, and of those that have still to be claimed
	Holders []Holder // at most [MaxHolders] of them
	Waiting int      // requests in the queue
}

// MaxHolders is how many permits a State lists.
const MaxHolders = 100

// Holder is one permit of a semaphore.
type Holder struct {
	Fence     int64
	Weight    int
	Meta      string        // what the holder said of itself ([WithHolder])
	Remaining time.Duration // until it expires, unless it is renewed
}

// LatchStore keeps latches. core/memstore and core/redisstore implement it; core/storetest holds the
// suite that every implementation must pass. A latch is the set of the participants that have counted
// it down. It lives for its TTL after the last of them first did.
type LatchStore interface {
	// CountDownLatch adds a participant to the set, and returns how many are in it. One that is in it
	// already changes nothing.
	CountDownLatch(ctx context.Context, req LatchRequest, participant string) (arrived int, err error)

	// InspectLatch returns how many participants are in the set.
	InspectLatch(ctx context.Context, req LatchRequest) (arrived int, err error)

	// AwaitLatch waits until at least as many participants are in the set as the request's Count. It
	// returns nil, the context's error, or an error that matches core.ErrUnavailable if the store was
	// silent for longer than a few seconds.
	AwaitLatch(ctx context.Context, req LatchRequest) error
}

// LatchRequest is about a latch.
type LatchRequest struct {
	Name  string
	Count int           // how many participants open it, 1 to [MaxParticipants]
	TTL   time.Duration // from the last change of the set
}

// MaxParticipants is the largest count of a latch. Stores refuse a participant beyond it, with an error
// that matches core.ErrFull.
const MaxParticipants = 1 << 20
