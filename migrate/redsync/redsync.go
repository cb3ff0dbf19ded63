// Package redsync is a bridge from github.com/go-redsync/redsync/v4: its Mutex, on a lock.Locker. A
// program moves to it by its imports and the line that calls [New]; the calls of a Mutex stay.
//
// The locks of the two libraries do not exclude each other. Move all processes at once:
// https://github.com/lockkeeper/lockkeeper/blob/main/docs/migrating.md says how.
//
// What differs:
//
//   - A lock is renewed until it is released, so work may take longer than the expiry. A program that
//     leaves a lock to expire needs [WithoutRenewal].
//   - [Mutex.Extend] extends nothing: it reports whether the lock is held.
//   - [Mutex.Lock] waits in a queue, for as long as the tries of redsync would have lasted. Waiters are
//     woken, and served in order as package lock says.
//   - A Lock that gives up leaves the queue in the background, and may have the lock for a moment: a
//     TryLock may fail then, although there is no holder.
//   - While the store is unavailable, Lock returns that error at once. redsync tries again.
//   - An Unlock runs to its end, also if its context has ended.
//   - Several servers are a core/quorum, under the locker.
//   - [Mutex.Lease] has what redsync lacks: a context that ends when the lock is lost, and a fence.
//
// There is no WithValue, WithGenValueFunc and Mutex.Value: a lock has no value to hand on. There is no
// WithDriftFactor, WithTimeoutFactor, WithFailFast and WithShufflePools: the store and core/quorum have
// settings of their own. There is no WithRetryDelayFunc, since nothing polls, and no WithSetNXOnExtend,
// which hides that a lock was lost.
package redsync

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

var (
	// ErrFailed is matched by the error of a call that did not get the lock: an *[ErrTaken], or one that
	// also matches the cause of the caller's context.
	ErrFailed = errors.New("redsync: failed to acquire lock")

	// ErrExtendFailed is matched by the error of an Extend that returns false.
	ErrExtendFailed = errors.New("redsync: failed to extend lock")

	// ErrLockAlreadyExpired is matched by the error of an Unlock of a lock that was not held: others may
	// have held it since it was granted.
	ErrLockAlreadyExpired = errors.New("redsync: failed to unlock, lock was already expired")
)

// ErrTaken is the error of a call that did not get the lock in time, since others hold it. It matches
// [ErrFailed] and lock.ErrNotAcquired.
type ErrTaken struct {
	held error // a *lock.HeldError, if the store has told of the holder
}

func (e ErrTaken) Error() string { return "redsync: lock already taken" }

// Unwrap returns the errors that e matches.
func (e ErrTaken) Unwrap() []error { return []error{ErrFailed, e.held} }

// Redsync makes mutexes.
type Redsync struct{ locker *lock.Locker }

// New returns a Redsync on locker, whose locks its mutexes are: locker.Lock(ctx, name) excludes
// NewMutex(name). The caller closes the locker. Without [WithExpiry], the expiry is the locker's TTL,
// 30 s by default, where redsync has 8 s. The locker must not have lock.WithoutRenewal.
func New(locker *lock.Locker) *Redsync { return &Redsync{locker} }

// Mutex is a lock of one name, for one holder: give each goroutine its own, as with redsync. Its
// methods concern the last lock that was acquired through it, so a holder whose lock has ended would
// release that of another one.
type Mutex struct {
	name     string
	locker   *lock.Locker
	settings []lock.Option
	fixed    bool // it is not renewed
	tries    int
	delay    time.Duration
	err      error // of Lock

	mu    sync.Mutex
	lease *lock.Lease // the last one that was granted, until it is released, or nil
}

// NewMutex returns the mutex of a name of 1 to 1,024 bytes. An option out of its range is the error of
// Lock.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{name: name, tries: 32, delay: 150 * time.Millisecond}
	option.Apply(m, options)
	switch {
	case r == nil || r.locker == nil:
		m.err = errors.New("redsync: New: nil locker")
	case m.tries < 1:
		m.err = fmt.Errorf("%w: WithTries: %d tries", ErrFailed, m.tries)
	default:
		m.locker, m.err = r.locker.With(m.settings...)
	}
	return m
}

// Option is an optional setting of [Redsync.NewMutex].
type Option func(*Mutex)

// WithExpiry sets how long the lock outlives the last renewal of its holder, and so for how long others
// wait if that dies: 10 ms to 24 h.
func WithExpiry(expiry time.Duration) Option {
	return func(m *Mutex) { m.settings = append(m.settings, lock.WithTTL(expiry)) }
}

// WithoutRenewal ends the lock after its expiry, whether it was released or not, as redsync does. It is
// for a lock that is not released, as of a job that runs once in that time, and for none that
// protects work.
func WithoutRenewal() Option {
	return func(m *Mutex) { m.settings, m.fixed = append(m.settings, lock.WithoutRenewal()), true }
}

// WithTries sets for how many tries Lock waits, 32 if not set: after the first one, for (tries-1) times
// the delay. One does not wait.
func WithTries(tries int) Option { return func(m *Mutex) { m.tries = tries } }

// WithRetryDelay sets the delay that [WithTries] counts: 150 ms if not set, the average of redsync.
func WithRetryDelay(delay time.Duration) Option { return func(m *Mutex) { m.delay = delay } }

// Name returns the name of the mutex.
func (m *Mutex) Name() string { return m.name }

// Lock is LockContext without a context.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext blocks until it holds the lock, until the tries are over ([WithTries]), or until ctx ends,
// whose end later does not matter to the lock.
//
// The error is an *[ErrTaken] if the tries are over, matches [ErrFailed] and ctx's cause if that has
// ended, is that of an option, or is another one of lock.Locker's Lock. The lock is not held then.
func (m *Mutex) LockContext(ctx context.Context) error {
	wait := time.Duration(math.MaxInt64)
	if pauses := int64(m.tries) - 1; pauses < 1 || int64(m.delay) < math.MaxInt64/pauses {
		wait = time.Duration(pauses * int64(m.delay))
	}
	return m.acquire(ctx, wait)
}

// TryLock is TryLockContext without a context.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext is LockContext without waiting: if others hold the lock, or wait for it, it returns an
// *[ErrTaken] at once.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.acquire(ctx, 0) }

// acquire tries once, however long the store takes, and then waits.
func (m *Mutex) acquire(ctx context.Context, wait time.Duration) error {
	if ctx == nil { // redsync allows it
		ctx = context.Background()
	}
	switch {
	case m.err != nil:
		return m.err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrFailed, context.Cause(ctx))
	}
	err := m.request(ctx, m.locker.TryLock, math.MaxInt64)
	if wait > 0 && errors.Is(err, lock.ErrNotAcquired) {
		err = m.request(ctx, m.locker.Lock, wait)
	}
	return err
}

// request calls TryLock or Lock of the locker, for a time.
func (m *Mutex) request(ctx context.Context, call func(context.Context, string) (*lock.Lease, error), d time.Duration) error {
	// The context of the call is the parent of the lease's, but only the call ends with the caller's.
	calling, end := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, end)
	timer := time.AfterFunc(d, end)
	lease, err := call(calling, m.name)
	detached, inTime := detach(), timer.Stop()
	if err == nil && detached && inTime {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.lease = lease
		return nil
	}
	if err == nil { // granted when the time was over
		_ = lease.Unlock(ctx)
		err = lock.ErrNotAcquired
	}
	var held *lock.HeldError
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return err
	case !detached:
		return fmt.Errorf("%w: %w", ErrFailed, context.Cause(ctx))
	case errors.As(err, &held):
		return &ErrTaken{&lock.HeldError{Holder: held.Holder, Remaining: held.Remaining, Waiting: held.Waiting}}
	case !inTime, errors.Is(err, lock.ErrNotAcquired):
		return &ErrTaken{lock.ErrNotAcquired}
	}
	return err
}

// Unlock is UnlockContext without a context.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext releases the lock, also if ctx has ended, and reports whether it was held until now.
//
// The error matches [ErrLockAlreadyExpired] if it was not, whether others hold it or not, or
// store.ErrUnavailable: then the release is retried in the background, and another call of Unlock is
// not needed.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	m.mu.Lock()
	lease := m.lease
	m.lease = nil
	m.mu.Unlock()
	if lease == nil {
		return false, ErrLockAlreadyExpired
	}
	err := lease.Unlock(ctx)
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", ErrLockAlreadyExpired, err)
	}
	return err == nil, err
}

// Extend is ExtendContext without a context.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext reports whether the store says that the lock is held. It does not change when the lock
// expires, since it is renewed: programs need not call it.
//
// The error matches [ErrExtendFailed], and tells why: the lock is not held, the mutex has
// [WithoutRenewal], or the store did not reply, so that the lock may still be held ([Mutex.Until]).
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	if m.fixed {
		return false, fmt.Errorf("%w: the mutex has WithoutRenewal", ErrExtendFailed)
	}
	held, err := m.ValidContext(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrExtendFailed, err)
	}
	return held, err
}

// Valid is ValidContext without a context.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks the store whether the lock is held. The error, if it is not, is
// [ErrLockAlreadyExpired], lock.ErrLost or lock.ErrExpired, or else that of the store or of ctx.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	lease := m.Lease()
	if lease == nil {
		return false, ErrLockAlreadyExpired
	}
	err := lease.Verify(ctx)
	return err == nil, err
}

// Until returns when the lock ends if it is not renewed, which moves it on; the zero time if the lock is
// not held.
func (m *Mutex) Until() time.Time {
	lease := m.Lease()
	if lease == nil || lease.Context().Err() != nil {
		return time.Time{}
	}
	return lease.ValidUntil()
}

// Lease returns the lease of the last Lock, for its Context, which ends when the lock is lost, and its
// Fence. It is nil before Lock and after Unlock.
func (m *Mutex) Lease() *lock.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease
}
