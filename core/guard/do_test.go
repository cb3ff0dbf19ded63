package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

type charge struct {
	ID    string
	Cents int
}

var errDeclined = errors.New("declined")

func TestDo(t *testing.T) {
	inBubble(t, func(f fixture) {
		runs := 0
		for i := range 3 {
			got, replayed, err := guard.Do(f.Context(), f.guard, op, func(ctx context.Context) (charge, error) {
				if _, ok := guard.FromContext(ctx); !ok {
					t.Error("no attempt in the context")
				}
				runs++
				return charge{"ch_1", 4200}, nil
			})
			if err != nil || got != (charge{"ch_1", 4200}) || replayed != (i > 0) {
				t.Errorf("call %d: %v, %v, %v", i, got, replayed, err)
			}
		}
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
	})
}

func TestDoFails(t *testing.T) {
	clean := func(ctx context.Context) (charge, error) {
		a, _ := guard.FromContext(ctx)
		return charge{}, errors.Join(errDeclined, a.MarkClean(ctx))
	}
	dirty := func(context.Context) (charge, error) { return charge{}, errDeclined }
	for name, c := range map[string]struct {
		fn    func(context.Context) (charge, error)
		opts  []guard.Option
		again error // what the second call returns
	}{
		"dirty":            {fn: dirty, again: guard.ErrOutcomeUnknown},
		"clean":            {fn: clean, again: errDeclined},
		"dirty, may rerun": {fn: dirty, opts: []guard.Option{guard.WithRerun()}, again: errDeclined},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				for _, want := range []error{errDeclined, c.again, c.again} {
					_, _, err := guard.Do(f.Context(), f.guard, op, c.fn)
					f.want(err, want)
				}
			}, c.opts...)
		})
	}
}

func TestDoPanics(t *testing.T) {
	inBubble(t, func(f fixture) {
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v", got)
				}
			}()
			_, _, _ = guard.Do(f.Context(), f.guard, op, func(context.Context) (int, error) { panic("boom") })
		}()
		_ = f.refused(guard.ErrOutcomeUnknown)
	})
}

func TestDoWithValuesThatCannotBeKept(t *testing.T) {
	inBubble(t, func(f fixture) {
		_, _, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (string, error) { return strings.Repeat("x", 50), nil })
		f.want(err, nil)
		_, _, err = guard.Do(f.Context(), f.guard, op, func(context.Context) (string, error) { panic("ran again") })
		f.want(err, guard.ErrNotRetained)
	}, guard.WithMaxResult(50))
	inBubble(t, func(f fixture) {
		_, _, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (string, error) { return "text", nil })
		f.want(err, nil)
		_, replayed, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (int, error) { panic("ran again") })
		if err == nil || !replayed {
			t.Errorf("a text was decoded as a number: %v, %v", replayed, err)
		}
	})
}

// partly has a field that JSON does not have.
type partly struct {
	ID     string
	amount int
}

// An operation whose value a repeat would get changed has run, and says so.
func TestDoWithValuesThatChange(t *testing.T) {
	t.Run("an unexported field", changes(partly{"ch_1", 4200}))
	t.Run("an integer above 2^53 in any", changes[any](int64(1<<53+1)))
	t.Run("a value that has no JSON", changes[any](func() {}))
	t.Run("bytes that are no text", changes("\xff"))
}

func changes[T any](value T) func(*testing.T) {
	return func(t *testing.T) {
		inBubble(t, func(f fixture) {
			runs := 0
			run := func() (T, bool, error) {
				return guard.Do(f.Context(), f.guard, op, func(context.Context) (T, error) { runs++; return value, nil })
			}
			got, replayed, err := run()
			f.want(err, guard.ErrEncoding)
			f.disposed(err, guard.DeadLetter, 0)
			if fmt.Sprint(got) != fmt.Sprint(value) || replayed {
				t.Errorf("returned %v, %v", got, replayed)
			}
			for range 2 {
				_, _, err = run()
				f.want(err, guard.ErrNotRetained)
			}
			if runs != 1 {
				t.Errorf("ran %d times", runs)
			}
		}, guard.WithRerun())
	}
}

// A type of which no value can be kept is refused before there is an effect.
func TestDoRefusesTypes(t *testing.T) {
	t.Run("no exported field", refusesType[*struct{ amount int }])
	t.Run("function", refusesType[func()])
	t.Run("channel", refusesType[[]chan int])
	t.Run("error", refusesType[error])
}

func refusesType[T any](t *testing.T) {
	inBubble(t, func(f fixture) {
		_, _, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (T, error) { panic("runs") })
		f.want(err, guard.ErrEncoding)
		f.disposed(err, guard.DeadLetter, 0)
		a := f.attempt()
		_, err = guard.Step(f.Context(), a, "charge", func(context.Context) (T, error) { panic("runs") })
		f.want(err, guard.ErrEncoding)
		f.want(err, guard.ErrStep)
		f.want(a.Abandon(f.Context()), nil)
		if n := f.store.Calls(storetest.Any); n != 2 {
			t.Errorf("%d calls of the store", n)
		}
	})
}

func TestDoKeepsTimes(t *testing.T) {
	inBubble(t, func(f fixture) {
		now := time.Now() // with a monotonic reading
		for range 2 {
			at, _, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (time.Time, error) { return now, nil })
			if err != nil || !at.Equal(now) {
				t.Errorf("%v, %v, want %v", at, err, now)
			}
		}
	})
}

// The value is returned before the store has confirmed the completion.
func TestDoWhenCompletionFails(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.store.BreakNext(storetest.SettleOperation, storetest.Down, 3)
		got, replayed, err := guard.Do(f.Context(), f.guard, op, func(context.Context) (int, error) { return 7, nil })
		if got != 7 || replayed || err != nil {
			t.Errorf("%v, %v, %v", got, replayed, err)
		}
		f.sleep(5 * time.Second)
		got, replayed, err = guard.Do(f.Context(), f.guard, op, func(context.Context) (int, error) { panic("ran again") })
		if got != 7 || !replayed || err != nil {
			t.Errorf("%v, %v, %v", got, replayed, err)
		}
		f.store.Break(storetest.Any, storetest.Down)
		_, _, err = guard.Do(f.Context(), f.guard, op, func(context.Context) (int, error) { panic("ran unguarded") })
		f.want(err, store.ErrUnavailable)
	})
}

// A job that sends an invoice once, however often the queue delivers it.
func ExampleDo() {
	ctx := context.Background()
	invoices, err := guard.New(memstore.New(), "invoices")
	if err != nil {
		panic(err)
	}
	send := func(context.Context) (string, error) {
		fmt.Println("sending")
		return "sent to alice", nil
	}
	for range 2 {
		receipt, replayed, err := guard.Do(ctx, invoices, guard.Operation{Key: "2026-11/alice"}, send)
		fmt.Println(receipt, replayed, err)
	}
	// Output:
	// sending
	// sent to alice false <nil>
	// sent to alice true <nil>
}
