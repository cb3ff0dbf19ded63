// Package semaphore limits how many operations run concurrently, in one process or across a fleet:
// at most 4 reports of a tenant, at most 20 calls to a partner, whatever the number of servers.
//
// Most callers want [Semaphore.Do], or [Semaphore.Acquire] and a deferred [Permit.Release]:
//
//	reports, err := semaphore.New(store, "reports", 4)
//	…
//	permit, err := reports.Acquire(ctx, tenant) // blocks until ctx ends
//	if err != nil {
//		return err
//	}
//	defer permit.Release(ctx)
//	return report(permit.Context())
//
// [Semaphore.TryAcquire] does not wait. A [Latch] is the opposite: it blocks until a number of
// participants have arrived.
//
// The packages called concurrency are its middleware, in ginmw, echomw, echov5mw, nethttp,
// grpcmw and connectmw; one of them is [github.com/lockkeeper/lockkeeper/nethttp/concurrency].
//
// # Keys, weights and order
//
// Each key has its own permits. A request has a weight, 1 or more ([Semaphore.AcquireN]). A request
// is granted when its weight fits into the capacity beside the weights of all held permits.
//
// Requests are granted in the order in which they reached the store, across all processes. The
// first one that does not fit blocks the requests behind it, even if they would fit: otherwise
// small ones would starve a large one. The queue of a key has room for 1,024 requests
// ([WithMaxWaiting]). A caller that stops waiting leaves the queue, and the next moves up at once.
//
// Callers of one process with the same weight and settings queue in the process, which has up to 16
// places for them in the store, and no more than there is room for. A permit that is released while
// another of these callers waits is handed on, up to 16 times or for 50 ms, before it is released
// in the store. A permit with a reserve is not handed on.
//
// There is no re-entry: a call with a permit's context acquires another permit. A caller that waits
// for more permits while it holds some can block forever: for itself, or for another caller that
// does the same. Acquire all of them at once.
//
// # Tiers
//
// A tier may use a part of the capacity, and is served after the tiers that may use more: so low
// traffic is refused first, and critical traffic finds room. [Semaphore.Tier] returns the variant
// for one of four tiers, whose parts [Semaphore.SetTierShares] changes while the process runs;
// [WithReserveShare] and [WithReserve] make others:
//
//	permit, err := gate.Tier(semaphore.Low).TryAcquire(ctx, key)
//
// Tiers are parts of the permits of a key, for all processes that share the store. The reserves of
// a small capacity may be 0: then there are no tiers.
//
// # Capacity
//
// The store does not keep the capacity. Every request has its process's: the value of [New] or of
// the last [Semaphore.SetCapacity], or for some keys that of [Semaphore.SetCapacities] or
// [WithCapacityFunc]. A request is granted if the weight in use and its own do not exceed its
// capacity. So a rollout may change the capacity: while processes differ, the weight in use never
// exceeds the largest of their capacities.
//
// If more is in use than a process's capacity, as after a reduction, its requests wait until enough
// was released; no permit is revoked. While one of them is at the head of the queue, requests of
// processes with a larger capacity wait behind it.
//
// In one process, [WithAdaptiveCapacity] finds the capacity by itself: the largest with which work
// takes no longer than a target.
//
// # A permit is a lease
//
// A permit is held for a time ([WithTTL], 30 s), and renewed while its process is alive, so that
// the permits of a dead process are free after that time. This has a limit that no such semaphore
// can avoid: a process that is paused for longer than its lease (by its garbage collector, its
// virtual machine, a debugger) does not notice on waking that its permits were granted to others,
// and for a while more than the capacity is in use. [Permit.Context] ends before that, which stops
// code that checks it. Other code cannot be stopped: [Permit.Fence] identifies a permit in a log or
// to a resource but, unlike a lock's, excludes no other, since several permits are valid at a time.
// Use a semaphore to limit load, and a lock with its fence (package lock) where one more would be a
// catastrophe.
//
// While the store is unavailable calls fail with an error that matches store.ErrUnavailable;
// package fallback makes a store that has a stand-in for such times. A bulkhead, which counts this
// process alone, is a semaphore on a memory store.
package semaphore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Semaphore grants permits by key. Semaphores with the same name on the same store share them,
// within a process and across processes.
//
// All methods may be called concurrently.
type Semaphore struct {
	*core
	config *lease.Config
}

// core is shared by a Semaphore and its variants ([Semaphore.With]).
type core struct {
	pool      *lease.Pool
	changing  sync.Mutex // of the rule
	rule      atomic.Pointer[compiledRule]
	tiers     [Background + 1]tierTelemetry
	adaptive  *adaptive // nil without one
	unobserve func()    // it; nil without one
	namesake  *namesake.Member
}

// New returns a Semaphore that keeps its permits in store, under name, with a capacity for each
// key.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// Semaphores with the same name should have the same capacity and settings; different ones in this
// process are logged. If some callers need other settings, use [Semaphore.With]. A Semaphore that
// is dropped without Close is collected when it has no permit any more, or a third of a lease
// later.
//
// It returns an error that matches [ErrInvalidCapacity] if the capacity is not between 1 and
// [store.MaxCapacity], and another one if the store is nil, if the name is empty, longer than 128
// bytes or not printable ASCII, or if an option is out of its range.
func New(st store.Leases, name string, capacity int, opts ...Option) (*Semaphore, error) {
	config, err := lease.NewConfig("semaphore", st, name, lease.Config{MaxWaiting: 1024}, opts)
	if err == nil {
		err = checkCapacity(capacity)
	}
	if err != nil {
		return nil, err
	}
	adaptive, err := newAdaptive(st, config, capacity)
	if err != nil {
		return nil, err
	}
	c := &core{adaptive: adaptive, namesake: namesake.Join(st, config.Logger, "semaphore", name, settings(config, capacity))}
	rule := &compiledRule{Rule: Rule{Tiers: TierShares{Normal: 0.9, Low: 0.7, Background: 0.5}}}
	if adaptive == nil {
		rule.Capacity = capacity
	}
	c.rule.Store(rule)
	c.pool = lease.NewPool(st, lease.Mechanism{
		Kind: store.SemaphoreKind, Name: name, Key: contextKey{},
		ErrReleased: ErrReleased, ErrExpired: ErrExpired, ErrLost: ErrLost, ErrInvalidKey: ErrInvalidKey, ErrNotAcquired: ErrNotAcquired,
		Busy: func(b lease.Busy) error {
			return &BusyError{InUse: b.InUse, Capacity: b.Capacity, Waiting: b.Waiting, Remaining: b.Remaining, full: b.Full, cause: b.Cause}
		},
		Capacity:  c.weigh,
		Alloc:     c.newPermit,
		Telemetry: telemetry.NewSemaphore(config.Providers, ScopeName, name, c.namesake.Counter()),
		Leases:    telemetry.NewLeases(config.Providers, config.Logger, ScopeName, name, "semaphore", c.namesake.Counter()),
	})
	namesake.LeaveWith(c.pool, c.namesake)
	if adaptive != nil {
		c.unobserve = telemetry.ObserveCapacity(config.Providers, ScopeName, name, adaptive.capacity.Load)
		runtime.AddCleanup(c.pool, func(end func()) { end() }, c.unobserve)
	}
	return &Semaphore{c, config}, nil
}

// Name returns the name that the Semaphore was built with.
func (s *Semaphore) Name() string { return s.pool.Name }

// With returns a Semaphore of the same permits with some settings changed. It shares the capacity
// of s, which either of them can change, and is closed together with it. Options for providers and
// loggers and [WithAdaptiveCapacity] are of [New] alone, and an error here.
func (s *Semaphore) With(opts ...Option) (*Semaphore, error) {
	config, err := lease.Vary("semaphore", s.config, opts)
	switch {
	case err != nil:
		return nil, err
	case config.Adaptive != nil:
		return nil, errors.New("semaphore: With: WithAdaptiveCapacity is an option of New alone")
	case s.adaptive != nil && config.CapacityOf != nil:
		return nil, errors.New("semaphore: With: WithCapacityFunc excludes WithAdaptiveCapacity, which New was given")
	}
	return &Semaphore{s.core, config}, nil
}

// Do runs fn while it holds a permit of key. fn's context is the permit's. It returns the error of
// [Semaphore.Acquire], fn's, or that of [Permit.Release]: [ErrLost] means that others may have held
// the permit's room while fn ran. If fn panics, the permit is released and the panic propagates.
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

// Close closes the Semaphore: waiters and later calls return [ErrClosed], and the context of every
// permit ends with it. Close then waits up to 5 s until the holders have released their permits,
// which are renewed during that time, and until the store has confirmed it. It does not wait for
// permits that are not renewed ([WithoutRenewal]), which expire. It does not close the store.
//
// Close does not release a permit that is still held after that, since others could use its room
// beside the running work: the permit expires with its TTL, unless it is released before. The
// error has the number of permits that may be held until their leases expire.
//
// The store's Shutdown does the same for every Semaphore on it, until its context ends. Work that
// holds a permit and calls either of them waits for itself, that long.
func (s *Semaphore) Close() error {
	s.namesake.Leave()
	if s.unobserve != nil {
		s.unobserve()
	}
	return s.pool.Close()
}
