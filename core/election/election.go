// Package election elects a leader among processes, so that one of them at a time runs a scheduler,
// a poller, or the writer of an index.
//
// The leader is the process that holds a lock ([lock.Locker]) whose key is the role. The other
// candidates wait in its queue, and lead in order. A term is a lease, with a lease's limit: a
// process that is paused for longer than its lease does not notice on waking that others have led
// since, and may have a write in progress. So a leader writes with its fence ([Term.Fence]) or, on
// PostgreSQL, in a transaction that is bound to its lease (pgstore.Bind).
package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

var (
	// ErrNotLeader is returned by [Election.IsLeader] if this candidate does not lead.
	ErrNotLeader = errors.New("election: this candidate does not lead")

	// ErrNoLeader is returned by [Election.Leader] if no candidate leads.
	ErrNoLeader = errors.New("election: there is no leader")

	// ErrCampaigning is returned by [Election.Campaign] and [Election.Run] while the Election,
	// which is one candidate, campaigns or leads already. It leads until Resign, also if its term
	// has ended.
	ErrCampaigning = errors.New("election: this candidate campaigns or leads already")
)

// Election is one candidate for a role. Candidates for the same role, whose Lockers have the same
// name and store, exclude each other, within a process and across processes.
//
// Most callers want [Election.Run]. [Election.IsLeader] makes an Election the Elector of gocron.
//
// The candidates' Locker decides the rest:
//   - its label is the candidate's name (lock.WithHolder, host name and process ID by default);
//   - its TTL is how long the role is vacant if the leader dies (lock.WithTTL, 30 s by default;
//     10 s is a fair choice);
//   - lock.WithLockDelay keeps the role vacant after a term that was lost;
//   - with lock.WithMaxHold a term ends after that time at the latest, and with lock.WithoutRenewal
//     after the TTL, with the cause lock.ErrExpired, and that is logged. The next candidate leads
//     when this one resigns, or when its lease ends.
//
// There is no Close: [lock.Locker.Close] and the store's Shutdown end campaigns with
// lock.ErrClosed, and terms as they end leases.
//
// All methods may be called concurrently.
type Election struct {
	locker    *lock.Locker
	role      string
	stepDown  time.Duration
	telemetry *telemetry.Election

	candidate atomic.Bool // it campaigns or leads
	term      atomic.Pointer[Term]

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when a term of this candidate begins or ends
}

// New returns a candidate for a role, which is a key of the locker. Its campaigns are fair requests
// (lock.WithFair), whatever the locker's setting is: candidates lead in the order in which they
// began to campaign.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error if the locker is nil, if the role is empty or longer than 1,024 bytes, or if
// an option is out of its range.
func New(l *lock.Locker, role string, opts ...Option) (*Election, error) {
	if l == nil {
		return nil, errors.New("election: New: nil locker")
	}
	if err := naming.CheckKey(role); err != nil {
		return nil, fmt.Errorf("election: New: the role: %w", err)
	}
	c := defaults()
	option.Apply(&c, opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("election: New: %w", err)
	}
	fair, err := l.With(lock.WithFair()) // nothing is handed on, so that the fence in the store is the term's
	if err != nil {
		return nil, fmt.Errorf("election: New: %w", err)
	}
	return &Election{
		locker: fair, role: role, stepDown: c.stepDown, changed: make(chan struct{}),
		telemetry: telemetry.NewElection(c.providers, c.logger, ScopeName, l.Name()),
	}, nil
}

// Run campaigns, calls lead when this candidate leads, and campaigns again, until ctx ends. lead's
// context is the term's: lead must return when it ends. Then the role is released.
//
//   - If lead returns nil, Run campaigns again, behind the candidates that wait: at once, but not
//     before the step-down ([WithStepDown]) has passed since the term began, so that a lead that
//     returns at once does not keep the store busy.
//   - If lead returns an error, Run waits for the step-down before it campaigns again. The error is
//     logged, unless it is the end of the term's context.
//   - If lead panics, Run releases the role, and the panic propagates.
//   - If the store is unavailable, Run waits for the step-down and campaigns again.
//
// The error of Run is never nil. It is
//
//   - that of ctx, with its cause, if it has ended: lead has returned by then, and the role is
//     released, or will be in the background if the store is unavailable;
//   - [ErrCampaigning] if the candidate campaigns or leads already;
//   - lock.ErrClosed if the locker is closed, or its store is shut down;
//   - another error of [lock.Locker.Lock] that a later campaign would return as well.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, t *Term) error) error {
	if !e.candidate.CompareAndSwap(false, true) {
		return ErrCampaigning
	}
	defer e.candidate.Store(false)
	for {
		pause, err := e.runTerm(ctx, lead)
		if ctx.Err() == nil && err == nil && backoff.Sleep(ctx, pause) {
			continue
		}
		if ctx.Err() != nil {
			return lease.Ended(ctx)
		}
		return err
	}
}

// runTerm campaigns, and leads for one term. It returns how long to wait before the next campaign,
// or an error that ends Run.
func (e *Election) runTerm(
	ctx context.Context, lead func(ctx context.Context, t *Term) error,
) (pause time.Duration, err error) {
	t, err := e.campaign(ctx)
	switch {
	case errors.Is(err, lock.ErrClosed):
		return 0, err
	case errors.Is(err, store.ErrUnavailable):
		return e.stepDown, nil
	case err != nil:
		return 0, err
	}
	began := time.Now()
	err = t.serve(ctx, lead)
	switch {
	case errors.Is(context.Cause(t.Context()), lock.ErrClosed):
		return 0, lock.ErrClosed
	case err == nil:
		return e.stepDown - time.Since(began), nil
	}
	return e.stepDown, nil
}

// Campaign blocks until this candidate leads, or until ctx ends. Always call Resign, also if the
// term has ended.
//
// It returns a term, [ErrCampaigning], or an error of [lock.Locker.Lock]: a *lock.HeldError that
// matches ctx's if that has ended while another led, lock.ErrClosed, or one that matches
// store.ErrUnavailable. After an error the candidate neither leads nor waits.
//
// ctx is the parent of the term's context. Its end does not release the role.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	if !e.candidate.CompareAndSwap(false, true) {
		return nil, ErrCampaigning
	}
	t, err := e.campaign(ctx)
	if err != nil {
		e.candidate.Store(false)
		return nil, err
	}
	t.alone = true
	return t, nil
}

// campaign waits for the lock, and returns the term that begins with it.
func (e *Election) campaign(ctx context.Context) (*Term, error) {
	held, err := e.locker.Lock(ctx, e.role)
	if err != nil {
		return nil, err
	}
	t := &Term{election: e, lease: held}
	e.telemetry.Begun(ctx)
	e.term.Store(t)
	context.AfterFunc(held.Context(), t.contextEnded)
	e.notify()
	return t, nil
}

// IsLeader returns nil while this candidate leads, and otherwise [ErrNotLeader]. It reads the clock
// of the process, and does not ask the store: it is never nil after the term's own deadline. ctx is
// not used.
//
// The answer may be out of date as soon as it is given: a job that takes time needs the term's
// context.
func (e *Election) IsLeader(context.Context) error {
	if t := e.term.Load(); t == nil || t.Context().Err() != nil {
		return ErrNotLeader
	}
	return nil
}
