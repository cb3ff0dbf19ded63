// Package store defines the interfaces that stores implement for the mechanisms, one for each
// mechanism and one for documents, and the errors that all stores share. It is to the mechanisms
// what database/sql/driver is to database/sql: users of locks, semaphores, token buckets and guards
// need only its errors.
//
// core/memstore, core/redisstore and core/pgstore implement all interfaces, core/etcdstore those of
// locks, semaphores, latches and documents, and core/zkstore those of locks, semaphores and
// latches. A store may implement one of them alone;
// core/storetest has a test suite for each.
//
// An interface of a mechanism has the methods that the mechanism cannot do without. Further
// abilities are small interfaces of their own, such as [LeaseLister], which a mechanism finds by
// assertion. A method that needs an ability which the store does not have returns an error that
// matches [ErrNotSupported].
package store

import (
	"context"
	"fmt"
	"reflect"
)

// Store keeps the state of all mechanisms. Each mechanism takes only the interface that it needs.
//
// All methods may be called concurrently.
type Store interface {
	Buckets
	Records
	StepRecords
	AwaitedRecords
	ResolvableRecords
	Leases
	LeaseDowngrader
	LeaseVerifier
	LeaseLister
	LeaseRevoker
	Latches
	Delays
	TaskKeeper
	Documents

	// Ping returns nil if the store can be reached, an error that matches ErrUnavailable if it
	// cannot, or the context's error.
	Ping(ctx context.Context) error

	// Shutdown closes the mechanisms on the store. From then on, new calls and waiting calls return
	// ErrClosed. Shutdown withdraws the mechanisms' places in queues and ends the contexts of their
	// leases. It then waits until the holders have released their leases, which are renewed during
	// that time, until attempts are settled, and until the store has confirmed completions.
	//
	// Shutdown does not wait for leases that are not renewed. It releases none itself, since
	// another holder could begin beside running work: leases that are still held when ctx ends are
	// left to expire. Its error has the number of leases that may stay held until they expire, and
	// of completions that are not confirmed. It may be called again to continue. Call it after the
	// server's own shutdown and before Close.
	Shutdown(ctx context.Context) error

	// Close is a Shutdown of a second at most, whose error it returns. It then ends the store and
	// all that the store started: from then on every method returns ErrClosed, releases included.
	// It does not close the client that the store was built on.
	Close() error
}

// OneProcess is a store whose state one process has for itself, such as core/memstore's. Mechanisms
// that compute something by what the process sees require it.
type OneProcess interface {
	// OneProcess does nothing.
	OneProcess()
}

// As returns a store as one with an optional ability, T, or an error that matches ErrNotSupported.
func As[T any](st any) (T, error) {
	able, ok := st.(T)
	if !ok {
		return able, fmt.Errorf("%w: %T is no %v", ErrNotSupported, st, reflect.TypeFor[T]())
	}
	return able, nil
}

// Hooks is the part of a store that mechanisms with leases or pending work register with.
type Hooks interface {
	// AtShutdown registers f, which the store's Shutdown calls before the store ends. The returned
	// function removes it.
	AtShutdown(f func(context.Context) error) (remove func())
}
