// Package guard makes an operation happen at most once: however often it is asked for, one attempt
// runs, and everybody else is given its result.
//
// The record of an operation outlives the attempt that made it. An attempt holds a lease, which is
// renewed while it runs; if its process dies, the lease ends, but the record stays and says that
// there was an attempt. What then happens is the application's choice: see [WithRerun].
package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/average"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/redo"
	"github.com/lockkeeper/lockkeeper/internal/renewal"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Guard admits one attempt at each operation and remembers its result.
//
// Most callers want [Do], or the idempotency middleware of their framework; [Guard.Begin] is what
// both are made of. Guards with the same name on the same store share their records, in one process
// as in several. All methods may be called concurrently.
//
// What is promised: an operation whose completion the store has confirmed never runs again while
// its record is kept. A process that dies after the effect and before the completion leaves an
// attempt of unknown outcome.
type Guard struct {
	store   Store
	name    string
	config  config
	names   digester
	keeper  *renewal.Keeper[keptAttempt]
	redo    redo.Queue
	typical average.Duration // how long attempts take

	telemetry *telemetry.Idempotency
	leases    *telemetry.Leases
	damage    *telemetry.Damage
}

// New returns a guard that keeps its records in store, under name.
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(store Store, name string, opts ...Option) (*Guard, error) {
	if store == nil {
		return nil, errNilStore
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("guard: New: %w", err)
	}
	c := defaults()
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	g := &Guard{store: store, name: name, config: c, names: digester{c.secret}}
	g.telemetry = telemetry.NewIdempotency(c.providers, ScopeName, name)
	g.leases = telemetry.NewLeases(c.providers, c.logger, ScopeName, name, "idempotency")
	g.damage = telemetry.NewDamage(c.logger.With("mechanism", "idempotency", "policy", name))
	g.keeper = renewal.NewKeeper(g.renew)
	store.AtShutdown(g.redo.Drain)
	return g, nil
}

// Name returns the name that the guard was built with.
func (g *Guard) Name() string { return g.name }

// MayRerun reports whether the guard was built [WithRerun].
func (g *Guard) MayRerun() bool { return g.config.rerun }

// MaxResult is the largest Data of a [Result] that is kept, in bytes.
func (g *Guard) MaxResult() int { return g.config.maxResult }

// Begin asks to run an operation. Exactly one of its results is not nil:
//
//   - an attempt: the caller runs the operation, and settles the attempt with one of its methods,
//     always. Its [Attempt.Number] is above 1 if it took over from one that died.
//   - a result: the operation has run, and this is what it left.
//   - an error: *[InFlightError] while another attempt runs it; [ErrMismatch] if the key belongs to
//     another request; [ErrOutcomeUnknown] if an attempt ended without telling how;
//     *[NotRetainedError] if it ran and its result was not kept; [ErrInvalidOperation]; the
//     context's; or one that matches core.ErrUnavailable.
//
// If the store's answer did not arrive, an attempt that it may have begun is taken back in the
// background, so that nobody waits for its lease.
//
// ctx is the parent of the attempt's context.
func (g *Guard) Begin(ctx context.Context, op Operation) (*Attempt, *Result, error) {
	if err := op.check(); err != nil {
		return nil, nil, err
	}
	x := g.telemetry.Begin(ctx)
	attempt, result, worked, err := g.begin(ctx, op)
	word := describe(result, err)
	if attempt != nil {
		attempt.telemetry = x
	}
	if word != telemetry.IdempotencyError {
		g.telemetry.Begun(ctx, x, word, worked, nil)
	} else {
		g.telemetry.Begun(ctx, x, word, worked, err)
	}
	return attempt, result, err
}

// begin returns, with a result, also the span of the attempt that it comes from.
func (g *Guard) begin(ctx context.Context, op Operation) (*Attempt, *Result, trace.SpanContext, error) {
	var worked trace.SpanContext
	req := BeginRequest{
		ID:          g.names.id(g.name, op),
		Owner:       newOwner(),
		Fingerprint: g.names.fingerprint(op),
		Lease:       g.config.lease,
		Retention:   g.config.retention,
		Rerun:       g.config.rerun,
	}
	sent := time.Now()
	reply, err := g.store.BeginOperation(ctx, req)
	if err != nil {
		if errors.Is(err, outage.ErrUnconfirmed) || ctx.Err() != nil {
			g.takeBack(req)
		}
		return nil, nil, worked, err
	}
	switch reply.Outcome {
	case Started:
		return g.newAttempt(ctx, req, reply.Number, sent), nil, worked, nil
	case Busy:
		return nil, nil, worked, &InFlightError{Remaining: reply.Remaining, RetryAfter: g.retryAfter(reply.Remaining)}
	case Mismatched:
		return nil, nil, worked, ErrMismatch
	case Undecided:
		return nil, nil, worked, ErrOutcomeUnknown
	case Settled:
		switch reply.State {
		case Completed:
			worked, data, err := unseal(reply.Data)
			if err != nil {
				g.damage.Found(ctx)
				return nil, nil, worked, &NotRetainedError{Status: reply.Status}
			}
			return nil, &Result{Status: reply.Status, Data: data, Attempt: reply.Number}, worked, nil
		case NotRetained:
			return nil, nil, worked, &NotRetainedError{Status: reply.Status}
		case Unknown:
			return nil, nil, worked, ErrOutcomeUnknown
		}
	}
	return nil, nil, worked, fmt.Errorf("%w: unexpected answer to begin: %+v", outage.ErrUnavailable, reply.Outcome)
}

// describe says in a word what a Begin came to.
func describe(result *Result, err error) telemetry.IdempotencyResult {
	switch {
	case err == nil && result != nil:
		return telemetry.Replayed
	case err == nil:
		return telemetry.Started
	case errors.Is(err, ErrInFlight):
		return telemetry.InProgress
	case errors.Is(err, ErrMismatch):
		return telemetry.Mismatch
	case errors.Is(err, ErrOutcomeUnknown):
		return telemetry.Unknown
	case errors.Is(err, ErrNotRetained):
		return telemetry.NotRetained
	}
	return telemetry.IdempotencyError
}

func (g *Guard) newAttempt(ctx context.Context, req BeginRequest, number int, sent time.Time) *Attempt {
	a := &Attempt{guard: g, begun: req, number: number, start: sent}
	a.dirty.Store(true)
	a.lease = lease.NewContext(ctx, lease.ValidUntil(sent, g.config.lease), ErrExpired)
	a.ctx = context.WithValue(a.lease, contextKey{}, a)
	g.keeper.Add(keptAttempt{a}, sent)
	return a
}

// takeBack abandons, in the background, an attempt that nobody will run. After the lease there is
// nothing to gain by it.
func (g *Guard) takeBack(req BeginRequest) {
	g.redo.Add(time.Now().Add(g.config.lease+time.Second), func(ctx context.Context) error {
		_, err := g.store.AbandonOperation(ctx, req.ID, req.Owner)
		return err
	}, nil)
}

func (g *Guard) renew(ctx context.Context, attempts []keptAttempt) ([]bool, error) {
	reqs := make([]RenewRequest, len(attempts))
	for i, a := range attempts {
		reqs[i] = RenewRequest{ID: a.begun.ID, Owner: a.begun.Owner, Lease: g.config.lease, Retention: g.config.retention}
	}
	renewed, err := g.store.RenewOperations(ctx, reqs)
	g.leases.Renewed(ctx, renewed, len(reqs), err)
	for _, a := range attempts { // it is tried on: they may own their operations still
		if a.expired() && !a.settled.Load() {
			a.lost(true)
		}
	}
	return renewed, err
}

func (g *Guard) retryAfter(remaining time.Duration) time.Duration {
	typical := g.typical.Get()
	if typical == 0 {
		typical = time.Second
	}
	return min(typical, remaining)
}
