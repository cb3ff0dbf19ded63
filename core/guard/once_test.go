package guard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// once runs op with a function that counts its runs and returns an error.
func (f fixture) once(op guard.Operation, runs *int, err error) error {
	return guard.Once(f.Context(), f.guard, op, func(ctx context.Context) error {
		if _, ok := guard.FromContext(ctx); !ok {
			f.Error("no attempt in the context")
		}
		*runs++
		return err
	})
}

// disposed checks what becomes of a message with this error.
func (f fixture) disposed(err error, action guard.Action, after time.Duration) {
	f.Helper()
	if a, d := guard.Disposition(err); a != action || d != after {
		f.Errorf("%v: %v after %v, want %v after %v", err, a, d, action, after)
	}
}

func TestOnce(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := 0
		for range 3 {
			f.disposed(f.once(op, &runs, nil), guard.Acknowledge, 0)
		}
		other := op
		other.Fingerprint = []byte("coffee")
		err := f.once(other, &runs, nil)
		f.want(err, guard.ErrMismatch)
		f.disposed(err, guard.DeadLetter, 0)
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
	})
}

// Operations that have run, by whatever means, have run.
func TestOnceOfOperationsThatHaveRun(t *testing.T) {
	for name, settle := range map[string]func(f fixture, a *guard.Attempt) error{
		"not retained": func(f fixture, a *guard.Attempt) error { return a.CompleteNotRetained(f.Context(), 500) },
		"with another type": func(f fixture, a *guard.Attempt) error {
			return a.Complete(f.Context(), guard.Result{Data: []byte("{")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.want(settle(f, f.attempt()), nil)
				runs := 0
				f.want(f.once(op, &runs, nil), nil)
				if runs != 0 {
					t.Error("it ran again")
				}
			})
		})
	}
}

func TestOnceFails(t *testing.T) {
	type fn = func(context.Context, *guard.Attempt) error
	dirty := func(context.Context, *guard.Attempt) error { return errDeclined }
	for name, c := range map[string]struct {
		fn    fn
		opts  []guard.Option
		again error // what the second call returns
	}{
		"dirty": {fn: dirty, again: guard.ErrOutcomeUnknown},
		"clean": {fn: func(ctx context.Context, a *guard.Attempt) error { return errors.Join(errDeclined, a.MarkClean(ctx)) }},
		"in steps": {fn: func(ctx context.Context, a *guard.Attempt) error {
			_, err := guard.Step(ctx, a, "charge", func(context.Context) (int, error) { return 1, nil })
			return errors.Join(errDeclined, err)
		}},
		"dirty, may rerun": {fn: dirty, opts: []guard.Option{guard.WithRerun()}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				err := guard.Once(f.Context(), f.guard, op, func(ctx context.Context) error {
					a, _ := guard.FromContext(ctx)
					return c.fn(ctx, a)
				})
				f.want(err, errDeclined)
				f.disposed(err, guard.RetryLater, 0)
				runs := 0
				f.want(f.once(op, &runs, nil), c.again)
				if ran := runs == 1; ran != (c.again == nil) {
					t.Errorf("the next delivery ran %d times", runs)
				}
			}, c.opts...)
		})
	}
	inBubble(t, func(f fixture) {
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v", got)
				}
			}()
			_ = guard.Once(f.Context(), f.guard, op, func(context.Context) error { panic("boom") })
		}()
		f.disposed(f.refused(guard.ErrOutcomeUnknown), guard.DeadLetter, 0)
	})
}

// A message without an ID reaches neither the store nor the function.
func TestOnceWithoutKey(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.store.Break(storetest.Any, storetest.Down)
		runs := 0
		err := f.once(guard.Operation{}, &runs, nil)
		f.want(err, guard.ErrInvalidOperation)
		f.disposed(err, guard.DeadLetter, 0)
		if runs != 0 {
			t.Error("it ran")
		}
	})
}

func TestDispositionWhileInFlight(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.sleep(4 * time.Second) // of a lease of 30 s, that is not yet renewed
		runs := 0
		f.disposed(f.once(op, &runs, nil), guard.RetryLater, 26*time.Second)
		waiting := op
		waiting.Wait = time.Minute
		go func() {
			time.Sleep(time.Second)
			_ = a.Complete(context.Background(), guard.Result{})
		}()
		f.disposed(f.once(waiting, &runs, nil), guard.Acknowledge, 0)
		if runs != 0 {
			t.Error("it ran twice")
		}
	})
}

// What cannot be decided now is delivered again, without having run.
func TestDispositionWithoutRoom(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := 0
		first := op
		first.Key = "first"
		f.want(f.once(first, &runs, nil), nil)
		f.sleep(time.Hour)
		f.disposed(f.once(op, &runs, nil), guard.RetryLater, 23*time.Hour)
		f.store.Break(storetest.Any, storetest.Down)
		err := f.once(op, &runs, nil)
		f.want(err, store.ErrUnavailable)
		f.disposed(err, guard.RetryLater, 0)
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
	}, guard.WithMaxPerScope(1))
}

// An unknown outcome is delivered again only if that may find it out.
func TestDispositionWithReconcile(t *testing.T) {
	var answer func() (guard.Resolution, error)
	inBubble(t, func(f fixture) {
		f.want(f.attempt().CompleteUnknown(f.Context()), nil)
		runs := 0
		answer = func() (guard.Resolution, error) { return guard.Resolution{}, errDeclined }
		err := f.once(op, &runs, nil)
		f.want(err, guard.ErrOutcomeUnknown)
		f.disposed(err, guard.RetryLater, 0)
		answer = func() (guard.Resolution, error) { return guard.HappenedAnswerLost(0), nil }
		f.disposed(f.once(op, &runs, nil), guard.Acknowledge, 0)
		if runs != 0 {
			t.Error("it ran")
		}
	}, guard.WithReconcile(func(context.Context, guard.Record) (guard.Resolution, error) { return answer() }))
}

// Only nil is acknowledged.
func TestDispositionOfOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		action guard.Action
	}{
		{nil, guard.Acknowledge},
		{errDeclined, guard.RetryLater},
		{context.Canceled, guard.RetryLater},
		{guard.ErrClosed, guard.RetryLater},
		{guard.ErrLost, guard.RetryLater},
		{store.ErrFull, guard.RetryLater},
		{fmt.Errorf("handle: %w", &guard.InFlightError{}), guard.RetryLater},
		{fmt.Errorf("handle: %w", &guard.NotRetainedError{}), guard.DeadLetter},
		{&guard.UnknownError{}, guard.DeadLetter},
		{&guard.UnknownError{Err: errDeclined}, guard.RetryLater},
		{&guard.UnknownError{Err: guard.ErrStep}, guard.DeadLetter},
		{guard.ErrStep, guard.DeadLetter},
	} {
		if action, _ := guard.Disposition(c.err); action != c.action {
			t.Errorf("%v: %v, want %v", c.err, action, c.action)
		}
	}
	names := fmt.Sprint(guard.Acknowledge, guard.RetryLater, guard.DeadLetter, guard.Action(0))
	if names != "acknowledge retry later dead letter Action(0)" {
		t.Error(names)
	}
}

// A consumer of a queue that delivers each message at least once.
func ExampleOnce() {
	ctx := context.Background()
	mails, err := guard.New(memstore.New(), "mails")
	if err != nil {
		panic(err)
	}
	consume := func(id, text string) {
		err := guard.Once(ctx, mails, guard.Operation{Key: id}, func(context.Context) error {
			fmt.Println("sends", text)
			return nil
		})
		switch action, after := guard.Disposition(err); action {
		case guard.Acknowledge:
			fmt.Println("acknowledges", text)
		case guard.RetryLater:
			fmt.Println("returns to the queue, for", after)
		case guard.DeadLetter:
			fmt.Println("moves to the dead letters:", err)
		}
	}
	consume("m-1", "a receipt")
	consume("m-1", "a receipt")
	consume("", "a message without an ID")
	// Output:
	// sends a receipt
	// acknowledges a receipt
	// acknowledges a receipt
	// moves to the dead letters: guard: invalid operation: key is empty
}
