package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// urgency is which calls a call shares its bounds with.
type urgency int

const (
	reads    urgency = iota // changes nothing
	renews                  // changes nothing, and an open breaker does not refuse it
	writes                  // may have an effect after it was given up
	finishes                // writes, and an open breaker does not refuse it
)

// changesNothing reports whether a call may be made again if its connection breaks.
func (u urgency) changesNothing() bool { return u <= renews }

// passes reports whether an open breaker does not refuse the call.
func (u urgency) passes() bool { return u == renews || u == finishes }

// Bounds of calls in flight, calls that their callers have given up included: the client ends a
// call when it has a reply, or when its connection breaks.
const (
	maxCalls     = 512
	maxFinishing = 512
)

// calls makes calls of the client, which knows no contexts, within bounds of time and number.
type calls struct {
	link    *link
	timeout time.Duration
	breaker *breaker.Breaker
	life    context.Context // ends when the store is closed
	conn    atomic.Pointer[zk.Conn]

	ordinary, finishing chan struct{} // a token for each call in flight
	running             background.Group
	givenUp             atomic.Int64 // calls in flight whose callers have left
}

// errLeft is matched by the error of a call that may be carried out later: its caller has left.
var errLeft = errors.New("the call was given up")

// call calls f, and returns its result, or an error if it takes longer than the store's timeout, if
// ctx ends, or if there is no connection. If it returns an error that matches errLeft, f is still in
// flight, and late is called with its result, unless it is nil.
//
// Errors of ZooKeeper that say something about nodes are returned as they are. All others match
// store.ErrUnavailable, and store.ErrUnconfirmed if f may have changed something. If f changes nothing,
// it is called again when its connection breaks.
func call[T any](
	ctx context.Context, c *calls, u urgency, f func(*zk.Conn) (T, error), late func(T, error),
) (result T, err error) {
	if err := c.over(ctx); err != nil {
		return result, err
	}
	var admitted breaker.Call
	if !u.passes() {
		if admitted, err = c.breaker.Allow(u == reads); err != nil {
			return result, err
		}
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	for {
		result, err = once(ctx, c, u, f, late, admitted, timer)
		if !u.changesNothing() || !errors.Is(err, errLost) {
			return result, err
		}
		select {
		case <-time.After(betweenTries):
		case <-ctx.Done():
			return result, ctx.Err()
		case <-c.life.Done():
			return result, store.ErrClosed
		}
	}
}

// betweenTries is the pause before a call is made again.
const betweenTries = 5 * time.Millisecond

// once is call without a repetition.
func once[T any](
	ctx context.Context, c *calls, u urgency, f func(*zk.Conn) (T, error), late func(T, error), admitted breaker.Call, timer *time.Timer,
) (result T, err error) {
	if _, err := c.link.await(ctx, timer.C); err != nil {
		return result, c.failed(ctx, admitted, err)
	}
	slots := c.ordinary
	if u.passes() {
		slots = c.finishing
	}
	select {
	case slots <- struct{}{}:
	default:
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return result, ctx.Err()
		case <-timer.C:
			return result, fmt.Errorf("%w: %d calls are in flight", store.ErrOverloaded, cap(slots))
		}
	}
	type reply struct {
		result T
		err    error
	}
	replied := make(chan reply, 1)
	var ended atomic.Bool // f has returned, or the caller has left, whichever was first
	began, wire := time.Now(), c.link.present()
	c.running.Run(func() {
		var result T
		err := store.ErrClosed
		if c.life.Err() == nil { // awaitReplies awaits it
			result, err = f(c.conn.Load())
		}
		<-slots
		if errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved) {
			c.link.refuse(wire)
		}
		if !ended.Swap(true) {
			replied <- reply{result, err}
			return
		}
		c.givenUp.Add(-1)
		if late != nil {
			late(result, err)
		}
	})
	var why error
	select {
	case r := <-replied:
		return r.result, c.explain(admitted, u, r.err)
	case <-ctx.Done():
		why = ctx.Err()
	case <-c.life.Done():
		why = store.ErrClosed
	case <-timer.C:
		c.link.suspect(wire, began)
		why = unconfirmed(u, store.Timeout, fmt.Sprintf("no reply within %v", c.timeout))
		admitted.End(why)
	}
	c.givenUp.Add(1)
	if ended.Swap(true) { // the result has just come
		c.givenUp.Add(-1)
		r := <-replied
		return r.result, c.explain(admitted, u, r.err)
	}
	return result, fmt.Errorf("%w: %w", why, errLeft)
}

// awaitReplies is called before the client is closed, which ends its calls while it may still write
// their results. It waits until no call is in flight, until there is no connection, or for as long as
// a call may take.
func (c *calls) awaitReplies() {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	replied := make(chan struct{})
	go func() {
		_ = c.running.Wait(ctx)
		close(replied)
	}()
	for {
		changed := c.link.changes()
		if c.link.silence() > 0 {
			return
		}
		select {
		case <-replied:
			return
		case <-changed:
		}
	}
}

// over returns the error of a call whose context, or whose store, has ended.
func (c *calls) over(ctx context.Context) error {
	if c.life.Err() != nil {
		return store.ErrClosed
	}
	return ctx.Err()
}

// failed returns the error of a call that was not sent.
func (c *calls) failed(ctx context.Context, admitted breaker.Call, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, store.ErrMisconfigured):
		return err
	}
	err = outage(err)
	admitted.End(err)
	return err
}

// outage returns the error of a call that was not sent, for lack of a connection.
func outage(err error) error {
	cause := store.CauseOf(err)
	if errors.Is(err, errSilent) {
		cause = store.Timeout
	}
	if errors.Is(err, errNoServer) {
		return store.Misconfigured(store.WrongServer, err)
	}
	return store.Outage(cause, err)
}

func unconfirmed(u urgency, cause store.Cause, reason string) error {
	err := store.Unavailable(cause, reason)
	if !u.changesNothing() {
		return &unknown{err}
	}
	return err
}

// unknown is the error of a call that may have been carried out.
type unknown struct{ err error }

func (e *unknown) Error() string   { return e.err.Error() + "; it may have been carried out" }
func (e *unknown) Unwrap() []error { return []error{store.ErrUnconfirmed, e.err} }

// ofNodes are the errors that are answers about nodes.
var ofNodes = []error{zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadVersion, zk.ErrNotEmpty}

// errLost is matched by the error of a call whose connection has broken: it is over, and may have been
// carried out.
var errLost = errors.New("the connection has broken")

// explain returns the error of a call that is over, and reports to the breaker.
func (c *calls) explain(admitted breaker.Call, u urgency, err error) error {
	var result error
	switch {
	case err == nil:
		admitted.End(nil)
		return nil
	case slices.ContainsFunc(ofNodes, func(of error) bool { return errors.Is(err, of) }):
		admitted.End(nil)
		return err
	case c.life.Err() != nil:
		return store.ErrClosed
	case errors.Is(err, zk.ErrNoAuth):
		result = store.Misconfigured(store.Permission, errors.New("the store has no rights on its nodes: give it credentials by "+
			"zkstore.WithAuth, and the rights to read, write, create and delete below its prefix"))
	case errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		result = refused(err)
	case errors.Is(err, zk.ErrNoServer): // it was not sent
		result = outage(errNoConnection{c.link.lastFailure()})
	case strings.HasPrefix(err.Error(), unnamed):
		result = store.Unavailable(store.OtherCause, err.Error())
	default:
		result = fmt.Errorf("%w: %w", unconfirmed(u, store.CauseOf(err), err.Error()), errLost)
	}
	admitted.End(result)
	return result
}

// unnamed begins the client's errors for replies that it has no name for, which end in their number.
const unnamed = "unknown error: "

// unimplemented reports whether a server does not know an operation.
func unimplemented(err error) bool {
	return err != nil && strings.HasSuffix(err.Error(), unnamed+"-6")
}

// refused returns the error of credentials that the server does not take.
func refused(err error) error {
	return store.Misconfigured(store.Authentication, fmt.Errorf("the server refuses the credentials of zkstore.WithAuth: %w", err))
}

// explainLate is explain for a call whose caller has left.
func (c *calls) explainLate(err error) error { return c.explain(breaker.Call{}, writes, err) }
