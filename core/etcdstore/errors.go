package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// codeOf returns the code of an error of the client.
func codeOf(err error) codes.Code {
	var reply rpctypes.EtcdError
	switch {
	case errors.As(err, &reply):
		return reply.Code()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// is reports whether an error is one of the server's, whether the client has translated it or not.
func is(err, reply error) bool {
	return err != nil && (errors.Is(err, reply) || strings.Contains(err.Error(), reply.Error()))
}

// isDecisive reports whether a failure opens the breaker without a probe.
func isDecisive(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "connection refused") || errors.Is(err, store.ErrMisconfigured))
}

// isUnsent reports whether a request was not sent, or was refused before it was proposed.
func isUnsent(err error) bool {
	text := err.Error()
	return strings.Contains(text, "connection refused") || strings.Contains(text, "no connection available") ||
		strings.Contains(text, "no address available") || is(err, rpctypes.ErrNoLeader)
}

// isSilence reports whether a request may have had no reply, or may be sent to another member.
func isSilence(err error) bool {
	switch codeOf(err) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Unknown, codes.Internal:
		return true
	}
	return false
}

// maySent reports whether a request that has failed may have been carried out.
func maySent(err error) bool { return isSilence(err) && !isUnsent(err) }

// explain returns an error of the client as one of package store. It is unconfirmed if the request may
// have been carried out.
func (s *Store) explain(err error, maybe bool) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) && !maybe {
		return err
	}
	const users = "check the user and the password of the client"
	switch code := codeOf(err); {
	case is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w: compact, defragment and disarm the alarm", store.ErrFull, fromEtcd(err))
	case is(err, rpctypes.ErrPermissionDenied), code == codes.PermissionDenied:
		return store.Misconfigured(store.Permission, fmt.Errorf("%w: grant the client's user readwrite on the prefix %q", fromEtcd(err), s.config.prefix))
	case is(err, rpctypes.ErrAuthFailed), is(err, rpctypes.ErrUserEmpty), code == codes.Unauthenticated:
		return store.Misconfigured(store.Authentication, fmt.Errorf("%w: "+users, fromEtcd(err)))
	case code == codes.Unimplemented:
		return store.Misconfigured(store.WrongServer, fmt.Errorf("%w: the endpoint is no etcd, or an old one", fromEtcd(err)))
	case is(err, rpctypes.ErrTooManyRequests):
		return fmt.Errorf("%w: %w", store.ErrOverloaded, fromEtcd(err))
	case s.client.Ctx().Err() != nil:
		err = errors.New("the client is closed")
	}
	if maybe {
		return fmt.Errorf("%w: %w", store.ErrUnconfirmed, fromEtcd(err))
	}
	if strings.Contains(err.Error(), "connection refused") {
		return errRefused
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, fromEtcd(err))
}

// fromEtcd names the server in an error.
func fromEtcd(err error) error {
	if strings.Contains(err.Error(), "connection refused") {
		return store.WithCauseOf(errRefused, "etcd: no member takes connections: connection refused")
	}
	return fmt.Errorf("etcd: %w", err)
}

var errRefused = store.Unavailable(store.ConnectionRefused, "etcd: no member takes connections: connection refused")

// isLeaseGone reports whether a lease of the server does not exist any more.
func isLeaseGone(err error) bool { return is(err, rpctypes.ErrLeaseNotFound) }
