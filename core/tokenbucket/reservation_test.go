package tokenbucket_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// llm is a plan of requests and tokens, whose tokens are counted by the day, too.
var llm = tokenbucket.Limits{
	tokenbucket.PerMinute(60).Named("requests"),
	tokenbucket.PerMinute(1000).Named("tokens"),
	tokenbucket.PerDay(5000).Named("daily-tokens").Counts("tokens"),
}

// left returns the remaining tokens of each limit.
func left(t *testing.T, l *tokenbucket.Limiter, key string) map[string]int64 {
	t.Helper()
	tokens := map[string]int64{}
	for _, s := range must(l.Peek(t.Context(), key)).Limits() {
		tokens[s.Name] = s.Remaining
	}
	return tokens
}

func wantLeft(t *testing.T, l *tokenbucket.Limiter, key string, requests, tokens, daily int64) {
	t.Helper()
	got := left(t, l, key)
	if got["requests"] != requests || got["tokens"] != tokens || got["daily-tokens"] != daily {
		t.Errorf("%v remain, want %d requests, %d tokens, %d of the day", got, requests, tokens, daily)
	}
}

// inBubble runs a test in which time stands still, with calls of the store counted.
func inBubble(t *testing.T, plan tokenbucket.Plan, test func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l, st := newLimiter(t, plan)
		test(t, l, st)
	})
}

func TestSettle(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 300}))
		wantLeft(t, l, "team", 59, 700, 4700)
		for _, n := range []int64{10, 120, 500} { // as a stream grows
			if err := r.Use("tokens", n); err != nil {
				t.Fatal(err)
			}
		}
		wantLeft(t, l, "team", 59, 700, 4700)
		for range 2 { // the second settlement does nothing
			if err := r.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantLeft(t, l, "team", 59, 500, 4500)
		if n := st.Calls(storetest.SettleTokens); n != 1 {
			t.Errorf("%d settlements were sent", n)
		}
		if err := r.Use("tokens", 1); !errors.Is(err, tokenbucket.ErrSettled) {
			t.Errorf("use after settle: %v", err)
		}
		if err := r.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		wantLeft(t, l, "team", 59, 500, 4500)
	})
}

// What is as estimated, or not reported, sends nothing.
func TestTheEstimateStays(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		for _, report := range []func(*tokenbucket.Reservation) error{
			func(*tokenbucket.Reservation) error { return nil },
			func(r *tokenbucket.Reservation) error { return r.Use("tokens", 300) },
		} {
			r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 300}))
			if err := report(r); err != nil {
				t.Fatal(err)
			}
			if err := r.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantLeft(t, l, "team", 58, 400, 4400)
		if n := st.Calls(storetest.SettleTokens); n != 0 {
			t.Errorf("%d settlements were sent", n)
		}
	})
}

func TestCancel(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		unsent := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 300}))
		if err := unsent.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, l, "team", 60, 1000, 5000)
		begun := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 300}))
		if err := begun.Use("tokens", 20); err != nil {
			t.Fatal(err)
		}
		if err := begun.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, l, "team", 60, 980, 4980) // never a refund of what was used
	})
}

// A denial charges nothing, and leaves nothing to settle.
func TestADeniedReservation(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"tokens": 900}))
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 200}))
		if r.Allowed || r.RetryAfter != 6*time.Second {
			t.Errorf("%+v", r.Decision)
		}
		if err := r.Use("tokens", 100); !errors.Is(err, tokenbucket.ErrSettled) {
			t.Errorf("use: %v", err)
		}
		if err := errors.Join(r.Settle(t.Context()), r.Cancel(t.Context())); err != nil || st.Calls(storetest.SettleTokens) != 0 {
			t.Errorf("%v, %d settlements", err, st.Calls(storetest.SettleTokens))
		}
		wantLeft(t, l, "team", 60, 100, 4100)
	})
}

// Of 100 concurrent reservations against a limit with room for 10, 10 pass.
func TestConcurrentReservations(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		var (
			wg      sync.WaitGroup
			allowed atomic.Int64
		)
		for range 100 {
			wg.Go(func() {
				if r, err := l.Reserve(context.Background(), "team", tokenbucket.Cost{"tokens": 100}); err == nil && r.Allowed {
					allowed.Add(1)
				}
			})
		}
		if wg.Wait(); allowed.Load() != 10 {
			t.Errorf("%d passed", allowed.Load())
		}
	})
}

// An estimate above a burst would always be denied: it is the burst.
func TestReducedEstimates(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"tokens": 1001}))
		if !r.Allowed || !r.Reduced() {
			t.Fatalf("%+v, reduced %v", r.Decision, r.Reduced())
		}
		wantLeft(t, l, "team", 60, 0, 3999)
		if err := r.Use("tokens", 1500); err != nil {
			t.Fatal(err)
		}
		if err := r.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, l, "team", 60, 0, 3500)
		if d := must(l.Peek(t.Context(), "team")); d.RetryAfter != 30060*time.Millisecond {
			t.Errorf("after 500 too many of 1000 a minute the next one comes in %v", d.RetryAfter)
		}
		if exact := must(l.Reserve(t.Context(), "other", tokenbucket.Cost{"tokens": 1000})); exact.Reduced() {
			t.Error("a burst is reduced")
		}
	})
}

// A bucket is overdrawn as far as its limit says, and what is used beyond that is an error.
func TestOverdraft(t *testing.T) {
	inBubble(t, tokenbucket.PerMinute(60).Overdraft(30), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		for i, used := range []int64{90, 91, math.MaxInt64} {
			key := string(rune('a' + i))
			r := must(l.Reserve(t.Context(), key, tokenbucket.Cost{"api": 60}))
			if err := r.Use("api", used); err != nil {
				t.Fatal(err)
			}
			if err := r.Settle(t.Context()); errors.Is(err, tokenbucket.ErrOverdraft) != (used > 90) || err != nil && used <= 90 {
				t.Errorf("%d used: %v", used, err)
			}
			if d := must(l.Peek(t.Context(), key)); d.RetryAfter != 31*time.Second {
				t.Errorf("%d used: the next in %v", used, d.RetryAfter)
			}
			time.Sleep(31 * time.Second)
			if d := must(l.Allow(t.Context(), key)); !d.Allowed {
				t.Errorf("%d used: denied after the overdraft: %+v", used, d)
			}
		}
	})
}

func TestReserveRefuses(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		for name, c := range map[string]struct {
			key  string
			cost tokenbucket.Cost
			want error
		}{
			"unit":     {"team", tokenbucket.Cost{"requests": 1, "daily-tokens": 1}, tokenbucket.ErrUnknownUnit},
			"negative": {"team", tokenbucket.Cost{"requests": -1}, tokenbucket.ErrInvalidCost},
			"key":      {"", tokenbucket.Cost{"requests": 1}, tokenbucket.ErrInvalidKey},
		} {
			if r, err := l.Reserve(t.Context(), c.key, c.cost); !errors.Is(err, c.want) || r != nil {
				t.Errorf("%s: %v, %v", name, r, err)
			}
		}
		if n := st.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls", n)
		}
		free := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{}))
		if !free.Allowed {
			t.Error("no cost is denied")
		}
		for unit, want := range map[string]error{"requests": tokenbucket.ErrInvalidCost, "elephants": tokenbucket.ErrUnknownUnit} {
			n := int64(1)
			if want == tokenbucket.ErrInvalidCost {
				n = -1
			}
			if err := free.Use(unit, n); !errors.Is(err, want) {
				t.Errorf("use of %d %s: %v", n, unit, err)
			}
		}
		wantLeft(t, l, "team", 60, 1000, 5000)
	})
}

// A settlement is sent once, also if its caller has left, and whatever becomes of it.
func TestASettlementIsSentOnce(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.Down, storetest.LostReply} {
		inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
			r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"tokens": 300}))
			if err := r.Use("tokens", 100); err != nil {
				t.Fatal(err)
			}
			st.Break(storetest.SettleTokens, fault)
			gone, leave := context.WithCancel(t.Context())
			leave()
			if err := r.Settle(gone); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) != (fault == storetest.LostReply) {
				t.Errorf("%v: %v", fault, err)
			}
			st.Mend(storetest.Any)
			if err := r.Settle(gone); err != nil || st.Calls(storetest.SettleTokens) != 1 {
				t.Errorf("%v: again: %v, %d settlements", fault, err, st.Calls(storetest.SettleTokens))
			}
			if fault == storetest.Down {
				wantLeft(t, l, "team", 60, 700, 4700)
			} else {
				wantLeft(t, l, "team", 60, 900, 4900)
			}
		})
	}
}

// A caller that has left does not keep a settlement from being sent.
func TestSettleForACallerThatLeft(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		gone, leave := context.WithCancel(t.Context())
		r := must(l.Reserve(gone, "team", tokenbucket.Cost{"tokens": 300}))
		leave()
		if err := errors.Join(r.Use("tokens", 400), l.Close(), r.Settle(gone)); err != nil {
			t.Fatal(err)
		}
	})
}

// A store that is silent ends a settlement, whose caller's context does not.
func TestSettleWithASilentStore(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"tokens": 300}))
		st.Break(storetest.SettleTokens, storetest.Hung)
		began := time.Now()
		if err := errors.Join(r.Use("tokens", 100), r.Settle(t.Context())); !errors.Is(err, store.ErrUnconfirmed) || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		st.Mend(storetest.Any)
		if got := left(t, l, "team"); got["daily-tokens"] != 4700 {
			t.Errorf("%v remain, where the estimate should stay", got)
		}
	})
}

// A settlement after a change of plan is at the new rates, and does not bring the old ones back.
func TestSettleAfterAChangeOfPlan(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 2, "tokens": 300}))
		if err := l.SetPlan(tokenbucket.Limits{tokenbucket.PerHour(10_000).Named("tokens"), tokenbucket.PerSecond(5).Named("requests")}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.Use("tokens", 500), r.Settle(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := left(t, l, "team"); got["tokens"] != 9500 || got["requests"] != 3 {
			t.Errorf("%v remain", got)
		}
	})
}

func TestReserveWithoutLimits(t *testing.T) {
	inBubble(t, tokenbucket.Unlimited(), func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"anything": 1 << 40}))
		if !r.Allowed {
			t.Errorf("%+v", r.Decision)
		}
		if err := errors.Join(r.Use("anything", 1<<41), r.Settle(t.Context())); err != nil || st.Calls(storetest.Any) != 0 {
			t.Errorf("%v, %d calls", err, st.Calls(storetest.Any))
		}
	})
}

func TestReservationInAContext(t *testing.T) {
	l, _ := newLimiter(t, llm)
	for _, ctx := range []context.Context{t.Context(), tokenbucket.NewContext(t.Context(), nil)} {
		if r, ok := tokenbucket.FromContext(ctx); ok || r != nil {
			t.Error("found one")
		}
	}
	r := must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1}))
	if got, ok := tokenbucket.FromContext(tokenbucket.NewContext(t.Context(), r)); !ok || got != r {
		t.Error("not found")
	}
}
