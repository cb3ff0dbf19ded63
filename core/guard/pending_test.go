package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// unconfirmed begins an attempt, and settles it after the store has gone down.
func (f fixture) unconfirmed(settle func(context.Context, *guard.Attempt) error) {
	f.Helper()
	a := f.attempt()
	f.store.Break(storetest.Any, storetest.Down)
	f.want(settle(f.Context(), a), store.ErrUnavailable)
}

func completed(ctx context.Context, a *guard.Attempt) error {
	return a.Complete(ctx, guard.Result{Status: 201, Data: []byte("charged")})
}

// other returns the fixture of another process.
func (f fixture) other(opts ...guard.Option) fixture {
	f.guard = newGuard(f.T, f.store, opts...)
	return f
}

// A process that has a result replays it during an outage, even after the lease and with WithRerun.
// After the outage other processes replay it too.
func TestResultOutlivesItsLease(t *testing.T) {
	for name, opts := range map[string][]guard.Option{"": nil, "with rerun": {guard.WithRerun()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.unconfirmed(completed)
				changed := op
				changed.Fingerprint = []byte("coffee")
				for range 5 {
					for range 2 {
						r := f.replay()
						if r.Status != 201 || string(r.Data) != "charged" || r.Attempt != 1 {
							t.Fatalf("replayed %+v", r)
						}
						copy(r.Data, "evil")
					}
					if _, _, err := f.guard.Begin(f.Context(), changed); !errors.Is(err, guard.ErrMismatch) {
						t.Fatalf("another request: %v", err)
					}
					f.sleep(time.Hour)
				}
				f.store.Mend(storetest.Any)
				f.sleep(time.Second)
				f.replay()
				if r := f.other(opts...).replay(); string(r.Data) != "charged" {
					t.Errorf("replayed %q", r.Data)
				}
			}, opts...)
		})
	}
}

// A pending end of an attempt is the result of later calls, as its record will be.
func TestPendingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		settle func(context.Context, *guard.Attempt) error
		opts   []guard.Option
		want   error
	}{
		"not retained": {
			func(ctx context.Context, a *guard.Attempt) error { return a.CompleteNotRetained(ctx, 206) }, nil, guard.ErrNotRetained,
		},
		"unknown": {
			func(ctx context.Context, a *guard.Attempt) error { return a.CompleteUnknown(ctx) }, nil, guard.ErrOutcomeUnknown,
		},
		"unknown, may rerun": { // the store decides
			func(ctx context.Context, a *guard.Attempt) error { return a.CompleteUnknown(ctx) },
			[]guard.Option{guard.WithRerun()}, store.ErrUnavailable,
		},
		"abandoned": {
			func(ctx context.Context, a *guard.Attempt) error { return a.Abandon(ctx) }, nil, store.ErrUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.unconfirmed(c.settle)
				for range 3 {
					_ = f.refused(c.want)
					f.sleep(lease)
				}
				f.store.Mend(storetest.Any)
				f.sleep(time.Second)
				if name == "abandoned" || c.opts != nil {
					f.want(f.other(c.opts...).attempt().Abandon(f.Context()), nil)
				} else {
					_ = f.other(c.opts...).refused(c.want)
				}
			}, c.opts...)
		})
	}
}

// A pending completion is dropped if another attempt has taken over.
func TestPendingCompletionOfALostAttempt(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.unconfirmed(completed)
		f.sleep(2 * lease)
		f.store.Mend(storetest.Any)
		f.store.Break(storetest.SettleOperation, storetest.Down) // so that another attempt is first
		f.store.Break(storetest.RenewOperations, storetest.Down)
		second := f.other(guard.WithRerun())
		a := second.attempt()
		if a.Number() != 2 {
			t.Errorf("attempt %d", a.Number())
		}
		f.store.Mend(storetest.Any)
		f.sleep(time.Second)
		_ = f.refused(guard.ErrInFlight)
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("again")}), nil)
		if r := f.replay(); string(r.Data) != "again" || r.Attempt != 2 {
			t.Errorf("replayed %+v", r)
		}
	}, guard.WithRerun())
}

// If the reply to Begin is lost and the store is unavailable for longer than the lease, the attempt,
// which did not run, is abandoned; otherwise its outcome would be unknown.
func TestUnconfirmedBeginIsAbandoned(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.store.BreakNext(storetest.BeginOperation, storetest.LostReply, 1)
		f.store.Break(storetest.AbandonOperation, storetest.Down)
		_ = f.refused(store.ErrUnconfirmed)
		f.sleep(5 * lease)
		f.store.Mend(storetest.Any)
		f.sleep(time.Second)
		f.want(f.attempt().Abandon(f.Context()), nil)
	})
}

// A result that is to be forgotten does not leave an unknown outcome behind if the store is down when
// it is completed.
func TestForgetInAnOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.unconfirmed(func(ctx context.Context, a *guard.Attempt) error {
			a.Forget()
			return completed(ctx, a)
		})
		f.sleep(5 * lease)
		f.replay()
		f.store.Mend(storetest.Any)
		f.sleep(time.Second)
		f.want(f.attempt().Abandon(f.Context()), nil)
	})
}

// Pending completions are limited by their bytes. A result beyond that is not retained, and without
// room for that the completion is dropped, which Shutdown reports.
func TestPendingCompletionsAreBounded(t *testing.T) {
	data := make([]byte, 64<<10-1) // that cannot be deflated
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	for name, c := range map[string]struct{ max, all, kept, dropped int }{
		"by bytes":            {64 << 20, 1200, 756, 0}, // 65 KiB each, in three quarters
		"and by their number": {200 << 10, 150, 2, 150 - 2 - 70},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				f.guard.SetMaxPending(c.max)
				key := func(i int) guard.Operation {
					return guard.Operation{Scope: fmt.Sprint("user", i%100), Key: fmt.Sprint(i)}
				}
				var all []*guard.Attempt
				for i := range c.all {
					a, _, err := f.guard.Begin(f.Context(), key(i))
					f.want(err, nil)
					all = append(all, a)
				}
				f.store.Break(storetest.Any, storetest.Down)
				for _, a := range all {
					f.want(a.Complete(f.Context(), guard.Result{Status: 200, Data: data}), store.ErrUnavailable)
				}
				count := func(g *guard.Guard) (kept, notRetained, others int) {
					for i := range c.all {
						_, r, err := g.Begin(f.Context(), key(i))
						switch {
						case r != nil && len(r.Data) == 64<<10-1:
							kept++
						case errors.Is(err, guard.ErrNotRetained):
							notRetained++
						default:
							others++
						}
					}
					return kept, notRetained, others
				}
				if kept, small, others := count(f.guard); kept != c.kept || others != c.dropped || small != c.all-kept-others {
					t.Errorf("during the outage, %d are kept, %d not retained and %d unknown", kept, small, others)
				}
				f.store.Mend(storetest.Any)
				err := f.store.Shutdown(f.Context())
				if (err != nil) != (c.dropped > 0) || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%d completions were dropped", c.dropped)) {
					t.Errorf("Shutdown: %v", err)
				}
				f.sleep(2 * lease) // the leases of dropped ones have expired
				if kept, small, others := count(newGuard(t, f.store)); kept != c.kept || others != c.dropped || small != c.all-kept-others {
					t.Errorf("after the outage, %d are kept, %d not retained and %d unknown", kept, small, others)
				}
			})
		})
	}
}

// A completion is dropped when its record would have expired.
func TestCompletionIsDroppedAfterItsRetention(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.unconfirmed(completed)
		f.sleep(time.Hour + time.Minute)
		_ = f.refused(store.ErrUnavailable)
		calls := f.store.Calls(storetest.SettleOperation)
		f.sleep(time.Hour)
		if n := f.store.Calls(storetest.SettleOperation) - calls; n > 0 {
			t.Errorf("%d retries after that", n)
		}
		if err := f.store.Shutdown(f.Context()); err == nil || !strings.Contains(err.Error(), "1 completions were dropped") {
			t.Errorf("Shutdown: %v", err)
		}
	}, guard.WithRetention(time.Hour))
}

// Close ends pending completions, and leaks nothing.
func TestCloseEndsPendingCompletions(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	g := newGuard(t, st)
	var all []*guard.Attempt
	for i := range 100 {
		a, _, err := g.Begin(t.Context(), guard.Operation{Key: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	st.Break(storetest.SettleOperation, storetest.Hung)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, a := range all[:10] {
		wg.Go(func() { _ = a.Complete(ctx, guard.Result{}) })
	}
	st.Mend(storetest.Any)
	st.Break(storetest.SettleOperation, storetest.Down)
	for _, a := range all[10:] {
		_ = a.Complete(ctx, guard.Result{})
	}
	if err := st.Close(); err == nil || !strings.Contains(err.Error(), "completions are not confirmed") {
		t.Errorf("Close: %v", err)
	}
	st.Mend(storetest.Any) // so that the store itself replies: it is closed
}
