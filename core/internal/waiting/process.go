// Package waiting is a process's part of waiting for leases, and for events that pushes announce,
// in a store that other processes use, too. The store keeps the queue of each key. The process
// registers its requests here before it sends them. It sends heartbeats for waiting requests, which
// also make up for lost pushes, and releases grants without a waiter.
package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// Record identifies the queue of a key in a store. Name returns its name in pushes.
type Record interface{ Name() string }

// Store is the store of a Process. All functions may be called concurrently.
type Store[R Record] struct {
	// Hooks are the hooks of the store's shutdown, which ends all waits.
	Hooks *hooks.Shutdown
	// Life ends when the store is closed.
	Life context.Context
	// Start calls f in a goroutine that Close waits for. After Close it returns false instead.
	Start func(f func()) bool
	// Listen starts to listen for pushes, in the background. It is called once, before the first
	// request.
	Listen func()
	// Broken reports whether pushes do not arrive. It is called often.
	Broken func() bool
	// Acquire sends a request, which may have been sent before under its ID. If it may still be on
	// its way to the server when Acquire returns, Acquire calls Late.
	Acquire func(ctx context.Context, req store.LeaseRequest, record R) (Reply, error)
	// Beat sends a heartbeat for each key, with Elapsed and DeadAfter, and calls Heard or Silent
	// for each. If Heard returns true, Beat sends another heartbeat for the key, and calls Heard or
	// Silent again. If Resets returns true, that heartbeat makes the server remove the process's
	// requests for the key.
	Beat func(keys []*Key[R])
	// Check checks, between heartbeats, that pushes arrive, and returns when to call it again. When
	// pushes stop to arrive, it calls BeatNow. It may be nil.
	Check func() (next time.Time)
	// Release releases a grant that a push has announced, if the request holds it by that fence.
	Release func(record, id string, fence int64)
}

// Reply is a store's reply to a request.
type Reply struct {
	store.LeaseReply
	Next     time.Duration // if Queued: until the first hold ends, or 0
	Repeated bool          // if Granted: it was granted before
	Over     bool          // with an error: the request was released, and is not to be repeated
}

// Process is a process's state of a store's queues: its requests that wait or may be on their way,
// and the holds that it got while waiting.
type Process[R Record] struct {
	store     Store[R]
	listening sync.Once
	notices   notices
	lost      hooks.Listeners
	spare     sync.Pool // of *waiter that no call has awaited

	mu   sync.Mutex
	byID map[string]*waiter[R]
	keys map[string]*Key[R] // by the record's name
	held map[string]int64   // by ID: the fence of a hold that a push may announce
	late lateRequests
	// withdrawn are the IDs of requests that were released before a call awaited them.
	withdrawn expiry.Table[string, struct{}]
	inFlight  int // calls that may create a request
	// Of the heartbeats.
	beating     bool // a goroutine sends them
	due         heap.Heap[*Key[R]]
	began       time.Time
	sleepsUntil time.Time     // when that goroutine wakes up by itself
	changed     chan struct{} // wakes it up
}

// New returns the state of a process that has no requests.
func New[R Record](s Store[R]) *Process[R] {
	return &Process[R]{
		store: s, byID: make(map[string]*waiter[R]), keys: make(map[string]*Key[R]), held: make(map[string]int64),
		late: newLateRequests(), withdrawn: expiry.NewTable[string, struct{}](maxLate, nil), began: time.Now(), changed: make(chan struct{}, 1),
	}
}

func (p *Process[R]) listen() { p.listening.Do(p.store.Listen) }

// Acquire sends a request. If it is queued, the process sends heartbeats from the first call of
// Await on.
func (p *Process[R]) Acquire(ctx context.Context, req store.LeaseRequest, record R) (Reply, error) {
	p.listen()
	if !req.Queue {
		return p.store.Acquire(ctx, req, record)
	}
	w := p.expect(req.ID)
	reply, err := p.store.Acquire(ctx, req, record)
	p.answered(w, record, &reply, err)
	return reply, err
}

// shortTTL is the TTL below which a pushed grant is confirmed before it is used.
const shortTTL = 100 * time.Millisecond

// Await implements AwaitLease of store.Leases. It waits for a push, while the process sends
// heartbeats. A grant that has almost run out, or that is to be confirmed, costs one more call.
func (p *Process[R]) Await(ctx context.Context, req store.LeaseRequest, record R) (store.Grant, error) {
	if p.store.Hooks.Begun() {
		return store.Grant{}, store.ErrClosed
	}
	if ctx.Err() != nil {
		return store.Grant{}, lease.Ended(ctx)
	}
	if req.Weight > req.Capacity-req.Reserve {
		return store.Grant{}, store.ErrWithdrawn
	}
	req.Queue, req.MaxWaiting = true, 0
	confirmed := req.Confirmed || req.TTL < shortTTL
	over := p.store.Hooks.Over()
	p.listen()
	w := p.await(&req, record)
	if w == nil {
		return store.Grant{}, store.ErrWithdrawn
	}
	defer p.leave(w)
	if p.startBeating() {
		p.store.Start(p.sendBeats)
	}
	for {
		select {
		case <-ctx.Done():
			return store.Grant{}, lease.Ended(ctx)
		case <-over:
			return store.Grant{}, store.ErrClosed
		case <-w.woken:
		}
		granted, ask, err := p.next(w, &req, func(g *pushedGrant) bool {
			return !confirmed && time.Until(g.sent.Add(g.span)) >= g.span/4
		})
		switch {
		case err != nil:
			return store.Grant{}, err
		case granted != nil:
			return store.Grant{
				Sent: granted.sent, Fence: granted.first, LastFence: granted.last, Place: granted.place, TTL: granted.span, Untaken: true,
			}, nil
		case !ask:
			continue
		}
		reply, err := p.store.Acquire(ctx, req, record)
		p.answered(w, record, &reply, err)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			return reply.Grant, nil
		case err == nil && reply.Outcome == store.Queued:
		case err == nil: // it was withdrawn, or its weight does not fit any more
			return store.Grant{}, store.ErrWithdrawn
		case ctx.Err() != nil:
			return store.Grant{}, lease.Ended(ctx)
		case reply.Over:
			return store.Grant{}, err
		default:
			p.askAgain(w, err)
		}
	}
}
