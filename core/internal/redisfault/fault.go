// Package redisfault classifies errors of Redis clients, and maps them to the errors of package store.
package redisfault

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Explain returns an error of the client as one of a store: unavailable, with what else is known of it.
// It is unconfirmed if the request may have run, as open says, and the server's reply does not rule
// that out. wrote says whether the server has taken writes before: one that has become read-only is
// an outage, and one that never took any is set up wrongly.
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
	if err == nil { // what follows allocates
		return false
	}
	var reply redis.Error
	return errors.As(err, &reply) && !errors.Is(err, redis.Nil)
}

// IsOutOfMemory reports whether the server refused to write since its memory is full.
func IsOutOfMemory(err error) bool { return Says(err, "OOM") }

// RefusesWrites reports whether the server said that it takes no writes, for a reason of its own.
func RefusesWrites(err error) bool {
	switch r, _ := Find(err); r.Cause {
	case store.ReadOnly, store.Persistence, store.Replication:
		return true
	}
	return false
}

// IsMisconfigured reports whether the server answered that it, or the client, is set up wrongly.
func IsMisconfigured(err error) bool {
	r, _ := Find(err)
	return r.Verdict == Misconfiguration
}

// IsUnauthenticated reports whether the server refused the client's password, or wants one.
func IsUnauthenticated(err error) bool {
	r, _ := Find(err)
	return r.Cause == store.Authentication
}

// IsUnreachable reports whether no server was found at an address: nothing listens there, or the name is
// unknown. A server that is merely slow, or busy, is reachable.
func IsUnreachable(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound
}
