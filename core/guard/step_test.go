package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// step runs a step, which must succeed.
func (f fixture) step(a *guard.Attempt, name string, value int) {
	f.Helper()
	got, err := guard.Step(f.Context(), a, name, func(context.Context) (int, error) { return value, nil })
	if err != nil || got != value {
		f.Fatalf("step %s: %d, %v", name, got, err)
	}
}

// recorded asserts that a step is not run again.
func (f fixture) recorded(a *guard.Attempt, name string, value int) {
	f.Helper()
	got, err := guard.Step(f.Context(), a, name, func(context.Context) (int, error) {
		f.Errorf("step %s runs again", name)
		return 0, nil
	})
	if err != nil || got != value {
		f.Fatalf("step %s: %d, %v, want %d", name, got, err, value)
	}
}

// dies has the leases of all attempts end.
func (f fixture) dies() {
	f.store.Break(storetest.RenewOperations, storetest.Down)
	f.sleep(lease + time.Second)
	f.store.Mend(storetest.RenewOperations)
}

func TestStepsAreSkipped(t *testing.T) {
	for name, ends := range map[string]func(f fixture, a *guard.Attempt){
		"dead":      func(f fixture, _ *guard.Attempt) { f.dies() },
		"abandoned": func(f fixture, a *guard.Attempt) { f.want(a.Abandon(f.Context()), nil) },
		"marked clean and abandoned": func(f fixture, a *guard.Attempt) {
			f.want(a.MarkClean(f.Context()), nil)
			f.want(a.Abandon(f.Context()), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				first := f.attempt()
				calls := f.store.Calls(storetest.Any)
				f.step(first, "charge", 1)
				f.step(first, "ship", 2)
				if n := f.store.Calls(storetest.Any) - calls; n != 3 {
					t.Errorf("two steps took %d round trips", n)
				}
				if first.Dirty() {
					t.Error("dirty although all is in steps")
				}
				f.recorded(first, "charge", 1)
				ends(f, first)
				second := f.attempt()
				if second.Number() != 2 || second.Dirty() {
					t.Errorf("attempt %d, dirty is %v", second.Number(), second.Dirty())
				}
				f.recorded(second, "ship", 2)
				f.recorded(second, "charge", 1)
				f.step(second, "mail", 3)
				f.dies()
				third := f.attempt()
				f.recorded(third, "mail", 3)
				f.want(third.Complete(f.Context(), guard.Result{Data: []byte("done")}), nil)
				f.replay()
			})
		})
	}
}

// Steps leave no doubt only while all effects are in them.
func TestMarkDirtyCountsBesideSteps(t *testing.T) {
	for name, marks := range map[string]func(f fixture, a *guard.Attempt){
		"before": func(f fixture, a *guard.Attempt) {
			f.want(a.MarkDirty(f.Context()), nil)
			f.step(a, "charge", 1)
		},
		"after": func(f fixture, a *guard.Attempt) {
			f.step(a, "charge", 1)
			f.want(a.MarkDirty(f.Context()), nil)
			f.step(a, "ship", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				marks(f, a)
				if !a.Dirty() {
					t.Error("clean")
				}
				f.dies()
				_ = f.refused(guard.ErrOutcomeUnknown)
				if r := f.inspect(); !slices.Contains(r.Steps, "charge") || !r.Unresolved() {
					t.Errorf("left %+v", r)
				}
				f.want(f.guard.Resolve(f.Context(), f.inspect(), guard.NeverHappened(), "ops", "why"), nil)
				next := f.attempt()
				f.step(next, "charge", 2) // forgotten
				f.want(next.Complete(f.Context(), guard.Result{}), nil)
			})
		})
	}
}

func TestStepFails(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		_, err := guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) { return 0, errDeclined })
		f.want(err, errDeclined)
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v", got)
				}
			}()
			_, _ = guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) { panic("boom") })
		}()
		f.step(a, "charge", 1)
		f.want(a.Abandon(f.Context()), nil)
	})
}

func TestStepRefuses(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		for _, name := range []string{"", strings.Repeat("x", 129)} {
			_, err := guard.Step(f.Context(), a, name, func(context.Context) (int, error) { panic("runs") })
			f.want(err, guard.ErrStep)
		}
		f.step(a, "charge", 1)
		_, err := guard.Step(f.Context(), a, "charge", func(context.Context) (string, error) { panic("runs") })
		f.want(err, guard.ErrStep)
		for name, value := range map[string]any{"no JSON": func() {}, "large": strings.Repeat("x", 1<<20)} {
			ran := 0
			for range 2 {
				_, err := guard.Step(f.Context(), a, name, func(context.Context) (any, error) { ran++; return value, nil })
				f.want(err, guard.ErrStep)
			}
			if ran != 1 {
				t.Errorf("%s: ran %d times", name, ran)
			}
		}
		for i := range store.MaxSteps - 3 {
			f.step(a, fmt.Sprint(i), i)
		}
		_, err = guard.Step(f.Context(), a, "one more", func(context.Context) (int, error) { panic("runs") })
		f.want(err, guard.ErrStep)
		f.recorded(a, "charge", 1)
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
	})
}

// A step that cannot be recorded has run, and no attempt runs it again.
func TestStepThatCannotBeRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		err   error
	}{
		"an unexported field":           {partly{"ch_1", 4200}, guard.ErrEncoding},
		"an integer above 2^53":         {map[string]any{"cents": int64(1<<53 + 1)}, guard.ErrEncoding},
		"a value of more than 1 MiB":    {strings.Repeat("x", 1<<20), guard.ErrStep},
		"a value that is not JSON":      {func() {}, guard.ErrEncoding},
		"the mark is lost in an outage": {partly{"ch_1", 4200}, guard.ErrEncoding},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				runs := 0
				pay := func(ctx context.Context) (string, error) {
					a, _ := guard.FromContext(ctx)
					f.step(a, "reserve", 1)
					_, err := guard.Step(ctx, a, "charge", func(context.Context) (any, error) {
						runs++
						if name == "the mark is lost in an outage" {
							f.store.BreakNext(storetest.MarkOperation, storetest.Down, 1)
						}
						return c.value, nil
					})
					if !errors.Is(err, guard.ErrStep) || !errors.Is(err, c.err) || !a.Dirty() {
						t.Errorf("%v, dirty is %v", err, a.Dirty())
					}
					return "", err
				}
				for _, want := range []error{c.err, guard.ErrOutcomeUnknown, guard.ErrOutcomeUnknown} {
					_, _, err := guard.Do(f.Context(), f.guard, op, pay)
					f.want(err, want)
				}
				if runs != 1 {
					t.Errorf("ran %d times", runs)
				}
			})
		})
	}
}

// The next attempt continues with the recorded values of the last one, or fails.
func TestStepGoesOnWithItsValue(t *testing.T) {
	inBubble(t, func(f fixture) {
		first := f.attempt()
		charge := func(a *guard.Attempt) (partly, error) {
			return guard.Step(f.Context(), a, "charge", func(context.Context) (partly, error) { return partly{"ch_1", 4200}, nil })
		}
		_, err := charge(first)
		f.want(err, guard.ErrEncoding)
		f.dies()
		_ = f.refused(guard.ErrOutcomeUnknown)
		_ = first.Abandon(f.Context())
	})
}

func TestStepsOfOneName(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		var all sync.WaitGroup
		ran := 0
		for range 10 {
			all.Go(func() {
				got, err := guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) {
					ran++
					time.Sleep(time.Second)
					return 42, nil
				})
				if err != nil || got != 42 {
					t.Errorf("got %d, %v", got, err)
				}
			})
		}
		all.Go(func() { f.step(a, "ship", 1) })
		all.Wait()
		if ran != 1 {
			t.Errorf("ran %d times", ran)
		}
		// A step in a step of its name ends with its context.
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		_, err := guard.Step(f.Context(), a, "nested", func(context.Context) (int, error) {
			return guard.Step(ctx, a, "nested", func(context.Context) (int, error) { panic("runs") })
		})
		f.want(err, context.DeadlineExceeded)
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
	})
}

func TestStepOfAnAttemptThatHasEnded(t *testing.T) {
	never := func(context.Context) (int, error) { panic("runs") }
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.step(a, "charge", 1)
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		for _, name := range []string{"charge", "ship"} {
			_, err := guard.Step(f.Context(), a, name, never)
			f.want(err, guard.ErrSettled)
		}
	})
	inBubble(t, func(f fixture) {
		a := f.attempt()
		_, err := guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) {
			f.want(a.Complete(f.Context(), guard.Result{}), nil)
			return 1, nil
		})
		f.want(err, guard.ErrSettled)
	})
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.step(a, "charge", 1)
		f.dies()
		for _, name := range []string{"charge", "ship"} {
			_, err := guard.Step(f.Context(), a, name, never)
			f.want(err, guard.ErrLost)
		}
		_ = a.Abandon(f.Context())
	})
	inBubble(t, func(f fixture) { // it is lost while the step runs
		a := f.attempt()
		_, err := guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) {
			f.dies()
			f.want(f.attempt().Complete(f.Context(), guard.Result{}), nil)
			return 1, nil
		})
		f.want(err, guard.ErrLost)
		_ = a.Abandon(f.Context())
	})
	inBubble(t, func(f fixture) {
		a := f.attempt()
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		_, err := guard.Step(ctx, a, "charge", never)
		f.want(err, context.Canceled)
		f.want(a.Abandon(f.Context()), nil)
	})
}

// A step whose record fails is recorded by the next call, and does not run again.
func TestStepInAnOutage(t *testing.T) {
	for name, how := range map[string]storetest.Fault{"down": storetest.Down, "reply lost": storetest.LostReply, "full": storetest.Full} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				f.store.BreakNext(storetest.MarkOperation, how, 1)
				_, err := guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) { panic("runs") })
				f.want(err, store.ErrUnavailable)
				f.store.BreakNext(storetest.RecordStep, how, 2)
				_, err = guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) { return 42, nil })
				f.want(err, store.ErrUnavailable)
				_, err = guard.Step(f.Context(), a, "charge", func(context.Context) (int, error) { panic("runs") })
				f.want(err, store.ErrUnavailable)
				f.recorded(a, "charge", 42)
				f.dies()
				next := f.attempt()
				f.recorded(next, "charge", 42)
				f.want(next.Complete(f.Context(), guard.Result{}), nil)
			})
		})
	}
}

// Do, called again after a failure, skips the steps that are recorded.
func TestDoWithSteps(t *testing.T) {
	inBubble(t, func(f fixture) {
		var ran []string
		pay := func(fails error) (string, bool, error) {
			return guard.Do(f.Context(), f.guard, op, func(ctx context.Context) (string, error) {
				a, _ := guard.FromContext(ctx)
				for _, name := range []string{"charge", "ship"} {
					_, err := guard.Step(ctx, a, name, func(context.Context) (string, error) {
						ran = append(ran, name)
						if name == "ship" {
							return "", fails
						}
						return name, nil
					})
					if err != nil {
						return "", err
					}
				}
				return "done", nil
			})
		}
		_, _, err := pay(errDeclined)
		f.want(err, errDeclined)
		for i := range 2 {
			value, replayed, err := pay(nil)
			if err != nil || value != "done" || replayed != (i == 1) {
				t.Errorf("%q, %v, %v", value, replayed, err)
			}
		}
		if want := []string{"charge", "ship", "ship"}; !slices.Equal(ran, want) {
			t.Errorf("ran %q, want %q", ran, want)
		}
	})
}

// Steps that no guard can read are not skipped: the outcome is unknown.
func TestUnreadableSteps(t *testing.T) {
	inBubble(t, func(f fixture) {
		wrapped := &recorder{Store: f.store}
		f.guard = newGuard(t, wrapped)
		a := f.attempt()
		f.step(a, "charge", 1)
		owned, err := f.store.RecordStep(f.Context(), store.StepRequest{
			AttemptRef: wrapped.begun[0].AttemptRef, Step: store.Step{Name: "damaged", Data: []byte{0xff}},
		})
		if f.want(err, nil); !owned {
			t.Fatal("lost")
		}
		f.dies()
		_ = f.refused(guard.ErrOutcomeUnknown)
		_ = f.refused(guard.ErrOutcomeUnknown)
		_ = a.Abandon(f.Context())
		f.want(f.guard.Close(), nil)
	})
}

func TestDownstreamKey(t *testing.T) {
	inBubble(t, func(f fixture) {
		first := f.attempt()
		key := first.DownstreamKey("psp", "charge")
		f.want(first.MarkClean(f.Context()), nil)
		f.dies()
		second := f.attempt()
		if again := second.DownstreamKey("psp", "charge"); again != key || len(key) != 43 {
			t.Errorf("%q in the first attempt, %q in the second", key, again)
		}
		begin := func(g *guard.Guard, op guard.Operation) *guard.Attempt {
			a, _, err := g.Begin(f.Context(), op)
			f.want(err, nil)
			return a
		}
		attempts := []*guard.Attempt{
			begin(f.guard, guard.Operation{Scope: "alice", Key: "k2"}), begin(f.guard, guard.Operation{Scope: "bob", Key: "k1"}),
			begin(must(guard.New(f.store, "refunds")), op), begin(newGuard(t, memstore.New(), guard.WithSecret([]byte("pepper"))), op),
		}
		seen := map[string]bool{key: true}
		for _, other := range append([]string{
			second.DownstreamKey("psp", "refund"), second.DownstreamKey("mail", "charge"), second.DownstreamKey("pspc", "harge"),
		}, keysOf(attempts)...) {
			if seen[other] || strings.Contains(other, "charge") {
				t.Errorf("%q is not a key of its own", other)
			}
			seen[other] = true
		}
		for _, a := range append(attempts, second) {
			f.want(a.Abandon(f.Context()), nil)
		}
		if err := first.Abandon(f.Context()); !errors.Is(err, guard.ErrLost) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func keysOf(attempts []*guard.Attempt) (keys []string) {
	for _, a := range attempts {
		keys = append(keys, a.DownstreamKey("psp", "charge"))
	}
	return keys
}
