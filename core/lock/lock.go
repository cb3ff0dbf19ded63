// Package lock provides mutual exclusion between goroutines, in one process or across a fleet.
//
// A lock is a lease: it is held for a time, and renewed while its holder is alive, so that a dead
// holder does not block others forever. This has a limit that no such lock can avoid: a process
// that is paused for longer than its lease (by its garbage collector, its virtual machine, a
// debugger) does not notice on waking that others have held the lock since, and may have a write in
// progress. [Lease.Context] ends before others may hold the lock, which stops code that checks it;
// code that cannot check is stopped by [Lease.Fence], a number that the resource compares (package
// fence). Where two writers would be a catastrophe, use the fence.
package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Locker grants locks by key. Lockers with the same name on the same store exclude each other,
// within a process and across processes.
//
// Most callers want [Locker.Do], or [Locker.Lock] and a deferred [Lease.Unlock]:
//
//	lease, err := carts.Lock(ctx, "42")
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//	return update(lease.Context(), lease.Fence())
//
// Waiters are served in order within a process; for the order among processes, see [WithFair].
// Shared locks ([Locker.RLock]) and exclusive ones alternate, so that neither starves the other.
//
// Locks are re-entrant by context: Lock with a lease's context, or one that derives from it, and
// the same key shares the lease. Goroutines that share a context therefore do not exclude each
// other. A context that derives from a lease's, and outlives it ([context.WithoutCancel]),
// re-enters the lease while it lasts, and gets an error after it.
//
// All methods may be called concurrently.
type Locker struct {
	*core
	config config
}

// core is shared by a Locker and its variants ([Locker.With]).
type core struct {
	store    store.Locks
	name     string
	keeper   *lease.Keeper[*hold]
	releases *background.Releases[store.LockRef]
	detach   []func()

	closing context.Context // ends when the Locker is closed, or its store is shut down
	close   context.CancelFunc
	closed  atomic.Bool      // Close was called
	calls   background.Group // calls to acquire and to unlock, and background work

	namesake  *namesake.Member
	telemetry *telemetry.Lock
	leases    *telemetry.Leases

	mu     sync.Mutex
	holds  map[string]*hold // by ID
	queues map[queueKey]*localQueue
}

// New returns a Locker that keeps its locks in store, under name.
//
// Lockers with the same name should have the same settings; different ones in this process are
// logged. If some callers need other settings, use [Locker.With].
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(st store.Locks, name string, opts ...Option) (*Locker, error) {
	if naming.IsNil(st) {
		return nil, errors.New("lock: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("lock: New: %w", err)
	}
	config := defaults().with(opts)
	config.ofNew = false
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("lock: New: %w", err)
	}
	c := &core{store: st, name: name, holds: make(map[string]*hold), queues: make(map[queueKey]*localQueue)}
	c.telemetry = telemetry.NewLock(config.providers, ScopeName, name)
	c.leases = telemetry.NewLeases(config.providers, config.logger, ScopeName, name, "lock")
	c.namesake = namesake.Join(st, config.logger, "lock", name, config.settings())
	c.keeper = lease.NewKeeper(c.renew)
	c.releases = background.NewReleases(c.releaseEach)
	c.closing, c.close = context.WithCancel(context.Background())
	c.detach = []func(){st.NotifyLost(c.notifyLost), st.AtShutdown(c.shutdown)}
	return &Locker{c, config}, nil
}

// Name returns the name that the Locker was built with.
func (l *Locker) Name() string { return l.name }

// With returns a Locker of the same locks with some settings changed. It is closed together with l.
// Options for providers and loggers are of [New] alone, and an error here.
func (l *Locker) With(opts ...Option) (*Locker, error) {
	config := l.config.with(opts)
	if config.ofNew {
		return nil, errors.New("lock: With: WithMeterProvider, WithTracerProvider and WithLogger are options of New alone")
	}
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("lock: With: %w", err)
	}
	return &Locker{l.core, config}, nil
}

// Do runs fn while it holds the lock of key. fn's context is the lease's. It returns the error of
// [Locker.Lock], fn's, or that of [Lease.Unlock]: [ErrLost] means that others may have held the
// lock while fn ran. If fn panics, the lock is released and the panic propagates.
func (l *Locker) Do(ctx context.Context, key string, fn func(context.Context) error) (err error) {
	lease, err := l.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer func() {
		if unlockErr := lease.Unlock(ctx); err == nil {
			err = unlockErr
		}
	}()
	return fn(lease.Context())
}

// Close closes the Locker: waiters and later calls return [ErrClosed], every held lock is released,
// and its lease's context ends with [ErrReleased]. Close waits up to 5 s for the store. Its error
// has the number of locks that may be held until their leases expire. It does not close the store.
//
// The store's Shutdown does the same for every Locker on it; Close then finishes the rest.
func (l *Locker) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.namesake.Leave()
	for _, f := range l.detach {
		f()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return l.shutdown(ctx)
}

// shutdown first ends the process's own requests, so that it gets no more grants, and then releases
// its holds.
func (c *core) shutdown(ctx context.Context) error {
	c.close()
	inFlight := c.calls.Wait(ctx)
	c.mu.Lock()
	holds := slices.Collect(maps.Values(c.holds))
	c.mu.Unlock()
	for _, h := range holds {
		h.term.End(ErrReleased)
		h.recordEnd(telemetry.Released)
	}
	var (
		wg   sync.WaitGroup
		room = make(chan struct{}, maxReleases)
	)
	for _, h := range holds {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if ctx.Err() == nil {
				_, _ = c.release(ctx, h)
			} else { // no time left to wait for the store
				c.forget(h)
				c.retryRelease(h.request())
			}
			if h.queue != nil {
				c.holdEnded(h.queue, h)
			}
		})
	}
	wg.Wait()
	c.keeper.Rest()
	return errors.Join(inFlight, c.releases.Drain(ctx))
}

// notifyLost is called by the store when a hold has ended.
func (c *core) notifyLost(id string) {
	c.mu.Lock()
	h := c.holds[id]
	c.mu.Unlock()
	if h != nil {
		h.Lost()
	}
}

const (
	// closeTimeout is how long Close waits for releases.
	closeTimeout = 5 * time.Second
	// maxReleases is how many locks a shutdown releases at a time. Stores batch them into few
	// calls.
	maxReleases = 256
)
