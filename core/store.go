// Package core says what a Store is: where the mechanisms of Lockkeeper keep their state. The
// mechanisms themselves are its subpackages, and so are the stores.
package core

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// Store keeps the state of all mechanisms. core/memstore keeps it in memory, core/redisstore on
// Redis. A mechanism asks for its own part of it only, so a store that can do but some of them
// implements those.
//
// All methods may be called concurrently.
type Store interface {
	tokenbucket.Store
	guard.Store
	lock.Store
	semaphore.Store
	semaphore.LatchStore

	// Ping reports whether the store can be reached: nil, an error that matches ErrUnavailable, or
	// the context's.
	Ping(ctx context.Context) error

	// Shutdown closes the mechanisms on the store: what would begin something returns ErrClosed from
	// then on, and so does what waits. It withdraws their places in queues, then releases what they
	// hold, and finishes what they have pending, such as completions that the store has not confirmed,
	// until ctx ends. An error says what is left: leases that may be held until they end by themselves,
	// and completions. It may be called again, to go on with that. Call it after the server's own
	// shutdown, and before Close.
	Shutdown(ctx context.Context) error

	// Close does what Shutdown has left, for a second at most, with its error, and ends the store, and what
	// it started. From then on every method returns ErrClosed. It does not close the client that it was
	// built on.
	Close() error
}

var (
	// ErrUnavailable is matched by every error that says that the store could not answer: it was
	// not reached in time, refused, broke the connection, or answered with an error of its own.
	// If ErrUnconfirmed does not match too, nothing has been changed.
	ErrUnavailable = outage.ErrUnavailable

	// ErrUnconfirmed is matched by an ErrUnavailable of a request that was sent, and may or may
	// not have been carried out.
	ErrUnconfirmed = outage.ErrUnconfirmed

	// ErrFull is matched by an ErrUnavailable of a store that has no room for what is new. It answers
	// about what it has, so it is not down: no policy that lets requests pass applies to it.
	ErrFull = outage.ErrFull

	// ErrClosed is matched by an ErrUnavailable of a store, or a mechanism, that was closed or shut down.
	// It is no outage: no policy that lets requests pass applies to it.
	ErrClosed = outage.ErrClosed

	// ErrMisconfigured is matched by an ErrUnavailable that waiting does not end: the store's server
	// refused the password or lacks a permission, is read-only, evicts what must be kept, or is of
	// the wrong type. It is no outage, so policy.FailOpen and policy.RunUnprotected do not apply to
	// it unless they are given policy.EvenMisconfigured.
	ErrMisconfigured = outage.ErrMisconfigured
)
