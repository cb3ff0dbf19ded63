package guard

import (
	"context"
	"encoding/json"
	"fmt"
)

// Do runs fn at most once for an operation, and returns its value: fn's own or, with replayed true,
// that of an earlier call. It is for code without HTTP, such as jobs and commands. [Once] is the same
// without a value.
//
// The value is kept as JSON. If it cannot be encoded, or is larger than the guard keeps
// ([WithMaxResult]), this call returns it, and later ones return a *[NotRetainedError].
//
// If fn returns an error or panics, the operation is released, and the next call runs it, if the
// attempt is clean ([Attempt.MarkClean]) or the guard was built [WithRerun]; otherwise its outcome
// is unknown, and later calls return [ErrOutcomeUnknown].
//
// fn's context is the attempt's: [FromContext] finds the attempt in it. Other errors are those of
// [Guard.Begin]. An error in recording fn's success is not returned, since the value is good:
// recording it is retried in the background.
func Do[T any](ctx context.Context, g *Guard, op Operation, fn func(context.Context) (T, error)) (value T, replayed bool, err error) {
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
	}, func() {
		if data, err := json.Marshal(value); err != nil {
			_ = attempt.CompleteNotRetained(ctx, 0)
		} else {
			_ = attempt.Complete(ctx, Result{Data: data})
		}
	})
	return value, false, err
}

// run runs fn, and then completes the attempt, or settles it as failed.
func (a *Attempt) run(ctx context.Context, fn func(context.Context) error, complete func()) error {
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
	complete()
	return nil
}

// fail settles an attempt whose operation failed.
func (a *Attempt) fail(ctx context.Context) {
	if a.Dirty() && !a.guard.config.rerun {
		_ = a.CompleteUnknown(ctx)
		return
	}
	_ = a.Abandon(ctx)
}
