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

	// Shutdown finishes what the mechanisms have pending, such as completions that the store has
	// not confirmed, until ctx ends. Call it after the server's own shutdown, and before Close.
	Shutdown(ctx context.Context) error

	// Close ends the store, and what it started. It does not close the client that it was built
	// on.
	Close() error
}

var (
	// ErrUnavailable is matched by every error that says that the store could not answer: it was
	// not reached in time, refused, broke the connection, or answered with an error of its own.
	// It is what an outage looks like, wherever it surfaces. If ErrUnconfirmed does not match too,
	// nothing has been changed.
	ErrUnavailable = outage.ErrUnavailable

	// ErrUnconfirmed is matched by an ErrUnavailable of a request that was sent, and may or may
	// not have been carried out.
	ErrUnconfirmed = outage.ErrUnconfirmed

	// ErrFull is matched by an ErrUnavailable of a store that has no room for what is new.
	ErrFull = outage.ErrFull

	// ErrClosed is matched by an ErrUnavailable of a store that was closed.
	ErrClosed = outage.ErrClosed
)
