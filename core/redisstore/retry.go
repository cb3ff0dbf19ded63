package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// retries are those of one call.
type retries struct {
	pause  *backoff.ExponentialBackOff
	broken int // connections
}

// mostBroken is how many broken connections a call survives: the pool may have several from before a server's
// restart.
const mostBroken = 3

// worthRetry reports whether a request may work when it is sent again: if it has not run and the reason may soon
// be gone, or, unless once, if its connection broke.
func worthRetry(err error, once bool) bool {
	return didNotRun(err) && !lasts(err) || !once && isBroken(err)
}

// again reports whether to send a request again, after a pause. It does not if the caller would not hear the
// answer any more.
func (r *retries) again(ctx context.Context, err error, once bool) bool {
	if !worthRetry(err, once) || ctx.Err() != nil {
		return false
	}
	if isBroken(err) && !didNotRun(err) {
		if r.broken++; r.broken > mostBroken {
			return false
		}
		return true
	}
	if r.pause == nil {
		r.pause = backoff.NewExponentialBackOff()
		r.pause.InitialInterval = 5 * time.Millisecond
		r.pause.MaxInterval = 50 * time.Millisecond
	}
	next := r.pause.NextBackOff()
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= next {
		return false
	}
	wait := time.NewTimer(next)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// lasts reports whether an error is an answer that the next moment does not change.
func lasts(err error) bool {
	return redisfault.IsMisconfigured(err) || redisfault.RefusesWrites(err) || redisfault.IsUnreachable(err)
}

// isBroken reports whether the connection ended before there was a reply, or the client has given it up.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || isTimeout(err)
}

// isTimeout reports whether a connection has not answered in time.
func isTimeout(err error) bool {
	if err == nil { // what follows allocates
		return false
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
