package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const lease = 30 * time.Second

// fixture is a guard on a store that fails on command.
type fixture struct {
	*testing.T
	store *storetest.Faulty
	guard *guard.Guard
}

// inBubble runs a test with faked time.
func inBubble(t *testing.T, test func(f fixture), opts ...guard.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		f := fixture{t, st, newGuard(t, st, opts...)}
		test(f)
		st.Mend(storetest.Any)
		if err := st.Close(); err != nil && !strings.HasPrefix(err.Error(), "guard: ") { // of unsettled attempts
			t.Error(err)
		}
	})
}

func newGuard(t *testing.T, st store.Records, opts ...guard.Option) *guard.Guard {
	t.Helper()
	g := must(guard.New(st, "orders", opts...))
	return g
}

var op = guard.Operation{Scope: "alice", Key: "k1", Fingerprint: []byte("tea")}

func (f fixture) attempt() *guard.Attempt {
	f.Helper()
	a, r, err := f.guard.Begin(f.Context(), op)
	if a == nil || r != nil || err != nil {
		f.Fatalf("Begin: %v, %v, %v, want an attempt", a, r, err)
	}
	return a
}

func (f fixture) replay() *guard.Result {
	f.Helper()
	a, r, err := f.guard.Begin(f.Context(), op)
	if a != nil || r == nil || err != nil {
		f.Fatalf("Begin: %v, %v, %v, want a result", a, r, err)
	}
	return r
}

func (f fixture) refused(want error) error {
	f.Helper()
	a, r, err := f.guard.Begin(f.Context(), op)
	if a != nil || r != nil || !errors.Is(err, want) {
		f.Fatalf("Begin: %v, %v, %v, want %v", a, r, err, want)
	}
	return err
}

func (f fixture) want(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("got %v, want %v", err, want)
	}
}

func (f fixture) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestComplete(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		if a.OperationID() == "" || a.Number() != 1 || !a.Dirty() || a.Context().Err() != nil {
			t.Errorf("attempt %d, dirty %v, %v", a.Number(), a.Dirty(), a.Context().Err())
		}
		if found, ok := guard.FromContext(a.Context()); !ok || found != a {
			t.Error("the attempt is not in its context")
		}
		_ = f.refused(guard.ErrInFlight)
		f.want(a.Complete(f.Context(), guard.Result{Status: 201, Data: []byte("charged")}), nil)
		f.want(context.Cause(a.Context()), guard.ErrSettled)
		if r := f.replay(); r.Status != 201 || string(r.Data) != "charged" || r.Attempt != 1 {
			t.Errorf("replayed %+v", r)
		}
		f.want(a.Complete(f.Context(), guard.Result{}), guard.ErrSettled)
		f.want(a.Abandon(f.Context()), guard.ErrSettled)
		f.want(a.MarkDirty(f.Context()), guard.ErrSettled)
		f.sleep(23 * time.Hour)
		f.replay()
		f.sleep(2 * time.Hour)
		_ = f.attempt().Abandon(f.Context())
	})
}

// settles is a step of CompleteBy that settles the attempt as Complete does.
func settles(ctx context.Context, st store.Records, req store.SettleRequest) (bool, error) {
	return st.SettleOperation(ctx, req)
}

func TestCompleteBy(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		result := guard.Result{Status: 201, Data: []byte("charged")}
		failure := errors.New("rolled back")
		f.want(a.CompleteBy(f.Context(), result, func(context.Context, store.Records, store.SettleRequest) (bool, error) {
			f.want(a.Complete(f.Context(), result), guard.ErrSettled) // another step runs
			f.want(a.Context().Err(), nil)
			return true, failure
		}), failure)
		func() {
			defer func() { _ = recover() }()
			_ = a.CompleteBy(f.Context(), result, func(context.Context, store.Records, store.SettleRequest) (bool, error) { panic("broken") })
		}()
		f.want(a.Context().Err(), nil)
		_ = f.refused(guard.ErrInFlight)
		f.want(a.CompleteBy(f.Context(), result, settles), nil)
		f.want(context.Cause(a.Context()), guard.ErrSettled)
		if r := f.replay(); r.Status != 201 || string(r.Data) != "charged" {
			t.Errorf("replayed %+v", r)
		}
		f.want(a.CompleteBy(f.Context(), result, settles), guard.ErrSettled)
		f.want(a.Abandon(f.Context()), guard.ErrSettled)
		f.want(f.guard.Close(), nil) // no attempt is left
	})
}

func TestCompleteByOfALostAttempt(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.want(a.CompleteBy(f.Context(), guard.Result{}, func(context.Context, store.Records, store.SettleRequest) (bool, error) { return false, nil }), guard.ErrLost)
		f.want(a.Complete(f.Context(), guard.Result{}), guard.ErrSettled)
		f.want(f.guard.Close(), nil)
	})
}

// A cancelled context does not prevent Complete.
func TestCompleteWithACancelledContext(t *testing.T) {
	inBubble(t, func(f fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		a, _, err := f.guard.Begin(ctx, op)
		f.want(err, nil)
		cancel()
		f.want(context.Cause(a.Context()), context.Canceled)
		f.want(a.Complete(ctx, guard.Result{Data: []byte("charged")}), nil)
		f.replay()
	})
}

func TestLongAttemptIsRenewed(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.sleep(20 * lease)
		_ = f.refused(guard.ErrInFlight)
		f.want(a.Context().Err(), nil)
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
		f.replay()
	})
}

// An attempt that cannot renew ends before the store lets another one begin.
func TestContextEndsBeforeTheLease(t *testing.T) {
	inBubble(t, func(f fixture) {
		start := time.Now()
		a := f.attempt()
		f.store.Break(storetest.RenewOperations, storetest.Down)
		<-a.Context().Done()
		f.want(context.Cause(a.Context()), guard.ErrExpired)
		if ran := time.Since(start); ran >= lease || ran < lease*9/10 {
			t.Errorf("ended after %v of a lease of %v", ran, lease)
		}
		_ = f.refused(guard.ErrInFlight) // the store's lease has not expired
		f.sleep(lease)
		second := f.attempt()
		if second.OperationID() != a.OperationID() {
			t.Error("another attempt has another operation")
		}
		if second.Number() != 2 {
			t.Errorf("took over with number %d", second.Number())
		}
		f.store.Mend(storetest.Any)
		f.want(a.MarkClean(f.Context()), guard.ErrLost)
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("stale")}), guard.ErrLost)
		f.want(second.Complete(f.Context(), guard.Result{Data: []byte("good")}), nil)
		if r := f.replay(); string(r.Data) != "good" || r.Attempt != 2 {
			t.Errorf("replayed %q of attempt %d", r.Data, r.Attempt)
		}
	}, guard.WithRerun())
}

func TestContextEndsWithoutTheRecord(t *testing.T) {
	inBubble(t, func(f fixture) {
		wrapped := &recorder{Store: f.store}
		f.guard = newGuard(t, wrapped)
		a := f.attempt()
		_, err := f.store.AbandonOperation(f.Context(), wrapped.begun[0].AttemptRef)
		f.want(err, nil)
		<-a.Context().Done() // at the next renewal
		f.want(context.Cause(a.Context()), guard.ErrLost)
		f.want(a.Abandon(f.Context()), nil)
	})
}

func TestCompletionIsRetried(t *testing.T) {
	for name, how := range map[string]storetest.Fault{"down": storetest.Down, "reply lost": storetest.LostReply, "hung": storetest.Hung} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				f.store.Break(storetest.SettleOperation, how)
				f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), store.ErrUnavailable)
				if how != storetest.LostReply {
					f.sleep(lease + lease/2) // the lease is renewed
					f.replay()               // in the process that has the result
					other := f
					other.guard = newGuard(f.T, f.store)
					_ = other.refused(guard.ErrInFlight)
				}
				f.store.Mend(storetest.SettleOperation)
				f.sleep(3 * time.Second)
				if r := f.replay(); string(r.Data) != "charged" {
					t.Errorf("replayed %q", r.Data)
				}
				renewals := f.store.Calls(storetest.RenewOperations)
				f.sleep(time.Hour)
				if n := f.store.Calls(storetest.RenewOperations); n != renewals {
					t.Errorf("%d renewals after the end", n-renewals)
				}
			})
		})
	}
}

func TestShutdownFinishesCompletions(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.Break(storetest.SettleOperation, storetest.Down)
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), store.ErrUnavailable)
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		f.want(f.store.Shutdown(ctx), context.DeadlineExceeded)
		f.store.Mend(storetest.Any)
		f.want(f.store.Shutdown(f.Context()), nil)
		f.other().replay()
	})
}

// Shutdown waits for attempts and for confirmations of the store, begins nothing new, and reports the
// number of both when its context ends.
func TestShutdownReportsPending(t *testing.T) {
	inBubble(t, func(f fixture) {
		const completed, abandoned, unconfirmed, running = 3000, 7, 12, 2
		var all []*guard.Attempt
		for i := range completed + abandoned + running {
			a, _, err := f.guard.Begin(f.Context(), guard.Operation{Key: fmt.Sprint(i)})
			f.want(err, nil)
			all = append(all, a)
		}
		f.store.Break(storetest.BeginOperation, storetest.LostReply)
		f.store.Break(storetest.AbandonOperation, storetest.Down)
		f.store.Break(storetest.SettleOperation, storetest.Down)
		for i := range unconfirmed {
			_, _, err := f.guard.Begin(f.Context(), guard.Operation{Key: fmt.Sprint("unconfirmed", i)})
			f.want(err, store.ErrUnconfirmed)
		}
		for i, a := range all[running:] {
			if i < abandoned {
				f.want(a.Abandon(f.Context()), store.ErrUnavailable)
			} else {
				f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), store.ErrUnavailable)
			}
		}
		reports := func(what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(f.Context(), time.Second)
			defer cancel()
			if err := f.store.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || err.Error() != "guard: orders: "+what+": context deadline exceeded" {
				t.Errorf("Shutdown: %v, want %s", err, what)
			}
		}
		reports("2 attempts are not settled, 3000 completions are not confirmed, 19 abandoned attempts are not confirmed")
		_ = f.refused(store.ErrClosed)
		f.store.Mend(storetest.BeginOperation)
		_ = f.refused(store.ErrClosed)
		f.store.Mend(storetest.AbandonOperation)
		reports("2 attempts are not settled, 3000 completions are not confirmed")
		f.store.Mend(storetest.SettleOperation)
		reports("2 attempts are not settled")
		f.want(all[0].MarkDirty(f.Context()), nil)
		f.want(all[0].Complete(f.Context(), guard.Result{}), nil)
		reports("1 attempts are not settled")
		time.AfterFunc(time.Minute, func() { _ = all[1].Complete(f.Context(), guard.Result{}) })
		f.want(f.store.Shutdown(f.Context()), nil)
		f.want(all[1].Context().Err(), context.Canceled)
	})
}

// A completion that is being tried, and fails, while Shutdown waits is waited for as well.
func TestShutdownWaitsForTheStepsOfAttempts(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.BreakNext(storetest.SettleOperation, storetest.Hung, 3)
		done := make(chan error, 2)
		go func() { done <- a.Complete(f.Context(), guard.Result{Data: []byte("charged")}) }()
		synctest.Wait()
		go func() { done <- f.store.Shutdown(f.Context()) }()
		f.want(<-done, store.ErrUnconfirmed)
		f.want(<-done, nil)
		f.other().replay()
	})
}

// If the reply to Begin is lost, its attempt is abandoned, and blocks no caller for a lease.
func TestLostReplyToBegin(t *testing.T) {
	for name, how := range map[string]storetest.Fault{"reply lost": storetest.LostReply, "hung": storetest.Hung} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.store.BreakNext(storetest.BeginOperation, how, 1)
				ctx, cancel := context.WithTimeout(f.Context(), time.Second)
				defer cancel()
				_, _, err := f.guard.Begin(ctx, op)
				f.want(err, store.ErrUnconfirmed)
				f.sleep(time.Second)
				a := f.attempt()
				if a.Number() != 1 {
					t.Errorf("attempt %d", a.Number())
				}
				f.want(a.Abandon(f.Context()), nil)
			})
		})
	}
}

func TestFailedBeginLeavesNothing(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.store.Break(storetest.BeginOperation, storetest.Down)
		_ = f.refused(store.ErrUnavailable)
		f.sleep(time.Minute)
		if n := f.store.Calls(storetest.AbandonOperation); n != 0 {
			t.Errorf("%d calls of AbandonOperation", n)
		}
	})
}

func TestAbandon(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.want(f.attempt().Abandon(f.Context()), nil)
		f.store.BreakNext(storetest.AbandonOperation, storetest.Down, 1)
		f.want(f.attempt().Abandon(f.Context()), store.ErrUnavailable)
		f.sleep(time.Second) // retried in the background
		f.want(f.attempt().Abandon(f.Context()), nil)
	})
}

func TestMarks(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.BreakNext(storetest.MarkOperation, storetest.LostReply, 1)
		f.want(a.MarkClean(f.Context()), store.ErrUnconfirmed)
		if !a.Dirty() {
			t.Error("clean without a confirmation")
		}
		f.want(a.MarkClean(f.Context()), nil)
		if a.Dirty() {
			t.Error("dirty after MarkClean")
		}
		f.store.BreakNext(storetest.MarkOperation, storetest.Down, 1)
		f.want(a.MarkDirty(f.Context()), store.ErrUnavailable)
		if !a.Dirty() {
			t.Error("clean after a failed MarkDirty")
		}
		f.want(a.Complete(f.Context(), guard.Result{}), nil)
	})
}

// lateMarks is a store to which marks may arrive late.
type lateMarks struct {
	store.Store
	hold    bool
	late    []store.MarkRequest
	replied chan struct{} // if it is not nil, replies to MarkClean wait for it
}

func (s *lateMarks) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	if s.hold {
		s.late = append(s.late, req)
		return false, store.ErrUnconfirmed
	}
	held, err := s.Store.MarkOperation(ctx, req)
	if s.replied != nil && req.Effects == store.NoEffects {
		<-s.replied
	}
	return held, err
}

// If a MarkClean arrives after a later MarkDirty, the attempt stays dirty; otherwise another would run
// the operation again.
func TestLateMarkClean(t *testing.T) {
	for name, marks := range map[string]func(f fixture, a *guard.Attempt, s *lateMarks){
		"once": func(fixture, *guard.Attempt, *lateMarks) {},
		"after a confirmed MarkClean": func(f fixture, a *guard.Attempt, s *lateMarks) {
			s.hold = false
			f.want(a.MarkClean(f.Context()), nil)
			s.hold = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				s := &lateMarks{Store: f.store}
				f.guard = newGuard(t, s)
				a := f.attempt()
				marks(f, a, s)
				s.hold = true
				f.want(a.MarkClean(f.Context()), store.ErrUnconfirmed)
				if !a.Dirty() {
					t.Error("clean without a confirmation")
				}
				s.hold = false
				f.want(a.MarkDirty(f.Context()), nil)
				for _, req := range s.late {
					_, err := s.MarkOperation(f.Context(), req)
					f.want(err, nil)
				}
				f.store.Break(storetest.RenewOperations, storetest.Down) // as if dead
				f.sleep(lease + time.Second)
				_ = f.refused(guard.ErrOutcomeUnknown)
				_ = a.Abandon(f.Context())
			})
		})
	}
}

// A reply to MarkClean after a call of MarkDirty does not make the attempt clean; otherwise a failure
// would release the operation after its effect.
func TestLateReplyToMarkClean(t *testing.T) {
	inBubble(t, func(f fixture) {
		s := &lateMarks{Store: f.store, replied: make(chan struct{})}
		f.guard = newGuard(t, s)
		a := f.attempt()
		done := make(chan error)
		go func() { done <- a.MarkClean(f.Context()) }()
		synctest.Wait()
		f.want(a.MarkDirty(f.Context()), nil)
		close(s.replied)
		f.want(<-done, nil)
		if !a.Dirty() {
			t.Error("clean after MarkDirty")
		}
		f.want(a.Abandon(f.Context()), nil)
	})
}

// An attempt whose process dies stays undecided if it was dirty, unless re-runs are allowed.
func TestDeadAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		clean  bool
		opts   []guard.Option
		second bool
	}{
		"dirty":            {},
		"clean":            {clean: true, second: true},
		"dirty, may rerun": {opts: []guard.Option{guard.WithRerun()}, second: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				if c.clean {
					f.want(a.MarkClean(f.Context()), nil)
				}
				f.store.Break(storetest.RenewOperations, storetest.Down) // as if dead
				f.sleep(lease + time.Second)
				if c.second {
					if n := f.attempt().Number(); n != 2 {
						t.Errorf("attempt %d", n)
					}
				} else {
					for range 20 {
						_ = f.refused(guard.ErrOutcomeUnknown)
						f.sleep(time.Hour)
					}
				}
				_ = a.Abandon(f.Context())
			}, c.opts...)
		})
	}
}

func TestResultsThatAreNotKept(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.want(f.attempt().Complete(f.Context(), guard.Result{Status: 200, Data: []byte(strings.Repeat("x", 11))}), nil)
		var notRetained *guard.NotRetainedError
		if err := f.refused(guard.ErrNotRetained); !errors.As(err, &notRetained) || notRetained.Status != 200 {
			t.Errorf("got %v", err)
		}
	}, guard.WithMaxResult(10))
	inBubble(t, func(f fixture) {
		f.want(f.attempt().CompleteNotRetained(f.Context(), 206), nil)
		_ = f.refused(guard.ErrNotRetained)
	})
	inBubble(t, func(f fixture) {
		f.want(f.attempt().CompleteUnknown(f.Context()), nil)
		_ = f.refused(guard.ErrOutcomeUnknown)
	})
	inBubble(t, func(f fixture) {
		f.want(f.attempt().CompleteUnknown(f.Context()), nil)
		a := f.attempt()
		if a.Number() != 2 {
			t.Errorf("attempt %d", a.Number())
		}
		f.want(a.Abandon(f.Context()), nil)
	}, guard.WithRerun())
}

func TestRetryAfter(t *testing.T) {
	inBubble(t, func(f fixture) {
		for range 3 {
			a := f.attempt()
			f.sleep(200 * time.Millisecond)
			f.want(a.CompleteUnknown(f.Context()), nil)
		}
		a := f.attempt()
		var inFlight *guard.InFlightError
		if err := f.refused(guard.ErrInFlight); !errors.As(err, &inFlight) || inFlight.RetryAfter != 200*time.Millisecond || inFlight.Remaining != lease {
			t.Errorf("got %#v, want the duration of attempts", inFlight)
		}
		f.store.Break(storetest.RenewOperations, storetest.Down)
		f.sleep(lease - 50*time.Millisecond)
		if err := f.refused(guard.ErrInFlight); !errors.As(err, &inFlight) || inFlight.RetryAfter != 50*time.Millisecond {
			t.Errorf("got %#v, want at most the rest of the lease", inFlight)
		}
		_ = a.Abandon(f.Context())
	}, guard.WithRerun())
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestAReconciledRecordIsKeptAsItsOperationSays(t *testing.T) {
	happened := func(context.Context, guard.Record) (guard.Resolution, error) {
		return guard.Happened(guard.Result{Status: 201}), nil
	}
	inBubble(t, func(f fixture) {
		short := op
		short.Retention = 2 * lease
		a, _, err := f.guard.Begin(f.Context(), short)
		f.want(err, nil)
		f.want(a.CompleteUnknown(f.Context()), nil)
		if _, r, err := f.guard.Begin(f.Context(), short); err != nil || r == nil || r.Status != 201 {
			f.Fatalf("%v, %v", r, err)
		}
		f.sleep(2*lease + time.Second)
		if a, _, err = f.guard.Begin(f.Context(), short); a == nil {
			f.Fatalf("its result is still there: %v", err)
		}
		f.want(a.Abandon(f.Context()), nil)
	}, guard.WithReconcile(happened))
}
