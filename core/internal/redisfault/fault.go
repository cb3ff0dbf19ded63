// Package redisfault classifies errors of Redis clients, and maps them to the errors of package
// store.
package redisfault

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Explain returns an error of the client as an error of a store, which matches one of:
//   - ErrMisconfigured or ErrFull, if the server's reply says so;
//   - ErrUnconfirmed, if open is set, since the request may have run, and the server's reply does
//     not rule that out;
//   - ErrUnavailable otherwise.
//
// wrote reports whether the server has taken writes before. A server that has become read-only is
// an outage; one that never took any is misconfigured.
func Explain(err error, open, wrote bool) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	r, known := Find(err)
	switch {
	case known && r.Verdict == Misconfiguration && (!wrote || r.Cause != store.ReadOnly):
		return store.Misconfigured(r.Cause, fmt.Errorf("redis: %w", err))
	case known && r.Verdict == Full:
		return fmt.Errorf("%w: redis: %w", store.ErrFull, err)
	case open:
		return fmt.Errorf("%w: redis: %w", store.ErrUnconfirmed, err)
	case known:
		return store.Outage(r.Cause, fmt.Errorf("redis: %w", err))
	}
	return fmt.Errorf("%w: redis: %w", store.ErrUnavailable, err)
}

// IsReply reports whether the server answered with an error.
func IsReply(err error) bool {
	if err == nil { // the code below allocates
		return false
	}
	var reply redis.Error
	return errors.As(err, &reply) && !errors.Is(err, redis.Nil)
}

// IsOutOfMemory reports whether the server refused to write since its memory is full.
func IsOutOfMemory(err error) bool { return Says(err, "OOM") }

// RefusesWrites reports whether the server replied that it takes no writes.
func RefusesWrites(err error) bool {
	switch r, _ := Find(err); r.Cause {
	case store.ReadOnly, store.Persistence, store.Replication:
		return true
	}
	return false
}

// IsMisconfigured reports whether the server replied that it, or the client, is misconfigured.
func IsMisconfigured(err error) bool {
	r, _ := Find(err)
	return r.Verdict == Misconfiguration
}

// IsUnauthenticated reports whether the server refused the client's password, or requires one.
func IsUnauthenticated(err error) bool {
	r, _ := Find(err)
	return r.Cause == store.Authentication
}

// IsUnreachable reports whether there is no server at an address: its port is closed, or its name
// is unknown. A slow or busy server is reachable.
func IsUnreachable(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound
}
