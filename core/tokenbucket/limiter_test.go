package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newLimiter(t testing.TB, plan tokenbucket.Plan) (*tokenbucket.Limiter, *storetest.Faulty) {
	t.Helper()
	st := storetest.NewFaulty(memstore.New())
	return must(tokenbucket.New(st, "api", plan)), st
}

func TestNewRefuses(t *testing.T) {
	plan := tokenbucket.PerSecond(1)
	for _, st := range []store.Buckets{nil, (*redisstore.Store)(nil), (*memstore.Store)(nil)} {
		if _, err := tokenbucket.New(st, "api", plan); err == nil || !strings.Contains(err.Error(), "nil store") {
			t.Errorf("%T: %v", st, err)
		}
	}
	for _, name := range []string{"", " x", "a\x00", strings.Repeat("n", 129)} {
		if _, err := tokenbucket.New(memstore.New(), name, plan); err == nil {
			t.Errorf("took the name %q", name)
		}
	}
	if l, err := tokenbucket.New(memstore.New(), "api", plan); err != nil || l.Name() != "api" {
		t.Errorf("%v, %v", l, err)
	}
}

func TestFirstCallReports99Of100(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerMinute(100))
	d, err := l.Allow(t.Context(), "k")
	if err != nil || !d.Allowed || d.Limits()[0].Remaining != 99 || d.Limits()[0].Name != "api" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestNamesOfLimits(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.Limits{
		tokenbucket.PerSecond(5), tokenbucket.PerHour(50).Named("hourly"), tokenbucket.Per(9, 90*time.Minute),
	})
	d := must(l.Allow(t.Context(), "k"))
	var names []string
	for _, limit := range d.Limits() {
		names = append(names, limit.Name)
	}
	if got := strings.Join(names, " "); got != "api-1s hourly api-1h30m" {
		t.Errorf("limits are called %s", got)
	}
}

func TestInvalidRequestsAreNotSent(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.Limits{tokenbucket.PerSecond(10), tokenbucket.PerHour(5).Named("hourly")})
	var tooMuch *tokenbucket.CostError
	if _, err := l.AllowN(t.Context(), "k", 6); !errors.As(err, &tooMuch) || !errors.Is(err, tokenbucket.ErrCostExceedsBurst) ||
		*tooMuch != (tokenbucket.CostError{Limit: "hourly", Cost: 6, Burst: 5}) {
		t.Errorf("a cost above a burst: %v", err)
	}
	if _, err := l.AllowN(t.Context(), "k", -1); !errors.Is(err, tokenbucket.ErrInvalidCost) {
		t.Errorf("a negative cost: %v", err)
	}
	for _, key := range []string{"", strings.Repeat("k", 1025)} {
		if _, err := l.Allow(t.Context(), key); !errors.Is(err, tokenbucket.ErrInvalidKey) {
			t.Errorf("Allow with a key of %d bytes: %v", len(key), err)
		}
		if err := l.Reset(t.Context(), key); !errors.Is(err, tokenbucket.ErrInvalidKey) {
			t.Errorf("Reset with a key of %d bytes: %v", len(key), err)
		}
	}
	if n := st.Calls(storetest.Any); n != 0 {
		t.Errorf("the store was called %d times", n)
	}
}

func TestErrorsOfTheStore(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.PerHour(2))
	st.BreakNext(storetest.TakeTokens, storetest.LostReply, 1)
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("a lost reply: %v", err)
	}
	if n := st.Calls(storetest.TakeTokens); n != 1 {
		t.Errorf("the charge was sent %d times", n)
	}
	st.BreakNext(storetest.TakeTokens, storetest.Down, 1)
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("a store that is down: %v", err)
	}
}

func TestPlanPerKey(t *testing.T) {
	boom := errors.New("boom")
	l, _ := newLimiter(t, tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		switch key {
		case "gold":
			return tokenbucket.PerMinute(1000), nil
		case "both":
			return tokenbucket.Limits{tokenbucket.PerMinute(10), tokenbucket.PerDay(20)}, nil
		case "none":
			return nil, nil
		case "bad":
			return tokenbucket.PerMinute(0), nil
		case "nested":
			return tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return nil, nil }), nil
		}
		return nil, boom
	}))
	for key, limits := range map[string]int{"gold": 1, "both": 2} {
		if d, err := l.Allow(t.Context(), key); err != nil || !d.Allowed || len(d.Limits()) != limits {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	for key, want := range map[string]error{
		"none": tokenbucket.ErrInvalidLimit, "bad": tokenbucket.ErrInvalidLimit, "nested": tokenbucket.ErrInvalidLimit, "other": boom,
	} {
		if _, err := l.Allow(t.Context(), key); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", key, err, want)
		}
	}
}

func TestSetPlan(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerHour(10))
	if err := l.SetPlan(tokenbucket.PerHour(0)); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
		t.Errorf("a bad plan: %v", err)
	}
	if d, _ := l.AllowN(t.Context(), "k", 10); !d.Allowed {
		t.Error("the refused plan is used")
	}
	if err := l.SetPlan(tokenbucket.PerHour(25)); err != nil {
		t.Fatal(err)
	}
	if d, _ := l.Allow(t.Context(), "k"); !d.Allowed || d.Limits()[0].Capacity != 25 {
		t.Errorf("%+v", d)
	}
}

// Tokens that were used stay used, whatever plan comes after them.
func TestUsedTokensStayUsed(t *testing.T) {
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		before tokenbucket.Plan
		used   int64
		after  tokenbucket.Plan
		left   []int64
	}{
		"up":           {tokenbucket.PerDay(20), 20, tokenbucket.PerDay(100_000), []int64{99_980}},
		"down":         {tokenbucket.PerDay(100_000), 15, tokenbucket.PerDay(20), []int64{5}},
		"far down":     {tokenbucket.PerDay(100_000), 5000, tokenbucket.PerDay(20), []int64{0}},
		"period":       {tokenbucket.PerDay(20), 15, tokenbucket.PerHour(40), []int64{25}},
		"another":      {tokenbucket.PerDay(20), 15, tokenbucket.Limits{tokenbucket.PerDay(20), tokenbucket.PerHour(10)}, []int64{5, 10}},
		"another less": {tokenbucket.Limits{tokenbucket.PerDay(20), tokenbucket.PerHour(10)}, 5, tokenbucket.PerDay(20), []int64{15}},
		"named":        {tokenbucket.Limits{tokenbucket.PerHour(10).Named("a"), tokenbucket.PerDay(20).Named("b")}, 5, tokenbucket.PerDay(30).Named("b"), []int64{25}},
		"renamed":      {tokenbucket.PerDay(20), 15, tokenbucket.PerDay(20).Named("b"), []int64{20}},
		"reset":        {tokenbucket.PerDay(20), 15, tokenbucket.PerDay(30).ResetOnChange(), []int64{30}},
		"no reset":     {tokenbucket.PerDay(20).ResetOnChange(), 15, tokenbucket.Per(20, day).ResetOnChange(), []int64{5}},
		"burst":        {tokenbucket.PerDay(20), 15, tokenbucket.PerDay(20).Burst(18), []int64{3}},
		"calendar":     {tokenbucket.PerHour(20).Named("x"), 15, tokenbucket.Daily(20).Named("x"), []int64{20}},
		"none":         {tokenbucket.PerDay(20), 15, tokenbucket.Unlimited(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.before, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
				if d := must(l.AllowN(t.Context(), "k", c.used)); !d.Allowed {
					t.Fatalf("%+v", d)
				}
				if err := l.SetPlan(c.after); err != nil {
					t.Fatal(err)
				}
				for i, s := range must(l.Peek(t.Context(), "k")).Limits() {
					if s.Remaining != c.left[i] {
						t.Errorf("%d of %q remain, want %d", s.Remaining, s.Name, c.left[i])
					}
				}
			})
		})
	}
}

func TestAllowAtMost(t *testing.T) {
	inBubble(t, tokenbucket.Limits{tokenbucket.PerMinute(10).Named("a"), tokenbucket.PerDay(100).Named("b")},
		func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
			for _, c := range []struct{ n, taken int64 }{{4, 4}, {20, 6}, {20, 0}} {
				if d := must(l.AllowAtMost(t.Context(), "k", c.n)); d.Taken != c.taken || d.Allowed != (c.taken > 0) || d.Allowed != (d.RetryAfter == 0) {
					t.Errorf("%d at most: %+v", c.n, d)
				}
			}
			if d := must(l.Peek(t.Context(), "k")); d.Limits()[1].Remaining != 90 {
				t.Errorf("%+v", d.Limits())
			}
			for _, n := range []int64{0, -1} {
				if _, err := l.AllowAtMost(t.Context(), "k", n); !errors.Is(err, tokenbucket.ErrInvalidCost) {
					t.Errorf("%d: %v", n, err)
				}
			}
			if err := l.SetPlan(tokenbucket.Unlimited()); err != nil {
				t.Fatal(err)
			}
			if d := must(l.AllowAtMost(t.Context(), "k", 1<<40)); d.Taken != 1<<40 {
				t.Errorf("%+v", d)
			}
		})
}

// What takes x/time/rate's waiters takes a key of a limiter.
func TestKeyWaiter(t *testing.T) {
	inBubble(t, tokenbucket.PerSecond(1), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		var waiter interface {
			Wait(ctx context.Context) error
			WaitN(ctx context.Context, n int) error
		} = l.Key("psp")
		began := time.Now()
		if err := errors.Join(waiter.Wait(t.Context()), waiter.WaitN(t.Context(), 1)); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if d := must(l.Peek(t.Context(), "psp")); d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// A hundred requests a minute, at most twenty of them at once.
func ExampleLimiter_Allow() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100).Burst(20))
	if err != nil {
		panic(err)
	}
	d, err := limiter.Allow(context.Background(), "tenant-7")
	fmt.Println(d.Allowed, d.Limits()[0].Remaining, err)
	// Output: true 19 <nil>
}

// Two limits on one key: a denial by one of them costs no token of the other.
func ExampleLimits() {
	limiter, err := tokenbucket.New(memstore.New(), "mail", tokenbucket.Limits{
		tokenbucket.PerSecond(10).Named("burst"),
		tokenbucket.PerDay(3).Named("daily"),
	})
	if err != nil {
		panic(err)
	}
	for range 4 {
		d, _ := limiter.Allow(context.Background(), "alice")
		fmt.Println(d.Allowed, d.Limits()[0].Remaining, d.Limits()[1].Remaining)
	}
	// Output:
	// true 9 2
	// true 8 1
	// true 7 0
	// false 7 0
}

// Tiers: each customer's own limit.
func ExamplePlanFunc() {
	tiers := map[string]tokenbucket.Plan{"gold": tokenbucket.PerSecond(100), "free": tokenbucket.PerSecond(1)}
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PlanFunc(
		func(_ context.Context, customer string) (tokenbucket.Plan, error) {
			if plan, ok := tiers[customer]; ok {
				return plan, nil
			}
			return tiers["free"], nil
		}))
	if err != nil {
		panic(err)
	}
	for _, customer := range []string{"gold", "anyone"} {
		d, _ := limiter.Allow(context.Background(), customer)
		fmt.Println(customer, d.Limits()[0].Capacity)
	}
	// Output:
	// gold 100
	// anyone 1
}

// A PlanFunc's limits are compiled for every decision: the limit, its meter, its charge and their
// slice.
func TestAllocationsOfAPlanFunc(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	l, err := tokenbucket.New(st, "api", tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
		return tokenbucket.PerSecond(1_000_000_000), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = l.Allow(t.Context(), "k") }); n > 4 {
		t.Errorf("%v allocations", n)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// An operator reads in the error which call was given what.
func TestInvalidCostText(t *testing.T) {
	ctx := t.Context()
	l, _ := newLimiter(t, tokenbucket.PerMinute(5).Named("requests"))
	first := func(_ any, err error) error { return err }
	reservation := must(l.ReserveN(ctx, "k", 1))
	for want, err := range map[string]error{
		"AllowN of -1 tokens, where 0 is the least":     first(l.AllowN(ctx, "k", -1)),
		"AllowAtMost of 0 tokens, where 1 is the least": first(l.AllowAtMost(ctx, "k", 0)),
		"WaitN of -2 tokens, where 0 is the least":      l.WaitN(ctx, "k", -2),
		"Ask of -3 tokens, where 0 is the least":        first(tokenbucket.All(ctx, l.Ask("k", -3))),
		"Reserve of -4 tokens, where 0 is the least":    first(l.Reserve(ctx, "k", tokenbucket.Cost{"requests": -4})),
		"Reserve of -5 tokens, where 0 is the least":    first(l.Reserve(ctx, "k", tokenbucket.Cost{"elephants": -5})),
		"ReserveN of -6 tokens, where 0 is the least":   first(l.ReserveN(ctx, "k", -6)),
		"Use of -7 tokens, where 0 is the least":        reservation.Use("requests", -7),
	} {
		if !errors.Is(err, tokenbucket.ErrInvalidCost) || err.Error() != "tokenbucket: invalid cost: "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
