package guard

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/internal/kept"
)

// Do runs fn at most once for an operation, and returns its value: fn's own or, with replayed true,
// that of an earlier call. It is for code without HTTP, such as jobs and commands. [Once] is the
// same without a value.
//
// The value is kept as JSON, if that decodes to an equal value: docs/idempotency.md lists types for
// which it does not, such as a struct with unexported fields or an int in an any. If no value of T
// can survive its encoding, Do returns [ErrEncoding] before fn runs. If this value does not, this
// call returns it with ErrEncoding: fn has run, does not run again, and later calls return a
// *[NotRetainedError].
//
// If the value is larger than the guard keeps ([WithMaxResult]), this call returns it without an
// error, and later calls return a *[NotRetainedError].
//
// If fn returns an error or panics, the operation is released and the next call runs it, provided
// that the attempt is clean ([Attempt.MarkClean]) or the guard was built [WithRerun]. Otherwise its
// outcome is unknown, and later calls return [ErrOutcomeUnknown].
//
// fn's context is the attempt's: [FromContext] finds the attempt in it. Other errors are
// [Guard.Begin]'s. An error in recording fn's success is not returned, since the value is good:
// recording it is retried in the background.
func Do[T any](ctx context.Context, g *Guard, op Operation, fn func(context.Context) (T, error)) (value T, replayed bool, err error) {
	if err := kept.Check[T](); err != nil {
		return value, false, fmt.Errorf("guard: Do: %w", err)
	}
	attempt, result, err := g.Begin(ctx, op)
	if err != nil {
		return value, false, err
	}
	if result != nil {
		if err := json.Unmarshal(result.Data, &value); err != nil {
			return value, true, fmt.Errorf("guard: Do: decode the stored result: %w", err)
		}
		return value, true, nil
	}
	err = attempt.run(ctx, func(ctx context.Context) (err error) {
		value, err = fn(ctx)
		return err
	}, func() error {
		data, err := kept.Encode(value)
		if err != nil {
			_ = attempt.CompleteNotRetained(ctx, 0)
			return fmt.Errorf("guard: Do: the operation ran: %w", err)
		}
		_ = attempt.Complete(ctx, Result{Data: data})
		return nil
	})
	return value, false, err
}

// run runs fn, and then completes the attempt, or settles it as failed.
func (a *Attempt) run(ctx context.Context, fn func(context.Context) error, complete func() error) error {
	succeeded := false
	defer func() {
		if !succeeded { // fn failed or panicked; a panic propagates
			a.fail(ctx)
		}
	}()
	if err := fn(a.Context()); err != nil {
		return err
	}
	succeeded = true
	return complete()
}

// fail settles an attempt whose operation failed.
func (a *Attempt) fail(ctx context.Context) {
	if a.MayRerun() {
		_ = a.Abandon(ctx)
		return
	}
	_ = a.CompleteUnknown(ctx)
}
