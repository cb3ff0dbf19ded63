// Package waiting is a process's side of waiting for leases, and for what pushes say, in a store
// that other processes use too. The store keeps the queue of each key. The process registers its
// requests here before it sends them, sends heartbeats for those that wait, which also make up for
// lost pushes, and gives back the grants that nobody waits for any more.
package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Record is what a store knows the queue of a key by.
type Record interface {
	// Name returns the name of the record, by which pushes name it.
	Name() string
}

// Store is what a Process needs of its store. All functions may be called concurrently.
type Store[R Record] struct {
	// Hooks are those of the store's shutdown, which ends all waits.
	Hooks *hooks.Shutdown
	// Life ends when the store is closed.
	Life context.Context
	// Start calls f in a goroutine that Close waits for, or returns false after Close.
	Start func(f func()) bool
	// Listen starts to listen for pushes, in the background. It is called once, before the first
	// request.
	Listen func()
	// Broken reports whether pushes do not arrive. It is called often.
	Broken func() bool
	// Acquire sends a request once, whether it is new or sent before under the same ID. If its
	// outcome is unknown, it calls Late before it returns.
	Acquire func(ctx context.Context, req store.LeaseRequest, record R) (Reply, error)
	// Beat sends a heartbeat for each key, and calls Heard or Silent for each. If Heard returns true, it
	// sends another one for that key, which has the store remove the process's requests if Resets says so.
	Beat func(keys []*Key[R])
	// Check may be nil. It is called between heartbeats, and returns when to call it again. It makes
	// sure that pushes arrive.
	Check func() (next time.Time)
	// Release releases a grant that a push has announced, if the request still holds it by that fence.
	Release func(record, id string, fence int64)
}

// Reply is a store's reply to a request.
type Reply struct {
	store.LeaseReply
	Next     time.Duration // if Queued: until the first hold ends, or 0
	Repeated bool          // if Granted: it was granted before
	Over     bool          // with an error: the request was released, and is not to be repeated
}

// Process is what a process has of a store's queues.
type Process[R Record] struct {
	store     Store[R]
	listening sync.Once
	waiters[R]
	late    lateRequests
	notices notices
	lost    hooks.Listeners
}

// New returns the state of a process that has no requests.
func New[R Record](s Store[R]) *Process[R] {
	p := &Process[R]{store: s}
	p.waiters.init()
	p.late.init()
	return p
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

// Late records that a request may still be on its way to the server after its call has ended.
func (p *Process[R]) Late(id string) { p.late.add(id) }

// MayArrive reports whether a request may still be on its way to the server. Its release has to leave
// a tombstone then, for LateFor, by which the server refuses the request.
func (p *Process[R]) MayArrive(id string) bool { return p.late.has(id) || p.asking(id) }

// Released records that the server has confirmed the release of a request. It ends its wait.
func (p *Process[R]) Released(id string) {
	p.late.remove(id)
	p.released(id)
}
