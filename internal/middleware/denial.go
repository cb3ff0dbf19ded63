// Package middleware is the part of each policy's middleware that is common to all protocols and
// frameworks: it calls the mechanism, waits, runs the handler or refuses, and decides the content
// of the answer and of the log. Protocols write the answer.
package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// storeRetry is the delay after a request that the store did not decide: breakers close within it.
const storeRetry = time.Second

// unavailable is the denial for a store that did not answer.
func unavailable(err error) policy.Denial {
	return policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: storeRetry, Err: err}
}

// errEnded is the cause if the ended context is of middleware behind the guard.
var errEnded = errors.New("what the handler needed has ended")

// giveUp ends an exchange whose handler has not answered before its context ended, with this cause.
// If there is a guard outside of the same request, giveUp only tells it: the guard answers, since
// its attempt has no known outcome either.
func giveUp(request context.Context, id RequestID, x interface{ GiveUp(policy.Denial) }, cause error) {
	if noteEnd(request, id) {
		return
	}
	if errors.Is(request.Err(), context.Canceled) { // most likely the client has left, which is no failure
		x.GiveUp(unavailable(nil))
		return
	}
	d := unavailable(fmt.Errorf("middleware: the handler gave up without an answer: %w", cause))
	Fail(request, d)
	x.GiveUp(d)
}

// noteEnd notes the end of a handler's context for the guard outside of the same request. It
// reports whether there is one.
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

// deny refuses a request with this context. A failure of the server is recorded in the span.
func deny(ctx context.Context, x interface{ Deny(policy.Denial) }, d policy.Denial) {
	Fail(ctx, d)
	x.Deny(d)
}

// Fail records in the current span that a request was refused because of a failure of the server.
// It does nothing for other denials.
func Fail(ctx context.Context, d policy.Denial) {
	if IsFailure(d) {
		telemetry.Fail(ctx, d.Err)
	}
}

// IsFailure reports whether a denial is due to a failure of the server. A full server
// (policy.Overload) is no failure.
func IsFailure(d policy.Denial) bool {
	return d.Err != nil && d.Status() >= 500 && !errors.Is(d.Err, semaphore.ErrNotAcquired)
}
