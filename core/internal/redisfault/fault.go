// Package redisfault classifies errors of Redis clients, and maps them to the errors of package store.
package redisfault

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Explain returns an error of the client as one of a store: unavailable, with what else is known of it.
// It is unconfirmed if the request may have run, as open says, and the server's reply does not rule
// that out.
func Explain(err error, open bool) error {
	cause, misconfigured := misconfiguration(err)
	switch {
	case err == nil, errors.Is(err, store.ErrUnavailable):
		return err
	case misconfigured:
		return store.Misconfigured(cause, fmt.Errorf("redis: %w", err))
	case IsOutOfMemory(err):
		return fmt.Errorf("%w: redis: %w", store.ErrFull, err)
	case open:
		return fmt.Errorf("%w: redis: %w", store.ErrUnconfirmed, err)
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

// RefusesWrites reports whether the server said that it takes no writes, or too few replicas are there for them.
func RefusesWrites(err error) bool { return Says(err, "READONLY") || Says(err, "NOREPLICAS") }

// Says reports whether the server replied with an error of that kind, or a script did: before version 7 Redis
// has it somewhere in the script's own error.
func Says(err error, kind string) bool {
	return err != nil && (redis.HasErrorPrefix(err, kind) || IsReply(err) && strings.Contains(err.Error(), ": -"+kind+" "))
}

// settings are the beginnings of replies by which a server says that it, or the client, is set up wrongly.
// It has carried nothing out.
var settings = []struct {
	prefix string
	cause  store.Cause
}{
	{"NOAUTH", store.Authentication},
	{"WRONGPASS", store.Authentication},
	{"ERR AUTH", store.Authentication},
	{"ERR invalid password", store.Authentication},
	{"ERR Client sent AUTH", store.Authentication},
	{"ERR Protocol error: unauthenticated", store.Authentication},
	{"DENIED", store.Authentication}, // protected mode
	{"NOPERM", store.Permission},
	{"READONLY", store.ReadOnly},
	{"MOVED", store.WrongServer}, // a client of a single server on a node of a Cluster
	{"ERR unknown command", store.WrongServer},
	{"ERR This instance has cluster support disabled", store.WrongServer},
}

// forbidden are parts of the errors of scripts that met a command, a key or a channel which the client's user
// may not use, as newer and older servers word them.
var forbidden = []string{"ACL failure in script", "The user executing the script can't "}

func misconfiguration(err error) (store.Cause, bool) {
	if err == nil || !IsReply(err) {
		return "", false
	}
	for _, part := range forbidden {
		if strings.Contains(err.Error(), part) {
			return store.Permission, true
		}
	}
	var reply redis.Error
	errors.As(err, &reply)
	for _, s := range settings {
		if strings.HasPrefix(reply.Error(), s.prefix) || Says(err, s.prefix) {
			return s.cause, true
		}
	}
	return "", false
}

// IsMisconfigured reports whether the server answered that it, or the client, is set up wrongly.
func IsMisconfigured(err error) bool {
	_, ok := misconfiguration(err)
	return ok
}

// IsUnauthenticated reports whether the server refused the client's password, or wants one.
func IsUnauthenticated(err error) bool {
	cause, ok := misconfiguration(err)
	return ok && cause == store.Authentication
}

// IsUnreachable reports whether no server was found at an address: nothing listens there, or the name is
// unknown. A server that is merely slow, or busy, is reachable.
func IsUnreachable(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound
}
