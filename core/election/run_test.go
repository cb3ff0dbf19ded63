package election_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

var errWork = errors.New("the work failed")

// When Run leads again after a term, alone and beside another candidate.
func TestRunCampaignsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		lasts time.Duration // the work
		err   error
		after time.Duration // since the end of the term
	}{
		"nil, after long work":  {time.Minute, nil, 0},
		"nil, after short work": {300 * time.Millisecond, nil, 700 * time.Millisecond},
		"an error":              {time.Minute, errWork, time.Second},
		"of another context":    {time.Minute, context.Canceled, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, first, second process) {
				ctx, stop := context.WithCancel(t.Context())
				terms, returned := first.run(ctx)
				term := <-terms
				time.Sleep(c.lasts)
				term.result <- c.err
				ended := time.Now()
				term = <-terms
				if after := time.Since(ended); after != c.after {
					t.Errorf("it leads again after %v, want %v", after, c.after)
				}

				others, othersReturned := second.run(ctx)
				time.Sleep(c.lasts)
				term.result <- c.err
				<-others // the one that waits
				wantLeads(t, first, false)
				time.Sleep(time.Minute)
				if len(terms) > 0 || first.waiting(t) != 1 {
					t.Error("the first does not wait behind the second")
				}
				stop()
				wantError(t, "Run", <-returned, context.Canceled)
				wantError(t, "Run", <-othersReturned, context.Canceled)
			})
		})
	}
}

// What Run returns, and that the role is free then.
func TestRunReturns(t *testing.T) {
	why := errors.New("the program ends")
	for name, c := range map[string]struct {
		end  func(p process, cancel context.CancelCauseFunc)
		want error
	}{
		"the context ends": {func(_ process, cancel context.CancelCauseFunc) { cancel(why) }, why},
		"the locker is closed": {func(p process, _ context.CancelCauseFunc) {
			_ = p.locker.Close()
		}, lock.ErrClosed},
		"the store is shut down": {func(p process, _ context.CancelCauseFunc) {
			_ = p.store.Shutdown(context.Background())
		}, lock.ErrClosed},
		"the store is then closed": {func(p process, _ context.CancelCauseFunc) {
			_ = p.store.Close()
		}, lock.ErrClosed},
	} {
		for _, state := range []string{"leads", "waits", "steps down"} {
			t.Run(name+" while it "+state, func(t *testing.T) {
				inBubble(t, func(t *testing.T, first, second process) {
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					var other *election.Term
					if state == "waits" {
						other = second.campaign(t)
						context.AfterFunc(other.Context(), func() { _ = other.Resign(context.Background()) })
					}
					terms, returned := first.run(ctx)
					var mine term
					switch state {
					case "leads":
						mine = <-terms
					case "steps down":
						(<-terms).result <- errWork
						synctest.Wait()
					}
					began := time.Now()
					c.end(first, cancel)
					wantError(t, "Run", <-returned, c.want)
					if took := time.Since(began); took > time.Second || took > 0 && state != "steps down" {
						t.Errorf("Run returned after %v", took)
					}
					wantLeads(t, first, false)
					if state == "leads" {
						wantError(t, "the term", context.Cause(mine.Context()), c.want)
					}
					if other != nil {
						_ = other.Resign(t.Context())
					}
					synctest.Wait() // for the withdrawal of its place
					if name == "the store is then closed" {
						return
					}
					state := must(first.locker.Inspect(t.Context(), role))
					if len(state.Holders) != 0 || state.Waiting != 0 {
						t.Errorf("left: %+v", state)
					}
				})
			})
		}
	}
}

// A shutdown waits for the work, and releases the role after it.
func TestShutdownWaitsForTheWork(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		const stopping = 3 * time.Second
		done := make(chan error, 1)
		go func() {
			done <- first.Run(t.Context(), func(ctx context.Context, _ *election.Term) error {
				<-ctx.Done()
				time.Sleep(stopping)
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		next := make(chan time.Time)
		go func() {
			term := must(second.Campaign(context.Background()))
			next <- time.Now()
			_ = term.Resign(context.Background())
		}()
		synctest.Wait()
		began := time.Now()
		_ = first.locker.Close() // as the store's Shutdown, which both share here
		if gap := (<-next).Sub(began); gap != stopping {
			t.Errorf("the next leads after %v, want %v", gap, stopping)
		}
		wantError(t, "Run", <-done, lock.ErrClosed)
	})
}

// A panic, and runtime.Goexit as by FailNow, release the role.
func TestRunPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		func() {
			defer func() {
				if r := recover(); r != "in lead" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = first.Run(t.Context(), func(context.Context, *election.Term) error { panic("in lead") })
		}()
		wantLeads(t, first, false)
		began := time.Now()
		term := second.campaign(t)
		if gap := time.Since(began); gap != 0 {
			t.Errorf("the role was free after %v", gap)
		}
		_ = term.Resign(t.Context())
		_ = first.campaign(t).Resign(t.Context()) // it is a candidate again
	})
}

// After an error of the store, Run campaigns again each step-down, and leads when the store is up.
func TestRunAfterErrorsOfTheStore(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"down": storetest.Down, "lost replies": storetest.LostReply,
		"full": storetest.Full, "misconfigured": storetest.Misconfigured,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p, _ process) {
				ctx, stop := context.WithCancel(t.Context())
				p.store.Break(storetest.AcquireLease, fault)
				terms, returned := p.run(ctx)
				time.Sleep(10*time.Second + time.Millisecond)
				if n := p.store.Calls(storetest.AcquireLease); len(terms) > 0 || n != 11 {
					t.Errorf("%d campaigns in 10 s, %d terms", n, len(terms))
				}
				p.store.Mend(storetest.Any)
				mended := time.Now()
				<-terms
				if gap := time.Since(mended); gap > time.Second {
					t.Errorf("it leads %v after the outage", gap)
				}
				stop()
				wantError(t, "Run", <-returned, context.Canceled)
			})
		})
	}
}

// An error that another campaign would return too ends Run.
func TestRunReturnsWhatItCannotMend(t *testing.T) {
	inBubble(t, func(t *testing.T, p, _ process) {
		shared := must(p.locker.RLock(t.Context(), role))
		err := p.Run(shared.Context(), func(context.Context, *election.Term) error { return nil })
		wantError(t, "Run under a shared lock of the role", err, lock.ErrDeadlock)
		_ = shared.Unlock(t.Context())
	})
}

// The errors of the work are logged, unless they are the end of its context.
func TestErrorsOfTheWorkAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		l := must(lock.New(st, "leaders", lock.WithLogger(slog.New(slog.DiscardHandler))))
		defer func() { _ = l.Close() }()
		var text bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&text, nil))
		e := must(election.New(l, "secret role", election.WithStepDown(time.Millisecond), election.WithLogger(logger)))
		ctx, stop := context.WithCancel(t.Context())
		round := 0
		_ = e.Run(ctx, func(ctx context.Context, term *election.Term) error {
			switch round++; round {
			case 1:
				return errWork
			case 2:
				return context.Canceled // of something else
			case 3:
				_, _ = l.ForceUnlock(ctx, "secret role", term.Fence().Number)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			stop()
			return ctx.Err()
		})
		logged := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(logged) != 3 ||
			!strings.Contains(logged[0], `error="the work failed"`) ||
			!strings.Contains(logged[1], `error="context canceled"`) ||
			!strings.Contains(logged[2], "end=lost") || strings.Contains(text.String(), "secret") {
			t.Errorf("logged:\n%s", text.String())
		}
	})
}
