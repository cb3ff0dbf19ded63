// Package semaphore lets at most so many things happen at a time, in one process or in many: at most 4
// reports of a tenant, at most 20 calls to a partner, whatever the number of servers.
//
// Most callers want [Semaphore.Do], or [Semaphore.Acquire] and a deferred [Permit.Release]:
//
//	reports, err := semaphore.New(store, "reports", 4)
//	…
//	permit, err := reports.Acquire(ctx, tenant) // waits for as long as ctx says
//	if err != nil {
//		return err
//	}
//	defer permit.Release(ctx)
//	return report(permit.Context())
//
// Those who would rather not wait use [Semaphore.TryAcquire], and middleware is in the packages named
// concurrency. A [Latch] is the opposite: it waits until so many have come.
//
// # Keys, weights and order
//
// Each key has permits of its own. A request may count for several of them ([Semaphore.AcquireN]): its
// weight. What is in use is the sum of the weights of the permits that are held, and a request is
// granted when its weight fits into what is left of the capacity.
//
// Requests are granted in the order in which they came to the store, across all processes. The first
// one that does not fit keeps those behind it waiting, even if they would fit: otherwise small ones
// would starve a large one. With [WithBarging] they may go ahead, which uses more of the capacity, and
// is only for where nobody minds the starving. [WithMaxWaiting] bounds the queue. Whoever stops waiting
// leaves it, and the next moves up at once.
//
// To ask again with a permit's context, or one that derives from it, is to ask for another permit: there
// is no re-entry. A caller that holds some while it waits for more can wait for itself, or for another
// that does the same, for ever: ask for all of them at once.
//
// # Capacity
//
// The store does not know the capacity. Every request brings that of its process, which is what [New]
// was given, or [Semaphore.SetCapacity] since, or what [WithCapacityFunc] says of the key; and is
// granted if what is in use and its weight do not exceed it. So a rollout that changes the capacity
// needs no care: while processes differ, what is in use never exceeds the largest of their capacities.
// Where more is in use than a process's capacity, as after it was made smaller, its requests wait until
// enough has been released; no permit is taken away. As long as one of them is at the head of the queue,
// those of processes with a larger capacity wait behind it.
//
// # A permit is a lease
//
// It is held for a time ([WithTTL], 30 s), and renewed while its process lives, so that the death of a
// process gives its permits back within that time. Hence the one rule that no semaphore of this kind can
// lift: a process that is paused for longer than its lease (by its garbage collector, its virtual
// machine, its debugger) does not know on waking that its permits have been given to others, and for a
// while more than the capacity is at work. [Permit.Context] ends before that, which stops whatever looks
// at it. What does not look cannot be stopped: [Permit.Fence] tells one permit from another, in a log or
// to a resource, but unlike a lock's it excludes nobody, since several permits are good at a time. Use
// a semaphore to limit load, and a lock with its fence (package lock) where one more would be a
// catastrophe.
//
// While the store is unavailable calls fail with an error that matches store.ErrUnavailable; package
// fallback makes a store that has a stand-in for such times. A bulkhead, which counts this process
// alone, is a semaphore on a memory store.
package semaphore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/errand"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Semaphore gives out permits by key. Semaphores with the same name on the same store share them, in
// one process as in several.
//
// All methods may be called concurrently.
type Semaphore struct {
	*core
	config config
}

// core is what a Semaphore and its variants have in common.
type core struct {
	name  string
	pool  *pool
	size  atomic.Pointer[size]
	calls errand.Group // that may be granted something yet

	closing context.Context // ends when the Semaphore is closed, or its store is shut down
	close   context.CancelFunc
	closed  atomic.Bool // Close was called

	detach    func() // from the store's Shutdown
	namesake  *namesake.Member
	telemetry *telemetry.Semaphore
}

// New returns a Semaphore that keeps its permits in store, under name, and gives out at most as many
// at a time for each key as capacity says.
//
// Semaphores of one name should have the same capacity and settings: if another of this process has
// others, that is logged. Where some callers need others, use [Semaphore.With].
//
// It returns an error that matches [ErrInvalidCapacity] if the capacity is not between 1 and
// [MaxCapacity], and another one if the store is nil, if the name is empty, longer than 128 bytes or
// not printable ASCII, or if an option is out of its range.
func New(st store.Permits, name string, capacity int, opts ...Option) (*Semaphore, error) {
	if naming.IsNil(st) {
		return nil, errors.New("semaphore: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("semaphore: New: %w", err)
	}
	if err := checkCapacity(capacity); err != nil {
		return nil, err
	}
	config := defaults().with(opts)
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("semaphore: New: %w", err)
	}
	c := &core{
		name:      name,
		telemetry: telemetry.NewSemaphore(config.providers, ScopeName, name),
	}
	c.pool = newPool(st, c.telemetry, telemetry.NewLeases(config.providers, config.logger, ScopeName, name, "semaphore"))
	c.namesake = namesake.Join(st, config.logger, "semaphore", name, config.shared(capacity))
	c.closing, c.close = context.WithCancel(context.Background())
	c.size.Store(c.newSize(capacity))
	c.detach = st.AtShutdown(c.shutdown)
	return &Semaphore{core: c, config: config}, nil
}

// Name returns the name that the Semaphore was built with.
func (s *Semaphore) Name() string { return s.name }

// With returns a Semaphore of the same permits with other settings. Those that are not mentioned stay
// as they are. It has the capacity of the one that it was made from, whichever of them is told to
// change it, and is closed with it.
func (s *Semaphore) With(opts ...Option) (*Semaphore, error) {
	config := s.config.with(opts)
	config.providers, config.logger = s.config.providers, s.config.logger
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("semaphore: With: %w", err)
	}
	return &Semaphore{core: s.core, config: config}, nil
}

// Do runs fn while it holds a permit of key. fn's context is the permit's. It returns the error of
// [Semaphore.Acquire], fn's, or that of [Permit.Release]: [ErrLost] says that others may have had the
// permit's room while fn ran. If fn panics the permit is released, and the panic goes on.
func (s *Semaphore) Do(ctx context.Context, key string, fn func(context.Context) error) (err error) {
	permit, err := s.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer func() {
		if releaseErr := permit.Release(ctx); err == nil {
			err = releaseErr
		}
	}()
	return fn(permit.Context())
}

// closeTimeout is how long Close waits for what is held to be released.
const closeTimeout = 5 * time.Second

// Close ends the Semaphore: callers that wait return [ErrClosed], as later calls do, every permit that is
// held is released, and its context ends with [ErrReleased]. It waits 5 s for the store. An error says how
// many permits may be held until their leases end. It does not close the store.
//
// The store's Shutdown does the same for every Semaphore on it; Close then finishes what that has left.
func (s *Semaphore) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.namesake.Leave()
	s.detach()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return s.shutdown(ctx)
}

// shutdown first ends the process's own requests, so that nothing is granted to it any more, and then
// releases what it holds.
func (c *core) shutdown(ctx context.Context) error {
	c.close()
	inFlight := c.calls.Wait(ctx)
	// A place in the queue goes before the permits that it waits for.
	return errors.Join(c.pool.returns.Wait(ctx), c.pool.shutdown(ctx), inFlight)
}
