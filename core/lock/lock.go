// Package lock provides mutual exclusion between goroutines, in one process or across a fleet.
//
// A lock is a lease: it is held for a time, and renewed while its holder is alive, so that a dead
// holder does not block others forever. This has a limit that no such lock can avoid: a process
// that is paused for longer than its lease (by its garbage collector, its virtual machine, a
// debugger) does not notice on waking that others have held the lock since, and may have a write in
// progress. [Lease.Context] ends before others may hold the lock, which stops code that checks it;
// code that cannot check is stopped by [Lease.Fence], a number that the resource compares (package
// fence). Where two writers would be a catastrophe, use the fence.
//
// The packages called exclusive are its middleware, in ginmw, echomw, echov5mw, nethttp, grpcmw and
// connectmw; one of them is [github.com/lockkeeper/lockkeeper/nethttp/exclusive].
package lock

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
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
	pool     *lease.Pool // shared with the variants
	config   *lease.Config
	namesake *namesake.Member
}

// New returns a Locker that keeps its locks in store, under name.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// Lockers with the same name should have the same settings; different ones in this process are
// logged. If some callers need other settings, use [Locker.With]. A Locker that is dropped without
// Close is collected when it holds no lock any more, or a third of a lease later.
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(st store.Leases, name string, opts ...Option) (*Locker, error) {
	config, err := lease.NewConfig("lock", st, name, lease.Config{}, opts)
	if err != nil {
		return nil, err
	}
	l := &Locker{config: config, namesake: namesake.Join(st, config.Logger, "lock", name, settings(config))}
	l.pool = lease.NewPool(st, lease.Mechanism{
		Kind: store.LockKind, Name: name, Key: contextKey{},
		ErrReleased: ErrReleased, ErrExpired: ErrExpired, ErrLost: ErrLost, ErrInvalidKey: ErrInvalidKey, ErrNotAcquired: ErrNotAcquired,
		Busy: func(b lease.Busy) error {
			return &HeldError{Holder: b.Holder, Remaining: b.Remaining, Waiting: b.Waiting, cause: b.Cause}
		},
		Capacity:  func(*lease.Config, string, int) (int, int, error) { return store.MaxCapacity, 0, nil },
		Alloc:     newLease,
		Reenter:   l.reenter,
		Telemetry: telemetry.NewLock(config.Providers, ScopeName, name, l.namesake.Counter()),
		Leases:    telemetry.NewLeases(config.Providers, config.Logger, ScopeName, name, "lock", l.namesake.Counter()),
	})
	namesake.LeaveWith(l.pool, l.namesake)
	return l, nil
}

// Name returns the name that the Locker was built with.
func (l *Locker) Name() string { return l.pool.Name }

// TTL returns the length of a lease ([WithTTL]).
func (l *Locker) TTL() time.Duration { return l.config.TTL }

// With returns a Locker of the same locks with some settings changed. It is closed together with l.
// Options for providers and loggers are of [New] alone, and an error here.
func (l *Locker) With(opts ...Option) (*Locker, error) {
	config, err := lease.Vary("lock", l.config, opts)
	if err != nil {
		return nil, err
	}
	return &Locker{l.pool, config, l.namesake}, nil
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

// Close closes the Locker: waiters and later calls return [ErrClosed], and the context of every
// lease ends with it. Close then waits up to 5 s until the holders have released their leases,
// which are renewed during that time, and until the store has confirmed it. It does not wait for
// leases that are not renewed ([WithoutRenewal]), which expire. It does not close the store.
//
// Close does not release a lock that is still held after that, since another could hold it beside
// the running work: the lock expires with its TTL, unless Unlock is called before. The error
// has the number of locks that may be held until their leases expire.
//
// The store's Shutdown does the same for every Locker on it, until its context ends. Work that
// holds a lock and calls either of them waits for itself, that long.
func (l *Locker) Close() error {
	l.namesake.Leave()
	return l.pool.Close()
}
