// Package guard makes an operation happen at most once: one attempt runs, and every other request
// for the operation gets its result.
//
// The record of an operation outlives the attempt that made it. An attempt holds a lease, which is
// renewed while it runs. If its process dies, the lease ends, but the record stays and shows that
// there was an attempt. The application then chooses whether the operation may run again: see
// [WithRerun].
//
// The packages called idempotency are its middleware, in ginmw, echomw, echov5mw, nethttp,
// grpcmw and connectmw; one of them is [github.com/lockkeeper/lockkeeper/nethttp/idempotency].
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/clientctx"
	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Guard admits one attempt at each operation and keeps its result.
//
// Most callers want [Do], or the idempotency middleware of their framework; both use [Guard.Begin].
// Guards with the same name on the same store share their records, in one process as in several.
// All methods may be called concurrently.
//
// An operation whose completion the store has confirmed never runs again while its record is kept.
// Until the store confirms it, the process that has the result retries the completion and returns
// the result from memory. A process that dies after the effect and before the completion leaves an
// attempt with an unknown outcome.
//
// Close, and the store's Shutdown, end a guard: from then on Begin returns ErrClosed. Shutdown
// waits until every attempt has been settled and the store has confirmed that, or until its context
// ends; then its error has the number of attempts and completions that are left, and retries continue until the
// store is closed.
type Guard struct {
	store    store.Records
	name     string
	config   config
	names    digester
	sealer   *sealer
	keeper   *lease.Keeper[keptAttempt]
	pending  pending
	abandons background.RetryQueue // abandoned attempts that the store has not confirmed
	calls    background.Group      // of Begin; one that begins an attempt counts until that is settled
	closed   atomic.Bool           // Begin returns ErrClosed
	detach   func()                // from the store's Shutdown
	namesake *namesake.Member
	typical  ewma.Duration // duration of attempts
	twins    twins
	closing  context.Context // ends with the guard, and the waits of twins with it
	close    context.CancelFunc

	telemetry *telemetry.Idempotency
	leases    *telemetry.Leases
	damage    *telemetry.Repeated
}

// New returns a guard that keeps its records in store, under name.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// Guards with the same name should have the same settings; different ones in this process are
// logged. A guard that is dropped without Close is collected when all its attempts are settled and
// confirmed.
//
// It returns an error if the store is nil, if the name is empty, longer than 128 bytes or not
// printable ASCII, or if an option is out of its range.
func New(st store.Records, name string, opts ...Option) (*Guard, error) {
	if naming.IsNil(st) {
		return nil, errors.New("guard: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("guard: New: %w", err)
	}
	c := defaults()
	option.Apply(&c, opts)
	if err := c.check(); err != nil {
		return nil, err
	}
	sealer, err := newSealer(c.seal)
	if err != nil {
		return nil, fmt.Errorf("guard: New: WithSeal: %w", err)
	}
	g := &Guard{store: st, name: name, config: c, names: digester{c.secret}, sealer: sealer}
	g.closing, g.close = context.WithCancel(context.Background())
	g.pending.queue.MaxBytes, g.abandons.MaxBytes = maxPendingBytes, maxAbandonBytes
	g.damage = telemetry.NewRepeated(c.logger.With("mechanism", "idempotency", "policy", name), telemetry.DamagedRecord)
	g.keeper = lease.NewKeeper(g.renew)
	g.detach = hooks.AtShutdown(g, st.AtShutdown, (*Guard).shutdown)
	g.namesake = namesake.Join(st, c.logger, "idempotency", name, c.settings())
	counter := g.namesake.Counter()
	g.telemetry = telemetry.NewIdempotency(c.providers, c.logger, ScopeName, name, counter)
	g.leases = telemetry.NewLeases(c.providers, c.logger, ScopeName, name, "idempotency", counter)
	namesake.LeaveWith(g, g.namesake)
	return g, nil
}

// closeTimeout is the longest time for which Close waits for attempts and completions.
const closeTimeout = 5 * time.Second

// Close ends the guard: Begin returns [ErrClosed] from then on. It waits up to 5 s until every
// attempt is settled and the store has confirmed that. Its error has the numbers of the attempts
// and completions that are left; the store's Shutdown, or another Close, continues with them. It
// does not close the store.
func (g *Guard) Close() error {
	g.namesake.Leave()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := g.shutdown(ctx)
	if err == nil {
		g.detach()
	}
	return err
}

// Name returns the name that the guard was built with.
func (g *Guard) Name() string { return g.name }

// TTL returns the length of an attempt's lease.
func (g *Guard) TTL() time.Duration { return g.config.ttl }

// MaxResult returns the maximum size of the Data of a [Result], in bytes.
func (g *Guard) MaxResult() int { return g.config.maxResult }

// Begin requests to run an operation. Exactly one of its results is not nil:
//
//   - an attempt: the caller runs the operation, and always settles the attempt with one of its
//     methods. Its [Attempt.Number] is above 1 if it took over from one that died.
//   - a result: that of the attempt that has run.
//   - an error: see below.
//
// The errors are
//
//   - *[InFlightError] while another attempt runs it, after Operation.Wait;
//   - [ErrMismatch] if the key belongs to another request;
//   - *[UnknownError] if an attempt ended with an unknown outcome, and [WithReconcile] has not
//     found it;
//   - *[NotRetainedError] if it ran and its result was not kept;
//   - *[ScopeFullError] if it is new and its scope has its maximum of records;
//   - [ErrInvalidOperation];
//   - the context's; and
//   - one that matches store.ErrUnavailable: [ErrClosed] after Close, or the store's Shutdown or
//     Close.
//
// If the store has not confirmed a completion, Begin returns its result from this guard's memory,
// whether the store is available or not.
//
// If the store did not reply, an attempt that it may have begun is abandoned in the background, so
// that its lease blocks no other.
//
// A call that waits for an attempt in flight returns when the attempt has ended, which the store
// pushes. If ctx or its [ClientContext] ends before that, it returns the *[InFlightError]. When the
// guard is closed it returns [ErrClosed] at once.
//
// ctx is the parent of the attempt's context.
func (g *Guard) Begin(ctx context.Context, op Operation) (*Attempt, *Result, error) {
	if err := op.check(&g.config); err != nil {
		return nil, nil, err
	}
	g.calls.Begin()
	x, returned := g.telemetry.Begin(ctx), false
	defer func() {
		if !returned { // the function of WithReconcile panicked
			g.telemetry.Begun(ctx, x, telemetry.Unknown, trace.SpanContext{}, nil)
			g.calls.End()
		}
	}()
	attempt, result, origin, err := g.beginOrWait(ctx, op)
	returned = true
	outcome := resultOf(result, err)
	if attempt != nil {
		attempt.telemetry, attempt.running = x, g.namesake.Counter().Holds(1) // Attempt.ended ends calls
	} else {
		defer g.calls.End()
	}
	g.telemetry.Begun(ctx, x, outcome, origin, err)
	return attempt, result, err
}

// beginOrWait is begin, and waits for an attempt in flight if the operation has a Wait.
func (g *Guard) beginOrWait(ctx context.Context, op Operation) (*Attempt, *Result, trace.SpanContext, error) {
	attempt, result, origin, err := g.begin(ctx, op)
	if op.Wait <= 0 || !errors.Is(err, ErrInFlight) {
		return attempt, result, origin, err
	}
	timeout := time.NewTimer(op.Wait)
	defer timeout.Stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ClientContext(waiting), cancel)()
	for errors.Is(err, ErrInFlight) && g.await(waiting, g.ref(op), timeout.C, cmp.Or(op.MaxWaiting, defaultMaxWaiting)) {
		attempt, result, origin, err = g.begin(ctx, op)
	}
	if attempt != nil && clientctx.Left(ctx) { // the client left before its turn: the attempt is not run
		g.calls.Begin() // Attempt.ended ends it
		_ = attempt.Abandon(ctx)
		return nil, nil, origin, &InFlightError{ID: attempt.OperationID()}
	}
	return attempt, result, origin, err
}

// begin is Begin without telemetry and waiting. With a result, it also returns the span of the
// attempt that produced it.
func (g *Guard) begin(ctx context.Context, op Operation) (*Attempt, *Result, trace.SpanContext, error) {
	req := store.BeginRequest{
		AttemptRef:  store.AttemptRef{OperationRef: g.ref(op)},
		Fingerprint: g.names.fingerprint(op),
		Lease:       g.config.ttl,
		Retention:   cmp.Or(op.Retention, g.config.retention),
		Rerun:       g.config.rerun,
		Reconcile:   g.config.reconcile != nil,
		Holder:      lease.WithSpan(ctx, g.config.holder),
		MaxRecords:  g.config.maxPerScope,
	}
	if g.closed.Load() {
		return nil, nil, trace.SpanContext{}, ErrClosed
	}
	if done := g.pending.get(req.ID); done != nil && (done.State != store.Unknown || !req.Rerun) {
		return g.interpret(ctx, req, replyOf(done, req.Fingerprint), time.Time{})
	}
	for {
		req.Owner = naming.NewID()
		sent := time.Now()
		reply, err := g.store.BeginOperation(ctx, req)
		if err != nil {
			if errors.Is(err, store.ErrUnconfirmed) || ctx.Err() != nil {
				g.abandonLater(ctx, req.AttemptRef, err, func() {})
			}
			return nil, nil, trace.SpanContext{}, err
		}
		g.noteReply()
		if reply.Outcome != store.ToReconcile {
			return g.interpret(ctx, req, reply, sent)
		}
		g.calls.Begin() // Attempt.ended ends it
		if err := g.reconcile(ctx, g.newAttempt(ctx, req, reply.Number, sent)); err != nil {
			return nil, nil, trace.SpanContext{}, err
		}
		req.Reconcile = false // once
	}
}

func (g *Guard) ref(op Operation) store.OperationRef {
	scope, id := g.names.name(g.name, op)
	return store.OperationRef{Guard: g.name, Scope: scope, ID: id}
}

// interpret returns the results of begin for a reply.
func (g *Guard) interpret(ctx context.Context, req store.BeginRequest, reply store.BeginReply, sent time.Time) (*Attempt, *Result, trace.SpanContext, error) {
	var origin trace.SpanContext
	switch reply.Outcome {
	case store.Started:
		g.telemetry.ScopeHas(ctx, req.Scope, reply.Records, req.MaxRecords)
		a := g.newAttempt(ctx, req, reply.Number, sent)
		if err := a.takeOver(&reply); err != nil {
			g.calls.Begin()
			_ = a.Abandon(ctx) // the steps stay
			return nil, nil, origin, &UnknownError{ID: a.OperationID(), Err: err}
		}
		return a, nil, origin, nil
	case store.Busy:
		typical := cmp.Or(g.typical.Get(), time.Second)
		return nil, nil, origin, &InFlightError{
			ID: idOf(req.OperationRef), Remaining: reply.Remaining, RetryAfter: min(typical, reply.Remaining),
		}
	case store.Mismatched:
		return nil, nil, origin, ErrMismatch
	case store.Undecided:
		return nil, nil, origin, &UnknownError{ID: idOf(req.OperationRef)}
	case store.ScopeFull:
		g.telemetry.ScopeIsFull(ctx, req.Scope, req.MaxRecords, reply.Remaining)
		return nil, nil, origin, &ScopeFullError{Guard: g.name, RetryAfter: reply.Remaining}
	case store.Settled:
		switch reply.State {
		case store.Completed:
			origin, data, err := g.sealer.open(place{ref: req.OperationRef, status: reply.Status}, reply.Data, g.config.maxResult)
			if err != nil {
				g.damage.Found(ctx, "error", err)
				return nil, nil, origin, &NotRetainedError{Status: reply.Status}
			}
			return nil, &Result{Status: reply.Status, Data: data, Attempt: reply.Number}, origin, nil
		case store.NotRetained:
			return nil, nil, origin, &NotRetainedError{Status: reply.Status}
		case store.Unknown:
			return nil, nil, origin, &UnknownError{ID: idOf(req.OperationRef)}
		}
	}
	return nil, nil, origin, fmt.Errorf("%w: unexpected reply to begin: %+v", store.ErrUnavailable, reply.Outcome)
}

// resultOf returns the result of a Begin for telemetry.
func resultOf(result *Result, err error) telemetry.IdempotencyResult {
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
	case errors.Is(err, ErrScopeFull):
		return telemetry.ScopeFull
	}
	return telemetry.IdempotencyError
}

func (g *Guard) newAttempt(ctx context.Context, req store.BeginRequest, number int, sent time.Time) *Attempt {
	a := &Attempt{guard: g, req: req, number: number, start: sent, retention: req.Retention}
	a.lease = lease.NewContext(ctx, lease.ValidUntil(sent, g.config.ttl), ErrExpired)
	a.ctx = context.WithValue(a.lease, contextKey{}, a)
	g.keeper.Add(keptAttempt{a}, sent)
	return a
}

func (g *Guard) renew(ctx context.Context, attempts []keptAttempt) ([]bool, error) {
	reqs := make([]store.RenewRequest, len(attempts))
	for i, a := range attempts {
		reqs[i] = store.RenewRequest{AttemptRef: a.req.AttemptRef, Lease: g.config.ttl, Retention: a.req.Retention}
	}
	renewed, err := g.store.RenewOperations(ctx, reqs)
	g.leases.Renewed(ctx, renewed, len(reqs), err)
	for _, a := range attempts {
		if a.expired() && !a.settled.Load() {
			a.recordLoss(true)
		}
	}
	return renewed, err
}
