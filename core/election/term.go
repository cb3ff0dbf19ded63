package election

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Term is a time for which a candidate leads; the leader writes with its fence ([Term.Fence]) or,
// on PostgreSQL, inside pgstore.Bind, since no lease stops the late write of a process that was
// paused. It promises what a [lock.Lease] does: its context ends before another can lead.
type Term struct {
	election *Election
	lease    *lock.Lease
	alone    bool // it is no term of Run's, which remains a candidate after it

	resigned atomic.Bool
	record   sync.Once // its end
}

// Context ends when the leader must stop, before another can lead. It is the context of a lease
// ([lock.Lease.Context]), which [lock.FromContext] returns, for pgstore.Bind. Its cause is
// lock.ErrLost, lock.ErrExpired or lock.ErrClosed as a lease's, lock.ErrReleased after Resign, or
// the cause of the context of the campaign.
func (t *Term) Context() context.Context { return t.lease.Context() }

// Fence returns the number of the term, which is larger than those of all earlier terms of the
// role.
func (t *Term) Fence() fence.Token { return t.lease.Fence() }

// Verify checks in the store that this candidate still leads, in one round trip. Its results are
// those of [lock.Lease.Verify]: the reply is as old as its way back, so that only the fence
// excludes a paused leader.
func (t *Term) Verify(ctx context.Context) error { return t.lease.Verify(ctx) }

// Resign ends the term's context, and then releases the role to the next candidate. It does not
// wait for the leader's work: stop that before, or let Run do both. It runs to its end even if ctx
// is cancelled. After it, the candidate may campaign again.
//
// Its results are those of [lock.Lease.Unlock]: nil, lock.ErrLost if others may have led before,
// lock.ErrExpired after a term with a lock-delay that ran out, lock.ErrReleased at the second call,
// or an error that matches store.ErrUnavailable: then the release is retried in the background.
//
// In a function of Run's, it lets the next candidate lead beside the rest of that function.
func (t *Term) Resign(ctx context.Context) error {
	first := t.resigned.CompareAndSwap(false, true)
	err := t.lease.Unlock(ctx)
	if !first {
		return err
	}
	t.end(errors.Is(err, lock.ErrLost))
	if t.alone {
		t.election.candidate.Store(false)
	}
	return err
}

// serve calls lead, and resigns when it has returned or panicked.
func (t *Term) serve(ctx context.Context, lead func(ctx context.Context, t *Term) error) error {
	defer func() { _ = t.Resign(ctx) }() // a failure is the store's, and is retried
	err := lead(t.Context(), t)
	if err != nil && !t.over(err) {
		t.election.telemetry.Failed(ctx, err)
	}
	return err
}

// over reports whether an error is the end of the term's context.
func (t *Term) over(err error) bool {
	ended := t.Context().Err()
	return ended != nil && (errors.Is(err, ended) || errors.Is(err, context.Cause(t.Context())))
}

// contextEnded is called when the term's context has ended.
func (t *Term) contextEnded() {
	if !errors.Is(context.Cause(t.Context()), lock.ErrReleased) { // otherwise Resign knows how it ended
		t.end(false)
	}
}

// end records the end of the term, once. lost means that its release came too late.
func (t *Term) end(lost bool) {
	t.record.Do(func() {
		how, cause := telemetry.Resigned, context.Cause(t.Context())
		switch {
		case errors.Is(cause, lock.ErrExpired):
			how = telemetry.TermExpired
		case lost, errors.Is(cause, lock.ErrLost):
			how = telemetry.TermLost
		}
		t.election.telemetry.Ended(t.Context(), how)
	})
	t.election.notify()
}
