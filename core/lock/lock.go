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
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/errand"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/redo"
	"github.com/lockkeeper/lockkeeper/internal/renewal"
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
// same key shares the lease. Goroutines that share a context therefore do not exclude each other.
//
// All methods may be called concurrently.
type Locker struct {
	*core
	config config
}

// core is what a Locker and its variants have in common.
type core struct {
	store  Store
	name   string
	keeper *renewal.Keeper[*hold]
	redo   redo.Queue
	detach []func()

	closing context.Context // ends when the Locker is closed
	close   context.CancelFunc
	errands errand.Group

	telemetry *telemetry.Lock
	leases    *telemetry.Leases

	mu    sync.Mutex
	holds map[string]*hold // by ID
	lines map[lineKey]*line
}

// New returns a Locker that keeps its locks in store, under name.
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(store Store, name string, opts ...Option) (*Locker, error) {
	if store == nil {
		return nil, errors.New("lock: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("lock: New: %w", err)
	}
	config := defaults().with(opts)
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("lock: New: %w", err)
	}
	c := &core{store: store, name: name, holds: make(map[string]*hold), lines: make(map[lineKey]*line)}
	c.telemetry = telemetry.NewLock(config.providers, ScopeName, name)
	c.leases = telemetry.NewLeases(config.providers, config.logger, ScopeName, name, "lock")
	c.keeper = renewal.NewKeeper(c.renew)
	c.closing, c.close = context.WithCancel(context.Background())
	c.detach = []func(){store.NotifyLost(c.lost), store.AtShutdown(c.shutdown)}
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

// Close releases every lock that is held, ends their contexts with [ErrReleased], and has those who
// wait return [ErrClosed]. It returns an error if the store has not confirmed the releases: what is
// left expires. It does not close the store.
func (l *Locker) Close() error {
	if l.closing.Err() != nil {
		return nil
	}
	l.close()
	for _, f := range l.detach {
		f()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return l.shutdown(ctx)
}

// shutdown releases what is held, and finishes what is under way.
func (c *core) shutdown(ctx context.Context) error {
	c.mu.Lock()
	holds := make([]*hold, 0, len(c.holds))
	for _, h := range c.holds {
		holds = append(holds, h)
	}
	c.mu.Unlock()
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(holds))
		room = make(chan struct{}, 16)
	)
	for i, h := range holds {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			h.term.End(ErrReleased)
			h.ended(telemetry.Released)
			if _, err := c.release(ctx, h); err != nil {
				errs[i] = err
			}
			if h.line != nil {
				c.letGo(h.line, h)
			}
		})
	}
	wg.Wait()
	c.keeper.Rest()

	errs = append(errs, c.errands.Wait(ctx))
	return errors.Join(append(errs, c.redo.Drain(ctx))...)
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

// closeTimeout is how long Close waits for what is held to be released.
const closeTimeout = 5 * time.Second
