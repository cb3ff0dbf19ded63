package guard_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func (f fixture) inspect() guard.Record {
	f.Helper()
	r, err := f.guard.Inspect(f.Context(), op)
	f.want(err, nil)
	return r
}

// unknowns are ways in which the outcome of a first attempt becomes unknown.
var unknowns = map[string]func(f fixture) *guard.Attempt{
	"settled": func(f fixture) *guard.Attempt {
		a := f.attempt()
		f.want(a.CompleteUnknown(f.Context()), nil)
		return a
	},
	"dead": func(f fixture) *guard.Attempt {
		a := f.attempt()
		f.store.Break(storetest.RenewOperations, storetest.Down)
		f.sleep(lease + time.Second)
		f.store.Mend(storetest.RenewOperations)
		return a
	},
}

func TestInspect(t *testing.T) {
	inBubble(t, func(f fixture) {
		_, err := f.guard.Inspect(f.Context(), op)
		f.want(err, guard.ErrNoRecord)
		a := f.attempt()
		f.sleep(2 * time.Second)
		r := f.inspect()
		if r.ID != a.OperationID() || r.State != guard.InFlight || r.Attempt != 1 || !r.Dirty || r.Holder != "till 7" ||
			r.Age != 2*time.Second || r.Changed != r.Age || r.Lease != lease-r.Age || r.Expires != 24*time.Hour-r.Age || r.Unresolved() {
			t.Errorf("in flight: %+v", r)
		}
		byID, err := f.guard.InspectID(f.Context(), a.OperationID())
		if f.want(err, nil); !reflect.DeepEqual(byID, r) {
			t.Errorf("by ID: %+v, want %+v", byID, r)
		}
		_, err = must(guard.New(f.store, "refunds")).InspectID(f.Context(), a.OperationID())
		f.want(err, guard.ErrNoRecord)
		f.want(a.MarkClean(f.Context()), nil)
		if r := f.inspect(); r.Dirty || r.Changed != 0 {
			t.Errorf("clean: %+v", r)
		}
		f.step(a, "charge", 1)
		if r := f.inspect(); r.Dirty || !slices.Equal(r.Steps, []string{"charge"}) {
			t.Errorf("with a step: %+v", r)
		}
		f.want(a.Complete(f.Context(), guard.Result{Status: 201, Data: []byte("charged")}), nil)
		if r := f.inspect(); r.State != guard.Completed || r.Status != 201 || r.Size < 7 || r.Lease != 0 || r.Steps != nil || r.Dirty || r.Unresolved() {
			t.Errorf("completed: %+v", r)
		}
	}, guard.WithHolder("till 7"))
}

func TestInspectRefuses(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		id := a.OperationID()
		for _, id := range []string{"", "x", id[:21], id[:43], id + "x", "{" + id[1:], id + "\n", id[:42] + "\r\n", strings.Repeat("x", 5000)} {
			_, err := f.guard.InspectID(f.Context(), id)
			f.want(err, guard.ErrInvalidOperation)
		}
		_, err := f.guard.InspectID(f.Context(), id[22:]+id[:22]) // another scope
		f.want(err, guard.ErrNoRecord)
		_, err = f.guard.Inspect(f.Context(), guard.Operation{})
		f.want(err, guard.ErrInvalidOperation)
		f.store.Break(storetest.InspectOperation, storetest.Down)
		_, err = f.guard.InspectID(f.Context(), id)
		f.want(err, store.ErrUnavailable)
		f.want(a.Abandon(f.Context()), nil)
	})
}

// The list has the operations that may have had effects, and that no attempt is about to settle.
func TestUnresolved(t *testing.T) {
	inBubble(t, func(f fixture) {
		begin := func(key string) *guard.Attempt {
			a, _, err := f.guard.Begin(f.Context(), guard.Operation{Scope: key[:1], Key: key})
			f.want(err, nil)
			return a
		}
		unknown, dead, clean, steps := begin("unknown"), begin("dead"), begin("clean"), begin("steps")
		f.want(unknown.CompleteUnknown(f.Context()), nil)
		f.want(clean.MarkClean(f.Context()), nil)
		f.step(steps, "charge", 1)
		f.want(steps.Abandon(f.Context()), nil)
		f.want(begin("done").Complete(f.Context(), guard.Result{}), nil)
		f.store.Break(storetest.RenewOperations, storetest.Down)
		f.sleep(lease + time.Second)
		live := begin("live")
		var got []string
		for r, err := range f.guard.Unresolved(f.Context()) {
			if f.want(err, nil); !r.Unresolved() {
				t.Errorf("listed %+v", r)
			}
			got = append(got, r.ID)
		}
		want := []string{unknown.OperationID(), dead.OperationID(), steps.OperationID()}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("listed %q, want %q", got, want)
		}
		f.guard.Unresolved(f.Context())(func(_ guard.Record, err error) bool {
			f.want(err, nil)
			return false
		})
		f.store.Break(storetest.ListUnresolved, storetest.Down)
		n := 0
		for _, err := range f.guard.Unresolved(f.Context()) {
			f.want(err, store.ErrUnavailable)
			n++
		}
		if n != 1 {
			t.Errorf("%d errors", n)
		}
		for _, a := range []*guard.Attempt{dead, clean, live} {
			_ = a.Abandon(f.Context())
		}
	})
}

func TestResolve(t *testing.T) {
	for how, unknown := range unknowns {
		for name, c := range map[string]struct {
			as   guard.Resolution
			then func(f fixture)
		}{
			"happened": {guard.Happened(guard.Result{Status: 201, Data: []byte("found")}), func(f fixture) {
				if r := f.replay(); r.Status != 201 || string(r.Data) != "found" || r.Attempt != 1 {
					t.Errorf("replayed %+v", r)
				}
				f.want(f.guard.Resolve(f.Context(), f.inspect(), guard.NeverHappened(), "ops", "again"), guard.ErrOutcomeKnown)
			}},
			"answer lost": {guard.HappenedAnswerLost(202), func(f fixture) {
				var lost *guard.NotRetainedError
				if err := f.refused(guard.ErrNotRetained); !errors.As(err, &lost) || lost.Status != 202 {
					t.Errorf("got %v", err)
				}
				f.want(f.guard.Resolve(f.Context(), f.inspect(), guard.NeverHappened(), "ops", "again"), guard.ErrOutcomeKnown)
			}},
			"never happened": {guard.NeverHappened(), func(f fixture) {
				if r := f.inspect(); r.Unresolved() {
					t.Errorf("still to be resolved: %+v", r)
				}
				a := f.attempt()
				if a.Number() != 2 || !a.Dirty() {
					t.Errorf("attempt %d, dirty is %v", a.Number(), a.Dirty())
				}
				f.want(a.Complete(f.Context(), guard.Result{}), nil)
			}},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				inBubble(t, func(f fixture) {
					first := unknown(f)
					seen := f.inspect()
					if !seen.Unresolved() {
						t.Errorf("seen %+v", seen)
					}
					f.want(f.guard.Resolve(f.Context(), seen, c.as, "ops", "asked the provider"), nil)
					f.want(f.guard.Resolve(f.Context(), seen, guard.HappenedAnswerLost(500), "ops", "stale"), guard.ErrChanged)
					if how == "dead" {
						f.want(first.Complete(f.Context(), guard.Result{Data: []byte("late")}), guard.ErrLost)
					}
					c.then(f)
				})
			})
		}
	}
}

// A resolution does not shorten the time for which the record is kept, as by its route.
func TestResolveKeepsARecordForLong(t *testing.T) {
	inBubble(t, func(f fixture) {
		long := guard.Operation{Scope: op.Scope, Key: op.Key, Retention: 48 * time.Hour}
		a, _, err := f.guard.Begin(f.Context(), long)
		f.want(err, nil)
		f.want(a.CompleteUnknown(f.Context()), nil)
		f.sleep(time.Hour)
		f.want(f.guard.Resolve(f.Context(), f.inspect(), guard.HappenedAnswerLost(201), "ops", "found"), nil)
		if r := f.inspect(); r.State != guard.NotRetained || r.Expires != 47*time.Hour {
			t.Errorf("resolved: %+v", r)
		}
	})
}

func TestResolveRefuses(t *testing.T) {
	inBubble(t, func(f fixture) {
		answer := guard.HappenedAnswerLost(200)
		a := f.attempt()
		seen := f.inspect()
		var inFlight *guard.InFlightError
		if err := f.guard.Resolve(f.Context(), seen, answer, "ops", "why"); !errors.As(err, &inFlight) || inFlight.ID != seen.ID || inFlight.Remaining != lease {
			t.Errorf("over a live lease: %#v", err)
		}
		f.want(a.CompleteUnknown(f.Context()), nil)
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "why"), guard.ErrChanged)
		seen = f.inspect()
		calls := f.store.Calls(storetest.Any)
		for name, err := range map[string]error{
			"no resolution": f.guard.Resolve(f.Context(), seen, guard.Resolution{}, "ops", "why"),
			"nobody":        f.guard.Resolve(f.Context(), seen, answer, "", "why"),
			"no reason":     f.guard.Resolve(f.Context(), seen, answer, "ops", ""),
			"no record":     f.guard.Resolve(f.Context(), guard.Record{ID: seen.ID}, answer, "ops", "why"),
			"too large":     f.guard.Resolve(f.Context(), seen, guard.Happened(guard.Result{Data: make([]byte, 11)}), "ops", "why"),
			"another's":     must(guard.New(f.store, "refunds")).Resolve(f.Context(), seen, answer, "ops", "why"),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "guard: Resolve: ") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := f.store.Calls(storetest.Any); n != calls {
			t.Errorf("the store was called")
		}
		f.store.Break(storetest.ResolveOperation, storetest.Down)
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "why"), store.ErrUnavailable)
		f.store.BreakNext(storetest.ResolveOperation, storetest.LostReply, 2) // its repeat is recognised, and so is the caller's
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "why"), store.ErrUnconfirmed)
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "why"), nil)
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "another reason"), guard.ErrChanged)
		_ = f.refused(guard.ErrNotRetained)
		seen = f.inspect()
		f.sleep(25 * time.Hour)
		f.want(f.guard.Resolve(f.Context(), seen, answer, "ops", "why"), guard.ErrChanged) // it is gone
	}, guard.WithMaxResult(10))
}

// asked is the function of WithReconcile.
type asked struct {
	n   int
	say func(ctx context.Context, r guard.Record) (guard.Resolution, error)
}

func (q *asked) ask(ctx context.Context, r guard.Record) (guard.Resolution, error) {
	q.n++
	return q.say(ctx, r)
}

func (q *asked) option() guard.Option { return guard.WithReconcile(q.ask) }

func says(how guard.Resolution, err error) *asked {
	return &asked{say: func(context.Context, guard.Record) (guard.Resolution, error) { return how, err }}
}

var found = guard.Happened(guard.Result{Status: 201, Data: []byte("found")})

func TestReconcile(t *testing.T) {
	for how, unknown := range unknowns {
		for name, c := range map[string]struct {
			says *asked
			then func(f fixture)
			asks int
		}{
			"happened": {says(found, nil), func(f fixture) {
				if r := f.replay(); r.Status != 201 || string(r.Data) != "found" {
					t.Errorf("replayed %+v", r)
				}
				f.replay()
			}, 1},
			"answer lost": {says(guard.HappenedAnswerLost(200), nil), func(f fixture) {
				_ = f.refused(guard.ErrNotRetained)
				_ = f.refused(guard.ErrNotRetained)
			}, 1},
			"too large": {says(guard.Happened(guard.Result{Status: 201, Data: make([]byte, 1<<20)}), nil), func(f fixture) {
				var lost *guard.NotRetainedError
				if err := f.refused(guard.ErrNotRetained); !errors.As(err, &lost) || lost.Status != 201 {
					t.Errorf("got %v", err)
				}
			}, 1},
			"never happened": {says(guard.NeverHappened(), nil), func(f fixture) {
				a := f.attempt()
				if a.Number() != 2 || a.Context().Err() != nil {
					t.Errorf("attempt %d, %v", a.Number(), context.Cause(a.Context()))
				}
				f.want(a.Complete(f.Context(), guard.Result{}), nil)
				f.replay()
			}, 1},
			"error": {says(guard.Resolution{}, errDeclined), func(f fixture) {
				f.want(f.refused(guard.ErrOutcomeUnknown), errDeclined)
				f.want(f.refused(guard.ErrOutcomeUnknown), errDeclined)
				if r := f.inspect(); r.State != guard.Unknown {
					t.Errorf("left %+v", r)
				}
			}, 2},
			"nothing": {says(guard.Resolution{}, nil), func(f fixture) {
				var unknown *guard.UnknownError
				if err := f.refused(guard.ErrOutcomeUnknown); !errors.As(err, &unknown) || unknown.Err == nil || unknown.ID != f.inspect().ID {
					t.Errorf("got %v", err)
				}
			}, 1},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				plain := c.says.say
				c.says.say = func(ctx context.Context, r guard.Record) (guard.Resolution, error) {
					if _, ok := guard.FromContext(ctx); ok {
						t.Error("there is an attempt in the context")
					}
					if r.State != guard.Reconciling || r.Attempt != 1 || r.Unresolved() {
						t.Errorf("asked about %+v", r)
					}
					time.Sleep(3 * lease) // the lease is renewed
					return plain(ctx, r)
				}
				inBubble(t, func(f fixture) {
					first := unknown(f)
					c.then(f)
					_ = first.Abandon(f.Context())
					if c.says.n != c.asks {
						t.Errorf("asked %d times", c.says.n)
					}
					f.want(f.guard.Close(), nil)
				}, c.says.option())
			})
		}
	}
}

func TestReconcilePanics(t *testing.T) {
	q := &asked{say: func(context.Context, guard.Record) (guard.Resolution, error) { panic("boom") }}
	inBubble(t, func(f fixture) {
		unknowns["settled"](f)
		for range 2 {
			func() {
				defer func() {
					if got := recover(); got != "boom" {
						t.Errorf("recovered %v", got)
					}
				}()
				_, _, _ = f.guard.Begin(f.Context(), op)
			}()
			if r := f.inspect(); r.State != guard.Unknown {
				t.Errorf("left %+v", r)
			}
		}
		q.say = says(found, nil).say
		f.replay()
		f.want(f.guard.Close(), nil)
	}, q.option())
}

// One request calls the function; during the call others are refused, or wait for its result.
func TestReconcileOnce(t *testing.T) {
	q := &asked{say: func(context.Context, guard.Record) (guard.Resolution, error) {
		time.Sleep(2 * time.Second)
		return found, nil
	}}
	inBubble(t, func(f fixture) {
		unknowns["settled"](f)
		replayed := make(chan *guard.Result)
		for _, wait := range []time.Duration{0, time.Minute} {
			go func() {
				twin := op
				twin.Wait = wait
				_, r, _ := f.guard.Begin(f.Context(), twin)
				replayed <- r
			}()
			synctest.Wait()
		}
		_ = f.refused(guard.ErrInFlight)
		_ = f.other().refused(guard.ErrInFlight)
		for range 2 {
			if r := <-replayed; r == nil || string(r.Data) != "found" {
				t.Errorf("replayed %+v", r)
			}
		}
		if q.n != 1 {
			t.Errorf("asked %d times", q.n)
		}
	}, q.option())
}

func TestReconcileForAClientThatLeaves(t *testing.T) {
	q := &asked{say: func(ctx context.Context, _ guard.Record) (guard.Resolution, error) {
		<-ctx.Done()
		return guard.Resolution{}, ctx.Err()
	}}
	inBubble(t, func(f fixture) {
		unknowns["settled"](f)
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		_, _, err := f.guard.Begin(ctx, op)
		f.want(err, guard.ErrOutcomeUnknown)
		q.say = says(found, nil).say
		f.replay()
	}, q.option())
}

// A request whose lease ends during the call uses the resolution of another request.
func TestReconcileLosesItsLease(t *testing.T) {
	q := &asked{}
	inBubble(t, func(f fixture) {
		unknowns["settled"](f)
		q.say = func(ctx context.Context, _ guard.Record) (guard.Resolution, error) {
			f.store.Break(storetest.RenewOperations, storetest.Down)
			<-ctx.Done()
			f.want(context.Cause(ctx), guard.ErrExpired)
			f.sleep(lease)
			other := f
			other.guard = newGuard(f.T, f.store, says(found, nil).option())
			other.replay()
			return guard.NeverHappened(), nil
		}
		if r := f.replay(); string(r.Data) != "found" {
			t.Errorf("replayed %+v", r)
		}
		f.want(f.guard.Close(), nil)
	}, q.option())
}

func TestReconcileInAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		op    storetest.Op
		says  *asked
		want  error
		after time.Duration // which the next request asks again
	}{
		"inspect": {storetest.InspectOperation, says(found, nil), guard.ErrOutcomeUnknown, 0},
		"resolve": {storetest.ResolveOperation, says(found, nil), store.ErrUnavailable, lease + time.Second},
		"settle":  {storetest.SettleOperation, says(guard.Resolution{}, errDeclined), guard.ErrOutcomeUnknown, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				unknowns["settled"](f)
				f.store.Break(c.op, storetest.Down)
				_ = f.refused(c.want)
				f.store.Mend(c.op)
				f.sleep(c.after)
				c.says.say = says(found, nil).say
				f.replay()
				f.want(f.guard.Close(), nil)
			}, c.says.option())
		})
	}
}

// If a reply to the request to begin is lost, before the question or after it, nothing is left in the way.
func TestReconcileWithLostReplies(t *testing.T) {
	q := &asked{}
	inBubble(t, func(f fixture) {
		unknowns["settled"](f)
		f.store.BreakNext(storetest.BeginOperation, storetest.LostReply, 1)
		_ = f.refused(store.ErrUnconfirmed)
		f.sleep(time.Second)
		q.say = func(context.Context, guard.Record) (guard.Resolution, error) {
			f.store.BreakNext(storetest.BeginOperation, storetest.LostReply, 1)
			return guard.NeverHappened(), nil
		}
		_ = f.refused(store.ErrUnconfirmed)
		f.sleep(time.Second)
		f.want(f.attempt().Complete(f.Context(), guard.Result{}), nil)
		f.want(f.guard.Close(), nil)
	}, q.option())
}

func TestKeepAndForget(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		a.Keep(48 * time.Hour)
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		f.sleep(47 * time.Hour)
		f.replay()
		f.sleep(2 * time.Hour)

		a = f.attempt()
		a.Forget()
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		f.sleep(2 * time.Millisecond)
		a = f.attempt()
		if a.Number() != 1 {
			t.Errorf("attempt %d at a new operation", a.Number())
		}
		for _, d := range []time.Duration{-1, 367 * 24 * time.Hour} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("Keep(%v) does not panic", d)
					}
				}()
				a.Keep(d)
			}()
		}
		a.Forget()
		f.store.BreakNext(storetest.SettleOperation, storetest.Down, 3)
		f.want(a.Complete(f.Context(), guard.Result{}), store.ErrUnavailable)
		f.sleep(time.Minute) // it is retried, for otherwise its outcome would be unknown
		a = f.attempt()
		a.Forget()
		f.want(a.CompleteUnknown(f.Context()), nil) // who forgets that would run it again
		f.sleep(23 * time.Hour)
		_ = f.refused(guard.ErrOutcomeUnknown)
	})
}

// What is forgotten leaves room in its scope.
func TestForgetLeavesRoom(t *testing.T) {
	inBubble(t, func(f fixture) {
		for range 5 {
			a := f.attempt()
			a.Forget()
			f.want(a.Complete(f.Context(), guard.Result{}), nil)
			f.sleep(10 * time.Millisecond)
		}
	}, guard.WithMaxPerScope(2))
}

func TestRetentionOfAnOperation(t *testing.T) {
	inBubble(t, func(f fixture) {
		brief := op
		brief.Retention = time.Minute
		a, _, err := f.guard.Begin(f.Context(), brief)
		f.want(err, nil)
		f.sleep(10 * time.Minute) // it is renewed
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		f.sleep(59 * time.Second)
		f.replay()
		f.sleep(2 * time.Second)
		f.want(f.attempt().Abandon(f.Context()), nil)
	})
	g := newGuard(t, memstore.New())
	for name, o := range map[string]guard.Operation{
		"brief":        {Key: "k", Retention: lease - 1},
		"long":         {Key: "k", Retention: 367 * 24 * time.Hour},
		"negative":     {Key: "k", Retention: -1},
		"waits -1 ns":  {Key: "k", Wait: -1},
		"waits 2 h":    {Key: "k", Wait: 2 * time.Hour},
		"less than no": {Key: "k", MaxWaiting: -1},
	} {
		if _, _, err := g.Begin(t.Context(), o); !errors.Is(err, guard.ErrInvalidOperation) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
