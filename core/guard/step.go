package guard

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/kept"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

// steps are the steps of an attempt.
type steps struct {
	mu       sync.Mutex
	byName   map[string]*step
	declared bool // the store knows whether all effects are in steps
}

type step struct {
	turn     chan struct{} // full while a call has it
	data     []byte        // its value, encoded; nil until it has run
	kept     []byte        // data in its stored form
	err      error         // the value cannot be recorded
	recorded bool
}

// Step runs fn once in the life of an operation, and returns its value: fn's own, or the value of
// an earlier call in this attempt or in one before it. It makes an operation resumable if all
// effects are in steps: the next attempt takes over from one that died, failed or was abandoned,
// and skips the recorded steps.
//
// A step may run again if its attempt dies between its effect and the record of it. So the service
// that it calls must recognise a repeat: pass it [Attempt.DownstreamKey]. The first step of an
// operation takes two round trips, each further one takes one, and a recorded one none. The value
// is kept as JSON, until the operation is settled, if that decodes to an equal value, as for [Do].
//
// Steps with one name run one after the other, others may run concurrently. fn's context is ctx. If
// it returns an error or panics, nothing is recorded, and the next call runs it again.
//
// Other errors are
//
//   - [ErrLost] and [ErrSettled], also for a recorded step of an attempt that has ended;
//   - [ErrStep] if the name is empty or longer than 128 bytes, if the recorded value is of another
//     type than T, if the attempt has used more than 64 names, or if the value cannot be recorded
//     (below);
//   - the context's; and
//   - one that matches store.ErrUnavailable: then the step may have run without being recorded.
//     Another call in this attempt records a step that has run, and does not run it again.
//
// After an error, the caller returns it and ends its work.
//
// If no value of T can survive its encoding, Step returns an error that matches both ErrStep and
// [ErrEncoding] before fn runs. If this value does not survive it (ErrStep and ErrEncoding), or is
// larger than 1 MiB (ErrStep), the error follows after fn has run: fn does not run again in this
// attempt, which is then dirty ([Attempt.MarkDirty]). So no other attempt runs it unless the guard
// was built [WithRerun], or the process dies before the mark has reached the store.
//
// After [Attempt.MarkDirty], an attempt with steps stays dirty: it has effects outside of them.
func Step[T any](ctx context.Context, a *Attempt, name string, fn func(context.Context) (T, error)) (value T, err error) {
	if name == "" || len(name) > store.MaxStepName {
		return value, fmt.Errorf("%w: a name of %d bytes is not between 1 and %d", ErrStep, len(name), store.MaxStepName)
	}
	if err := kept.Check[T](); err != nil {
		return value, fmt.Errorf("%w: %q: %w", ErrStep, name, err)
	}
	s := a.step(name)
	if s == nil {
		return value, fmt.Errorf("%w: %q is one more than the %d that an operation may have", ErrStep, name, store.MaxSteps)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
	case <-a.ctx.Done():
	}
	if err := a.over(ctx); err != nil {
		return value, err
	}
	kind := fmt.Sprintf("%T", *new(T))
	if s.data == nil && s.err == nil {
		if err := a.declareSteps(ctx); err != nil {
			return value, err
		}
		if value, err = fn(ctx); err != nil {
			return value, err
		}
		text, err := kept.Encode(value)
		a.keepStep(ctx, s, name, append([]byte(kind+"\n"), text...), err)
		return value, a.recordStep(ctx, name, s)
	}
	if err := a.recordStep(ctx, name, s); err != nil {
		return value, err
	}
	of, text, _ := bytes.Cut(s.data, []byte("\n"))
	if string(of) != kind {
		return value, fmt.Errorf("%w: %q has recorded a value of type %s, not %s", ErrStep, name, of, kind)
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("%w: %q: decode the recorded value: %w", ErrStep, name, err)
	}
	return value, nil
}

// keepStep keeps the value of a step that has run, or the reason why it cannot be recorded: then
// the attempt has had an effect outside of its steps.
func (a *Attempt) keepStep(ctx context.Context, s *step, name string, data []byte, err error) {
	sealed := a.guard.sealer.seal(place{ref: a.req.OperationRef, step: name}, trace.SpanContext{}, data)
	switch {
	case err != nil:
		s.err = fmt.Errorf("%w: %q: %w", ErrStep, name, err)
	case max(len(data), len(sealed)) > store.MaxStepData:
		s.err = fmt.Errorf("%w: %q has a value of %d bytes, at most %d are recorded", ErrStep, name, len(data), store.MaxStepData)
	default:
		s.data, s.kept = data, sealed
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	_ = a.MarkDirty(ctx) // without a reply, the attempt counts as dirty in this process
}

// over returns why the attempt, or the call with this context, has ended; nil if it has not.
func (a *Attempt) over(ctx context.Context) error {
	switch {
	case a.ctx.Err() == nil:
		return ctx.Err()
	case errors.Is(context.Cause(a.ctx), ErrExpired):
		return ErrLost
	}
	return context.Cause(a.ctx)
}

// step returns a step, or nil if there are too many.
func (a *Attempt) step(name string) *step {
	a.steps.mu.Lock()
	defer a.steps.mu.Unlock()
	s := a.steps.byName[name]
	if s == nil && len(a.steps.byName) < store.MaxSteps {
		s = a.steps.add(name)
	}
	return s
}

// add adds a step. The caller holds mu, or no other goroutine has the attempt yet.
func (ss *steps) add(name string) *step {
	if ss.byName == nil {
		ss.byName = make(map[string]*step)
	}
	s := &step{turn: make(chan struct{}, 1)}
	ss.byName[name] = s
	return s
}

// declareSteps records in the store, once, that the effects are in steps. It does nothing after
// MarkDirty has recorded other effects.
func (a *Attempt) declareSteps(ctx context.Context) error {
	a.steps.mu.Lock()
	defer a.steps.mu.Unlock()
	if a.steps.declared {
		return nil
	}
	if _, err := store.As[store.StepRecords](a.guard.store); err != nil {
		return err
	}
	err := a.mark(ctx, store.EffectsInSteps)
	a.steps.declared = err == nil
	return err
}

// recordStep records the value of a step that has run, once.
func (a *Attempt) recordStep(ctx context.Context, name string, s *step) error {
	if s.recorded || s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	req := store.StepRequest{AttemptRef: a.req.AttemptRef, Step: store.Step{Name: name, Data: s.kept}}
	able, err := store.As[store.StepRecords](a.guard.store)
	if err != nil {
		return err
	}
	owned, err := able.RecordStep(ctx, req)
	switch {
	case err != nil:
		return err
	case !owned && a.settled.Load():
		return ErrSettled
	case !owned:
		return ErrLost
	}
	s.recorded = true
	return nil
}

// takeOver continues after the recorded steps of earlier attempts.
func (a *Attempt) takeOver(reply *store.BeginReply) error {
	a.effects, a.steps.declared = reply.Effects, reply.Effects == store.EffectsInSteps
	for _, r := range reply.Steps {
		_, data, err := a.guard.sealer.open(place{ref: a.req.OperationRef, step: r.Name}, r.Data, store.MaxStepData)
		if err != nil {
			a.guard.damage.Found(a.ctx, "error", err)
			return fmt.Errorf("%w: %q: %w", ErrStep, r.Name, err)
		}
		s := a.steps.add(r.Name)
		s.data, s.recorded = data, true
	}
	return nil
}

// DownstreamKey returns an idempotency key for a call of a service by a step of the operation: the
// same in every attempt, unique to all three, and unrelated to what users sent. It has 43
// characters of base64url.
func (a *Attempt) DownstreamKey(service, step string) string {
	text := textlist.Append(nil, "downstream", idOf(a.req.OperationRef), service, step)
	if secret := a.guard.config.secret; len(secret) > 0 {
		h := hmac.New(sha256.New, secret)
		h.Write(text)
		return encode(h.Sum(nil))
	}
	sum := sha256.Sum256(text)
	return encode(sum[:])
}
