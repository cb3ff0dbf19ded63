// Package lock is mutual exclusion between goroutines, in one process or in many.
//
// A lock here is a lease: it is held for a time, and renewed while its holder lives, so that the
// death of a holder does not close it for ever. Hence the one rule that no lock of this kind can
// lift: a process that is paused for longer than its lease (by its garbage collector, its virtual
// machine, its debugger) does not know on waking that others have had the lock meanwhile, and may
// have a write under way. [Lease.Context] ends before others may have the lock, which stops whatever
// looks at it; what cannot look is stopped by [Lease.Fence], a number that the resource compares
// (package fence). Where two writers would be a catastrophe, use the fence.
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

	"github.com/lockkeeper/lockkeeper/core/internal/errand"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/internal/redo"
	"github.com/lockkeeper/lockkeeper/core/internal/renewal"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Locker gives out locks by key. Lockers with the same name on the same store exclude each other, in
// one process as in several.
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
// Those who wait are served in order: within a process, and among processes, see [WithFair]. Shared
// locks ([Locker.RLock]) and exclusive ones take turns, so that neither starves the other.
//
// Locks are re-entrant by context: Lock with a lease's context, or one that derives from it, and the
// same key shares the lease. Goroutines that share a context therefore do not exclude each other. A
// context that derives from a lease's, and outlives it ([context.WithoutCancel]), enters the lease while
// it lasts, and gets an error after it.
//
// All methods may be called concurrently.
type Locker struct {
	*core
	config config
}

// core is what a Locker and its variants have in common.
type core struct {
	store  store.Locks
	name   string
	keeper *renewal.Keeper[*hold]
	undo   *redo.Releases[store.LockRef]
	detach []func()

	closing context.Context // ends when the Locker is closed, or its store is shut down
	close   context.CancelFunc
	closed  atomic.Bool  // Close was called
	errands errand.Group // calls to acquire and to unlock, and what goes on in the background

	namesake  *namesake.Member
	telemetry *telemetry.Lock
	leases    *telemetry.Leases

	mu    sync.Mutex
	holds map[string]*hold // by ID
	lines map[lineKey]*line
}

// New returns a Locker that keeps its locks in store, under name.
//
// Lockers of one name should have the same settings: if another of this process has others, that is logged.
// Where some callers need others, use [Locker.With].
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
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("lock: New: %w", err)
	}
	c := &core{store: st, name: name, holds: make(map[string]*hold), lines: make(map[lineKey]*line)}
	c.telemetry = telemetry.NewLock(config.providers, ScopeName, name)
	c.leases = telemetry.NewLeases(config.providers, config.logger, ScopeName, name, "lock")
	c.namesake = namesake.Join(st, config.logger, "lock", name, config.shared())
	c.keeper = renewal.NewKeeper(c.renew)
	c.undo = redo.NewReleases(c.releaseEach)
	c.closing, c.close = context.WithCancel(context.Background())
	c.detach = []func(){st.NotifyLost(c.lost), st.AtShutdown(c.shutdown)}
	return &Locker{c, config}, nil
}

// Name returns the name that the Locker was built with.
func (l *Locker) Name() string { return l.name }

// With returns a Locker of the same locks with other settings. Those that are not mentioned stay as
// they are. It is closed with the one that it was made from.
func (l *Locker) With(opts ...Option) (*Locker, error) {
	config := l.config.with(opts)
	config.providers, config.logger = l.config.providers, l.config.logger
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("lock: With: %w", err)
	}
	return &Locker{l.core, config}, nil
}

// Do runs fn while it holds the lock of key. fn's context is the lease's. It returns the error of
// [Locker.Lock], fn's, or that of [Lease.Unlock]: [ErrLost] says that others may have had the lock
// while fn ran. If fn panics the lock is released, and the panic goes on.
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

// Close ends the Locker: callers that wait return [ErrClosed], as later calls do, every lock that is held is
// released, and its lease's context ends with [ErrReleased]. It waits 5 s for the store. An error says how
// many locks may be held until their leases end. It does not close the store.
//
// The store's Shutdown does the same for every Locker on it; Close then finishes what that has left.
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

// shutdown first ends the process's own requests, so that nothing is granted to it any more, and then
// releases what it holds.
func (c *core) shutdown(ctx context.Context) error {
	c.close()
	inFlight := c.errands.Wait(ctx)
	c.mu.Lock()
	holds := slices.Collect(maps.Values(c.holds))
	c.mu.Unlock()
	for _, h := range holds {
		h.term.End(ErrReleased)
		h.ended(telemetry.Released)
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
			} else { // no time is left to wait for the store
				c.forget(h)
				c.giveBackLater(h.request())
			}
			if h.line != nil {
				c.letGo(h.line, h)
			}
		})
	}
	wg.Wait()
	c.keeper.Rest()
	return errors.Join(inFlight, c.undo.Drain(ctx))
}

// lost is told by the store that a hold has ended.
func (c *core) lost(id string) {
	c.mu.Lock()
	h := c.holds[id]
	c.mu.Unlock()
	if h != nil {
		h.Lost()
	}
}

const (
	// closeTimeout is how long Close waits for what is held to be released.
	closeTimeout = 5 * time.Second
	// maxReleases is how many locks a shutdown releases at a time. Stores make few calls of them.
	maxReleases = 256
)
