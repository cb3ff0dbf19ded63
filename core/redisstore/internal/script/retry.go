package script

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// retries is the state of the retries of one call.
type retries struct {
	pause         *backoff.Growing // nil before the first pause
	broken        int              // connections
	retriedAtOnce bool             // after a refusal of writes
}

// mostBroken is the maximum number of broken connections of a call: after a restart of the server,
// the pool may have several.
const mostBroken = 3

// worthRetry reports whether a retry may succeed: the request has not run, for a reason that may
// soon be gone, or its connection broke. The latter does not count for a request that must run
// once.
func worthRetry(err error, once bool) bool {
	return didNotRun(err) && !lasts(err) || !once && isBroken(err)
}

// again reports, after a pause if one is due, whether to retry a request that has failed with err.
// It returns false if the caller's time is over, or the store is closed. A server that refuses
// writes has carried nothing out: if a new connection leads to another server, the retry goes there.
func (n *Node) again(c *callContext, r *retries, err error, once bool) bool {
	if !worthRetry(err, once) || c.Err() != nil || n.owner.closed.Load() {
		return false
	}
	if isBroken(err) && !didNotRun(err) {
		if r.broken++; r.broken > mostBroken {
			return false
		}
		return true
	}
	if redisfault.RefusesWrites(err) {
		n.doubts.refused.Store(true)
		if n.breaker.Ask(c, c.since()) != nil {
			return false
		}
		if !r.retriedAtOnce { // otherwise stale connections remain, or other connections lead there
			r.retriedAtOnce = true
			return true
		}
	} else if redisfault.IsReply(err) && verdict(err) != nil {
		if n.breaker.Doubt(c.since()); n.isDown() { // other calls fail at once as well
			return false
		}
	}
	if r.pause == nil {
		r.pause = &backoff.Growing{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond}
	}
	next := r.pause.Next()
	if deadline, ok := c.Deadline(); ok && time.Until(deadline) <= next {
		return false
	}
	return backoff.Sleep(c, next)
}

// lasts reports whether the cause of an error will not be gone within the time of a call.
func lasts(err error) bool { return isWrongSetting(err) || redisfault.IsUnreachable(err) }

// isWrongSetting reports whether the server, or the client, is misconfigured; a new connection does
// not change that.
func isWrongSetting(err error) bool {
	return redisfault.IsMisconfigured(err) && !redisfault.RefusesWrites(err)
}

// isBroken reports whether the connection ended before there was a reply, or the client has closed
// it.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || isTimeout(err)
}

// isTimeout reports whether there was no reply on a connection in time.
func isTimeout(err error) bool {
	if err == nil { // the code below allocates
		return false
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
