// Package middleware is the part of each policy's middleware that no protocol and no framework
// changes: it calls the mechanism, waits, runs the handler or refuses, and decides what the client
// gets and what is logged. Protocols write that into an answer.
package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/base/telemetry"
)

// storeRetry is when to come back after the store was not there: breakers close within it.
const storeRetry = time.Second

// unavailable is the denial for a store that did not answer.
func unavailable(err error) policy.Denial {
	return policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: storeRetry, Err: err}
}

// errEnded is the cause if the context that ended is one of middleware behind the guard.
var errEnded = errors.New("what the handler needed has ended")

// giveUp ends an exchange whose handler has not answered, although its context is over, with this
// cause. A guard outside of the same request learns of it, and answers: its attempt has no known outcome
// either.
func giveUp(request context.Context, id RequestID, x interface{ GiveUp(policy.Denial) }, cause error) {
	if noteEnd(request, id) {
		return
	}
	if errors.Is(request.Err(), context.Canceled) { // most likely the client has left: that is no failure
		x.GiveUp(unavailable(nil))
		return
	}
	d := unavailable(fmt.Errorf("middleware: the handler gave up without an answer: %w", cause))
	Fail(request, d)
	x.GiveUp(d)
}

// noteEnd tells the guard outside of the same request, if there is one, that a handler's context has ended.
func noteEnd(request context.Context, id RequestID) bool {
	if !guarded(request, id) {
		return false
	}
	NoteOf(request).End()
	return true
}

// spread returns whole seconds, as HTTP has them: after, rounded up, and at random up to most more.
func spread(after, most time.Duration) time.Duration {
	seconds := int64((after + time.Second - 1) / time.Second)
	return time.Duration(seconds+rand.Int64N(int64(most/time.Second)+1)) * time.Second
}

// deny refuses a request with this context. If the server has failed, its span says so.
func deny(ctx context.Context, x interface{ Deny(policy.Denial) }, d policy.Denial) {
	Fail(ctx, d)
	x.Deny(d)
}

// Fail records in the current span that a request was refused because of a failure on the server's
// side, if it was.
func Fail(ctx context.Context, d policy.Denial) {
	if IsFailure(d) {
		telemetry.Fail(ctx, d.Err)
	}
}

// IsFailure reports whether a denial is because of a failure on the server's side. That it is full
// (policy.Overload) is none.
func IsFailure(d policy.Denial) bool {
	return d.Err != nil && d.Status() >= 500 && !errors.Is(d.Err, semaphore.ErrNotAcquired)
}
