package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
)

// Hold makes a request hold its key while its handler runs: a lock, or a permit.
type Hold struct {
	*Watch
	Package   string // of the middleware
	Status    string // the header field of an answer that bypassed the mechanism
	mechanism mechanism
	tiers     []mechanism // of each tier; nil without tiers
	counts    bool        // a request that holds twice counts twice, and may wait for itself
	overload  bool        // it protects the server, also from replays
	kind      string      // of the mechanism, for logs
	name      string
	wait      time.Duration // how long a request waits; zero refuses it at once
	typical   ewma.Duration
}

// mechanism acquires holds.
type mechanism interface {
	// try does not wait; others is true if others hold the key.
	try(ctx context.Context, key string) (h held, others bool, err error)
	// await waits until the context ends; others is as in try, whose error it gets.
	await(ctx context.Context, key string, tried error) (h held, others bool, err error)
	// refusal returns the denial for an error of the mechanism; typical is the recent duration of a
	// hold. It returns false for an error of the store, or of the server.
	refusal(err error, typical time.Duration) (policy.Denial, bool)
}

// held is a hold.
type held interface {
	// Context ends with the hold.
	Context() context.Context
	// end releases it when the handler has ended in this way, unless the handler did so. An error means
	// that others may have held the key before that.
	end(ctx context.Context, how Sample) error
	// discard releases it when no handler has run.
	discard(ctx context.Context)
}

// Sample is how a handler has ended, as far as its time tells about the load.
type Sample int

// The samples.
const (
	WorkedSample   Sample = iota
	FailedSample          // with an error of the server's, or with an answer that is not known
	StreamedSample        // its time is that of a stream, or of a connection that it has taken over
)

// Exchange is a request and its answer, as a framework implements them.
type Exchange interface {
	// Mark returns the exchange's mark, with the request's ID.
	Mark() *Mark
	// Key returns the request's key.
	Key() (string, error)
	// Tier returns the request's tier. It is called if there are tiers.
	Tier() policy.Tier
	// Run calls the handler with this context, and reports whether it has answered.
	Run(ctx context.Context) (answered bool)
	// Sample returns how the handler has ended, when Run has returned or panicked.
	Sample() Sample
	// GiveUp answers for a handler that did not before its context ended.
	GiveUp(policy.Denial)
	// Waits is called before the request waits for its turn, or for its client to leave.
	Waits()
	// Bypass calls the handler as if there were no middleware, and marks the answer as bypassed.
	Bypass()
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Report reports an error that does not change the answer.
	Report(error)
}

// Serve answers a request with this context: it runs it while it holds its key, or denies it.
func (m *Hold) Serve(ctx context.Context, x Exchange) {
	key, err := x.Key()
	if err != nil || key == "" {
		deny(ctx, x, m.NoKey(ctx, err))
		return
	}
	if m.counts && holds(ctx, x.Mark().ID, m.kind, m.name, key) {
		err := fmt.Errorf("middleware: the %s %q is in one chain twice with the same key, so that a request counts twice", m.kind, m.name)
		m.twiceInChain(ctx, err)
		deny(ctx, x, policy.Denial{Reason: policy.InternalError, Err: err})
		return
	}
	mechanism := m.mechanism
	if m.tiers != nil {
		mechanism = m.tiers[min(x.Tier(), policy.Background)]
	}
	h, cancel, err := m.acquire(ctx, mechanism, key, x)
	defer cancel()
	switch {
	case err == nil:
		m.Decided(ctx)
		m.run(ctx, x, key, h)
	case m.Passes(ctx, err):
		x.Report(err)
		x.Bypass()
	default:
		deny(ctx, x, m.denial(ctx, err))
	}
}

// acquire returns the hold of a request's key, and a function to call when the request is answered.
//
// It tries without waiting first. So the wait applies to the queue alone, and does not cut short
// the store's own timeout: a store that does not reply is an outage, and not a held key.
//
// A client that leaves ends the wait, also behind a guard, and no handler runs.
func (m *Hold) acquire(request context.Context, mechanism mechanism, key string, x Exchange) (held, context.CancelFunc, error) {
	h, others, err := mechanism.try(request, key)
	if m.wait == 0 || !others {
		return h, func() {}, err
	}

	x.Waits()
	// The hold's context derives from this one, which so must not have a deadline.
	ctx, cancel := context.WithCancel(request)
	stays := context.AfterFunc(guard.ClientContext(request), cancel)
	timer := time.AfterFunc(m.wait, cancel)
	h, others, waitErr := mechanism.await(ctx, key, err)
	inTime, stayed := timer.Stop(), stays()
	switch {
	case waitErr == nil && inTime && stayed:
		return h, cancel, nil
	case waitErr == nil: // its turn came as the time was up, or as the client left
		h.discard(ctx)
	case ctx.Err() == nil, others:
		err = waitErr
	}
	return nil, cancel, err
}

// run calls the handler, and releases the hold, even if the handler panics.
func (m *Hold) run(request context.Context, x Exchange, key string, h held) {
	began := time.Now()
	mark := x.Mark()
	ctx := mark.holding(h.Context(), m, key)
	defer func() {
		m.typical.Add(time.Since(began))
		how := x.Sample()
		if how == WorkedSample && (ctx.Err() != nil || guard.ClientContext(request).Err() != nil) {
			how = FailedSample
		}
		if err := h.end(request, how); err != nil {
			x.Report(err)
		}
	}()
	answered := x.Run(ctx)
	switch {
	case ctx.Err() == nil:
	case answered:
		noteEnd(request, mark.ID)
	default:
		giveUp(request, mark.ID, x, context.Cause(ctx))
	}
}

// denial returns the denial for an error of the mechanism.
func (m *Hold) denial(request context.Context, err error) policy.Denial {
	if d, ok := m.mechanism.refusal(err, m.typical.Get()); ok {
		return d
	}
	if errors.Is(err, store.ErrUnavailable) || request.Err() != nil {
		return unavailable(err)
	}
	return policy.Denial{Reason: policy.InternalError, Err: err}
}
