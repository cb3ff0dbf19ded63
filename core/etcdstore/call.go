package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/etcdstore"

// operation is a kind of call.
type operation struct {
	name     string
	writes   bool
	finishes bool // something that exists: it passes an open breaker
}

var (
	opAcquire  = operation{name: "acquire_lease", writes: true}
	opPrepare  = operation{name: "acquire_lease"}                               // the first read of an acquire
	opAwait    = operation{name: "acquire_lease", writes: true, finishes: true} // of a waiter, repeated until it is granted
	opRelease  = operation{name: "release_leases", writes: true, finishes: true}
	opRenew    = operation{name: "renew_leases", writes: true, finishes: true}
	opInspect  = operation{name: "inspect"}
	opVerify   = operation{name: "inspect", finishes: true}
	opLatch    = operation{name: "latch", writes: true}
	opLatches  = operation{name: "latch"}
	opPing     = operation{name: "ping", finishes: true}
	opKeep     = operation{name: "keep_alive", finishes: true} // or ask for a lease, which does no harm if it is not known
	opLease    = operation{name: "keep_alive"}                 // of a new request
	opWatch    = operation{name: "watch"}
	operations = []string{
		opAcquire.name, opRelease.name, opRenew.name, opInspect.name, opLatch.name, opDocuments.name, opPing.name, opKeep.name, opWatch.name,
	}
)

// mostSent is how often a step is sent if a cluster has several members.
const mostSent = 3

// run makes a call of the client. f may be called again, with repeated set, if an earlier call had no
// reply, and may have been carried out. It returns the context's error if that has ended, and otherwise an
// error of package store.
func run[T any](ctx context.Context, s *Store, op operation, f func(ctx context.Context, repeated bool) (T, error)) (T, error) {
	var none T
	switch {
	case s.life.Err() != nil:
		return none, store.ErrClosed
	case ctx.Err() != nil:
		return none, ctx.Err()
	}
	var admitted breaker.Call
	if !op.finishes {
		var err error
		if admitted, err = s.breaker.Allow(!op.writes); err != nil {
			return none, err
		}
	}
	call := s.telemetry.Begin(ctx, op.name)
	result, err := s.attempt(ctx, op, func(ctx context.Context, repeated bool) (any, error) { return f(ctx, repeated) })
	call.End(ctx, err)
	admitted.End(verdict(ctx, err))
	if err != nil {
		return none, err
	}
	return result.(T), nil
}

// attempt sends a step until it has a reply, or its time is over.
func (s *Store) attempt(ctx context.Context, op operation, f func(context.Context, bool) (any, error)) (any, error) {
	left := mostSent
	if len(s.client.Endpoints()) == 1 {
		left = 2 // the second one for a connection that broke
	}
	whole, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	for repeated := false; ; repeated = true {
		result, err := s.once(whole, left, repeated, f)
		left--
		if err == nil {
			return result, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case s.life.Err() != nil:
			return nil, store.ErrClosed
		case left > 0 && whole.Err() == nil && isSilence(err):
			continue
		}
		if isSilence(err) && s.isRefused() {
			err = errRefused
		}
		return nil, s.explain(err, op.writes && (repeated || maySent(err)))
	}
}

// isRefused reports whether no member takes connections: the client dials again and again until the call's
// time is over, and does not say why.
func (s *Store) isRefused() bool {
	if connection := s.client.ActiveConnection(); connection == nil || connection.GetState() == connectivity.Ready {
		return false
	}
	for _, endpoint := range s.client.Endpoints() {
		_, address, found := strings.Cut(endpoint, "://")
		if !found {
			address = endpoint
		}
		connection, err := net.DialTimeout("tcp", address, s.config.timeout/4)
		if err == nil {
			_ = connection.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}

// once sends a step once. With a single endpoint it may take all of the time, since there is no other
// member to send it to.
func (s *Store) once(ctx context.Context, left int, repeated bool, f func(context.Context, bool) (any, error)) (any, error) {
	if until, ok := ctx.Deadline(); ok && left > 1 && len(s.client.Endpoints()) > 1 {
		short, cancel := context.WithTimeout(ctx, time.Until(until)/time.Duration(left))
		defer cancel()
		ctx = short
	}
	return f(ctx, repeated)
}

// verdict is the result of a call for the breaker.
func verdict(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrFull), errors.Is(err, store.ErrOverloaded):
		return breaker.ErrNoEvidence
	case !errors.Is(err, store.ErrUnavailable):
		return breaker.ErrNoEvidence
	}
	return err
}

// probe reads, which takes a majority of the cluster, and dials again at once what it has given up for a
// while.
func (s *Store) probe() error {
	if connection := s.client.ActiveConnection(); connection != nil {
		connection.ResetConnectBackoff()
	}
	_, err := s.attempt(s.life, opPing, func(ctx context.Context, _ bool) (any, error) {
		return s.client.Get(ctx, s.fenceKey(), clientv3.WithKeysOnly())
	})
	return err
}

// inTransaction is how many steps a transaction has at most: the server's limit is 128.
const inTransaction = 120

// checkRelease checks once that the server is of a release that the store works with.
func (s *Store) checkRelease(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	status, err := run(ctx, s, opPrepare, func(ctx context.Context, _ bool) (status *clientv3.StatusResponse, err error) {
		for _, endpoint := range s.client.Endpoints() {
			if status, err = s.client.Status(ctx, endpoint); err == nil {
				break
			}
		}
		return status, err
	})
	switch {
	case errors.Is(err, store.ErrMisconfigured):
		return nil // it does not tell its release
	case err != nil:
		return err
	case older(status.Version, s.config.oldest):
		return store.Misconfigured(store.WrongServer, fmt.Errorf("etcd %s is older than %d.%d, the oldest that the store works with: update it",
			status.Version, s.config.oldest[0], s.config.oldest[1]))
	}
	s.checked.Store(true)
	return nil
}

// older reports whether a version such as "3.4.23" is older than a release.
func older(version string, release [2]int) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major < release[0] || major == release[0] && minor < release[1]
}
