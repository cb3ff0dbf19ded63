package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

var (
	inShadow = tokenbucket.Enforcement{Mode: tokenbucket.Shadow}
	isOff    = tokenbucket.Enforcement{Mode: tokenbucket.Off}
)

func TestModes(t *testing.T) {
	for text, mode := range map[string]tokenbucket.Mode{
		"enforce": tokenbucket.Enforce, "shadow": tokenbucket.Shadow, "off": tokenbucket.Off,
	} {
		var read tokenbucket.Mode
		if err := read.UnmarshalText([]byte(text)); err != nil || read != mode || mode.String() != text || string(must(mode.MarshalText())) != text {
			t.Errorf("%s: %v, %v", text, read, err)
		}
	}
	for _, text := range []string{"", "Off", "on", "shadow ", strings.Repeat("x", 1<<10)} {
		read := tokenbucket.Shadow
		if err := read.UnmarshalText([]byte(text)); !errors.Is(err, tokenbucket.ErrInvalidEnforcement) || read != tokenbucket.Shadow || len(err.Error()) > 150 {
			t.Errorf("%.10q: %v, %v", text, read, err)
		}
	}
	if _, err := tokenbucket.Mode(3).MarshalText(); !errors.Is(err, tokenbucket.ErrInvalidEnforcement) || tokenbucket.Mode(3).String() != "Mode(3)" {
		t.Errorf("%v", err)
	}
}

func TestInvalidEnforcementChangesNothing(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerHour(1))
	if e := l.Enforcement(); e != (tokenbucket.Enforcement{Mode: tokenbucket.Enforce, Share: 1}) {
		t.Errorf("at first it is %+v", e)
	}
	ok(t, l.SetEnforcement(tokenbucket.Enforcement{Share: 0.25}))
	for _, e := range []tokenbucket.Enforcement{
		{Mode: 3}, {Share: -0.1}, {Share: 1.01}, {Share: math.NaN()}, {Share: math.Inf(1)}, {Share: math.Inf(-1)},
		{Mode: tokenbucket.Shadow, Share: 0.5}, {Mode: tokenbucket.Shadow, Share: 1}, {Mode: tokenbucket.Off, Share: math.NaN()},
	} {
		if err := l.SetEnforcement(e); !errors.Is(err, tokenbucket.ErrInvalidEnforcement) {
			t.Errorf("%+v: %v", e, err)
		}
		if e := l.Enforcement(); e != (tokenbucket.Enforcement{Share: 0.25}) || capacities(t, l, "k") != "1" {
			t.Errorf("it has changed to %+v", e)
		}
	}
	for _, e := range []tokenbucket.Enforcement{{}, {Share: 1}, {Share: math.SmallestNonzeroFloat64}, {Share: math.Nextafter(1, 0)}, inShadow, isOff} {
		ok(t, l.SetEnforcement(e))
		ok(t, l.SetEnforcement(l.Enforcement())) // it is one that can be set
	}
	ok(t, l.Close())
	if err := l.SetEnforcement(inShadow); !errors.Is(err, tokenbucket.ErrClosed) || l.Enforcement() != isOff {
		t.Errorf("of a closed limiter: %v, %+v", err, l.Enforcement())
	}
}

// calls are the ways to take tokens of a key. Each asks for one token.
var calls = map[string]func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error){
	"Allow": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return l.Allow(ctx, key)
	},
	"AllowAtMost": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return l.AllowAtMost(ctx, key, 1)
	},
	"Wait": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		err := l.Wait(ctx, key)
		return tokenbucket.Decision{Allowed: err == nil, Shadow: err == nil}, err
	},
	"Reserve": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return reserved(l.Reserve(ctx, key, tokenbucket.Cost{"api": 1}))
	},
	"ReserveN": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return reserved(l.ReserveN(ctx, key, 1))
	},
	"AsAttempt": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return reserved(l.ReserveN(ctx, key, 1, tokenbucket.AsAttempt(nil)))
	},
	"All": func(ctx context.Context, l *tokenbucket.Limiter, key string) (tokenbucket.Decision, error) {
		return tokenbucket.All(ctx, l.Ask(key, 1))
	},
}

func reserved(r *tokenbucket.Reservation, err error) (tokenbucket.Decision, error) {
	if err != nil {
		return tokenbucket.Decision{}, err
	}
	return r.Decision, nil
}

// passed checks a decision that passes in shadow.
func passed(t *testing.T, name string, d tokenbucket.Decision, err error) {
	t.Helper()
	if err != nil || !d.Allowed || !d.Shadow || d.RetryAfter != 0 || d.Pending {
		t.Errorf("%s: %+v, %v", name, d, err)
	}
}

// Whatever a limiter in shadow would deny passes, and is not charged.
func TestShadowDeniesNothing(t *testing.T) {
	plans := map[string]tokenbucket.Plan{
		"limit": tokenbucket.PerDay(1), "limits": tokenbucket.Limits{tokenbucket.PerDay(1).Counts("api"), tokenbucket.PerHour(1).Counts("api")},
		"calendar":  tokenbucket.Monthly(1),
		"PlanFunc":  tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return tokenbucket.PerDay(1), nil }),
		"overrides": tokenbucket.Overrides(tokenbucket.PerDay(5), byKey{"k": tokenbucket.PerDay(1)}),
	}
	for planName, plan := range plans {
		for name, call := range calls {
			name = planName + "/" + name
			l, st := newLimiter(t, plan)
			ok(t, l.SetEnforcement(inShadow))
			if d, err := call(t.Context(), l, "k"); err != nil || !d.Allowed || d.Shadow && !strings.HasSuffix(name, "Wait") {
				t.Errorf("%s: the first: %+v, %v", name, d, err)
			}
			for range 3 {
				d, err := call(t.Context(), l, "k")
				passed(t, name, d, err)
			}
			if d := must(l.Peek(t.Context(), "k")); !d.Allowed || !d.Shadow || d.Enforced() || d.Limits()[0].Remaining != 0 || d.Undecided() != nil {
				t.Errorf("%s: peek: %+v, %+v", name, d, d.Limits())
			}
			if n := st.Calls(storetest.TakeTokens); n != 5 {
				t.Errorf("%s: %d calls", name, n)
			}
			// Nothing but the first was charged.
			ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
			if d := must(l.Peek(t.Context(), "k")); d.Allowed || d.Shadow || !d.Enforced() || d.RetryAfter > 31*24*time.Hour {
				t.Errorf("%s: enforced: %+v", name, d)
			}
		}
	}
}

// What keeps a limiter in shadow from a decision lets requests pass, and says so.
func TestShadowPassesFailures(t *testing.T) {
	errPlan := errors.New("no plan")
	lost := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return nil, errPlan })
	senseless := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return tokenbucket.PerHour(0), nil })
	for name, c := range map[string]struct {
		plan  tokenbucket.Plan
		fault storetest.Fault
		want  error
	}{
		"down":           {tokenbucket.PerDay(1), storetest.Down, store.ErrUnavailable},
		"lost reply":     {tokenbucket.PerDay(1), storetest.LostReply, store.ErrUnconfirmed},
		"lost plan":      {lost, 0, errPlan},
		"senseless plan": {senseless, 0, tokenbucket.ErrInvalidLimit},
		"cached":         {tokenbucket.Cached(lost, time.Hour, 1), 0, errPlan},
	} {
		for callName, call := range calls {
			l, st := newLimiter(t, c.plan)
			ok(t, l.SetEnforcement(inShadow))
			if c.fault != 0 {
				st.Break(storetest.TakeTokens, c.fault)
			}
			d, err := call(t.Context(), l, "k")
			passed(t, name+"/"+callName, d, err)
			if callName != "Wait" && (!errors.Is(d.Undecided(), c.want) || d.Enforced() || len(d.Limits()) > 0) {
				t.Errorf("%s/%s: %v, %+v", name, callName, d.Undecided(), d)
			}
			if _, err := l.Peek(t.Context(), "k"); !errors.Is(err, c.want) {
				t.Errorf("%s: Peek hides the failure: %v", name, err)
			}
			ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
			if d, err := call(t.Context(), l, "k"); !errors.Is(err, c.want) || d.Shadow {
				t.Errorf("%s/%s, enforced: %+v, %v", name, callName, d, err)
			}
		}
	}
}

func TestShadowPassesCosts(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.PerHour(5))
	ok(t, l.SetEnforcement(inShadow))
	ctx := t.Context()
	d, err := l.AllowN(ctx, "k", 6)
	passed(t, "AllowN", d, err)
	if !errors.Is(d.Undecided(), tokenbucket.ErrCostExceedsBurst) {
		t.Errorf("%v", d.Undecided())
	}
	d, err = reserved(l.ReserveN(ctx, "k", 6))
	passed(t, "ReserveN", d, err)
	d, err = tokenbucket.All(ctx, l.Ask("k", 6))
	passed(t, "All", d, err)
	ok(t, l.WaitN(ctx, "k", 6))
	r := must(l.Reserve(ctx, "k", tokenbucket.Cost{"images": 1}))
	passed(t, "Reserve", r.Decision, nil)
	if !errors.Is(r.Undecided(), tokenbucket.ErrUnknownUnit) {
		t.Errorf("%v", r.Undecided())
	}
	if n := st.Calls(storetest.TakeTokens); n != 0 {
		t.Errorf("%d calls", n)
	}
	if d := must(l.AllowAtMost(ctx, "k", 3)); d.Shadow || d.Taken != 3 {
		t.Errorf("%+v", d)
	}
	for range 2 { // of two, and of none
		if d := must(l.AllowAtMost(ctx, "k", 9)); !d.Shadow || !d.Allowed || d.Taken != 9 || d.RetryAfter != 0 {
			t.Errorf("%+v", d)
		}
	}
	if d := must(l.Peek(ctx, "k")); d.Limits()[0].Remaining != 0 {
		t.Errorf("%+v", d.Limits())
	}
}

// The mistakes of a caller are errors in every mode. A caller that has left gets the error of its
// context.
func TestUnenforcedErrors(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, e := range []tokenbucket.Enforcement{inShadow, isOff} {
		l, _ := newLimiter(t, tokenbucket.PerHour(1))
		ok(t, l.SetEnforcement(e))
		for callName, call := range calls {
			for _, key := range []string{"", strings.Repeat("k", 1025)} {
				if _, err := call(t.Context(), l, key); !errors.Is(err, tokenbucket.ErrInvalidKey) {
					t.Errorf("%v: %s with a key of %d bytes: %v", e, callName, len(key), err)
				}
			}
			if _, err := call(gone, l, "k"); (e == inShadow) != errors.Is(err, context.Canceled) {
				t.Errorf("%v: %s of a caller that left: %v", e, callName, err)
			}
		}
		_, errAllow := l.AllowN(t.Context(), "k", -1)
		_, errMost := l.AllowAtMost(t.Context(), "k", 0)
		_, errReserveN := l.ReserveN(t.Context(), "k", -1)
		_, errReserve := l.Reserve(t.Context(), "k", tokenbucket.Cost{"images": -1})
		_, errAll := tokenbucket.All(t.Context(), l.Ask("k", -1))
		errUse := must(l.ReserveN(t.Context(), "k", 1)).Use("api", -1)
		for i, err := range []error{errAllow, errMost, errReserveN, errReserve, errAll, errUse, l.WaitN(t.Context(), "k", -1)} {
			if !errors.Is(err, tokenbucket.ErrInvalidCost) {
				t.Errorf("%v: %d: %v", e, i, err)
			}
		}
		ok(t, l.Close())
		for callName, call := range calls {
			if _, err := call(t.Context(), l, "k"); !errors.Is(err, tokenbucket.ErrClosed) {
				t.Errorf("%v: %s of a closed limiter: %v", e, callName, err)
			}
		}
	}
	// A closed store is a closed limiter.
	st := memstore.New()
	l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1)))
	ok(t, l.SetEnforcement(inShadow))
	ok(t, st.Close())
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, tokenbucket.ErrClosed) {
		t.Errorf("on a closed store: %v", err)
	}
}

// A limiter that is off does not ask the store.
func TestOffAsksNothing(t *testing.T) {
	called := func(context.Context, string) (tokenbucket.Plan, error) {
		t.Error("a PlanFunc was called")
		return tokenbucket.PerHour(1), nil
	}
	for name, plan := range map[string]tokenbucket.Plan{
		"limit": tokenbucket.PerHour(1), "PlanFunc": tokenbucket.PlanFunc(called), "overrides": tokenbucket.Overrides(tokenbucket.PlanFunc(called), nil),
	} {
		st := storetest.NewFaulty(memstore.New())
		l := must(tokenbucket.New(st, "api", plan, tokenbucket.WithCandidate(tokenbucket.PerHour(1))))
		ok(t, l.SetEnforcement(isOff))
		for callName, call := range calls {
			for range 3 {
				if d, err := call(t.Context(), l, "k"); err != nil || !d.Allowed || d.Shadow && callName != "Wait" || d.Enforced() && callName != "Wait" || len(d.Limits()) > 0 {
					t.Errorf("%s/%s: %+v, %v", name, callName, d, err)
				}
			}
		}
		if d := must(l.AllowAtMost(t.Context(), "k", 9)); d.Taken != 9 {
			t.Errorf("%+v", d)
		}
		r := must(l.Reserve(t.Context(), "k", tokenbucket.Cost{"api": 1 << 50, "images": 1}))
		ok(t, r.Use("whatever", 7))
		ok(t, r.Settle(t.Context()))
		if d := must(l.Peek(t.Context(), "k")); d.Enforced() || len(d.Limits()) > 0 {
			t.Errorf("%+v", d)
		}
		ok(t, l.Reset(t.Context(), "k"))
		if err := l.Hold(t.Context(), "k", time.Minute); !errors.Is(err, tokenbucket.ErrNoLimits) {
			t.Error(err)
		}
		if !l.FixedPlan() {
			t.Errorf("%s: it needs a context", name)
		}
		for _, op := range []storetest.Op{storetest.TakeTokens, storetest.SettleTokens, storetest.HoldTokens, storetest.ResetTokens} {
			if n := st.Calls(op); n > 0 {
				t.Errorf("%s: %d calls of %v", name, n, op)
			}
		}
	}
}

// A reservation is settled by the mode of its end if that is off, and otherwise by that of its
// beginning.
func TestReservationsAcrossModes(t *testing.T) {
	ctx := t.Context()
	left := func(l *tokenbucket.Limiter) int64 {
		ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
		return must(l.Peek(ctx, "k")).Limits()[0].Remaining
	}
	l, st := newLimiter(t, tokenbucket.PerDay(10))
	r := must(l.ReserveN(ctx, "k", 4))
	ok(t, l.SetEnforcement(isOff))
	ok(t, r.Cancel(ctx))
	if n := st.Calls(storetest.SettleTokens); n != 0 || left(l) != 6 {
		t.Errorf("%d calls while off, %d left", n, left(l))
	}
	r = must(l.ReserveN(ctx, "k", 6))
	ok(t, l.SetEnforcement(inShadow))
	ok(t, r.Cancel(ctx))
	if left(l) != 6 {
		t.Errorf("%d left", left(l))
	}
	ok(t, l.SetEnforcement(inShadow))
	charged, denied := must(l.ReserveN(ctx, "k", 6)), must(l.ReserveN(ctx, "k", 1))
	passed(t, "denied", denied.Decision, nil)
	ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
	before := st.Calls(storetest.SettleTokens)
	ok(t, denied.Use("api", 5))
	ok(t, denied.Use("no such unit", 5))
	ok(t, denied.Settle(ctx))
	ok(t, denied.Cancel(ctx))
	if n := st.Calls(storetest.SettleTokens); n != before {
		t.Errorf("a denied reservation of a shadow was settled")
	}
	ok(t, charged.Use("api", 1))
	ok(t, charged.Settle(ctx))
	if left(l) != 5 {
		t.Errorf("%d left", left(l))
	}
}

// Nothing holds a key in shadow: neither a call, nor attempts that fail.
func TestShadowHoldsNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		escalation := tokenbucket.Escalate(time.Minute, 2, time.Hour)
		l, st := newLimiter(t, tokenbucket.PerHour(2))
		ok(t, l.SetEnforcement(inShadow))
		if err := l.Hold(ctx, "k", time.Hour); !errors.Is(err, tokenbucket.ErrNoLimits) {
			t.Error(err)
		}
		if _, err := l.HoldAgain(ctx, "k", escalation); !errors.Is(err, tokenbucket.ErrNoLimits) {
			t.Error(err)
		}
		var open []*tokenbucket.Reservation
		for range 5 {
			r := must(l.ReserveN(ctx, "k", 1, tokenbucket.AsAttempt(&escalation)))
			if d, err := r.HoldLater(ctx); d != 0 || err != nil || !r.Allowed {
				t.Errorf("%+v: %v, %v", r.Decision, d, err)
			}
			open = append(open, r)
		}
		for _, r := range open {
			ok(t, r.Settle(ctx))
		}
		if n := st.Calls(storetest.HoldTokens); n > 0 {
			t.Errorf("held %d times", n)
		}
		// One that was refused while the limit was enforced does not hold it later either.
		ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
		for range 2 {
			open = append(open, must(l.ReserveN(ctx, "other", 1, tokenbucket.AsAttempt(&escalation))))
		}
		refused := must(l.ReserveN(ctx, "other", 1, tokenbucket.AsAttempt(&escalation)))
		if d, err := refused.HoldLater(ctx); !refused.Pending || d != 0 || err != nil {
			t.Errorf("%+v: %v, %v", refused.Decision, d, err)
		}
		ok(t, l.SetEnforcement(inShadow))
		for _, r := range open[5:] {
			ok(t, r.Settle(ctx))
		}
		// A hold from before lets pass, and shows.
		ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
		ok(t, l.Hold(ctx, "held", time.Hour))
		ok(t, l.SetEnforcement(inShadow))
		d, err := l.Allow(ctx, "held")
		passed(t, "held", d, err)
		if d.Held != time.Hour || st.Calls(storetest.HoldTokens) != 1 {
			t.Errorf("held for %v, %d times", d.Held, st.Calls(storetest.HoldTokens))
		}
	})
}

// Waiters go when the limit is no longer enforced, and new ones do not queue behind them.
func TestUnenforcedWaitersDoNotWait(t *testing.T) {
	for _, e := range []tokenbucket.Enforcement{inShadow, isOff} {
		synctest.Test(t, func(t *testing.T) {
			l, st := newLimiter(t, tokenbucket.PerDay(1))
			_ = must(l.Allow(t.Context(), "k"))
			began := time.Now()
			var waiters sync.WaitGroup
			for range 20 {
				waiters.Go(func() { ok(t, l.Wait(t.Context(), "k")) })
			}
			synctest.Wait()
			soon, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Wait(soon, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			ok(t, l.SetEnforcement(e))
			ok(t, l.Wait(soon, "k"))
			waiters.Wait()
			if d := time.Since(began); d != 0 {
				t.Errorf("they waited for %v", d)
			}
			// While one is served, by a store that does not answer, others do not queue.
			ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
			block := make(chan struct{})
			st.Hook(storetest.On(storetest.TakeTokens, func() error { <-block; return nil }), nil)
			waiters.Go(func() { ok(t, l.Wait(t.Context(), "k")) })
			synctest.Wait()
			ok(t, l.SetEnforcement(isOff))
			ok(t, l.Wait(t.Context(), "k"))
			close(block)
			waiters.Wait()
		})
	}
}

// enforced returns the keys of a limiter that are enforced.
func enforced(l *tokenbucket.Limiter, n int) map[string]bool {
	keys := map[string]bool{}
	for i := range n {
		if key := fmt.Sprintf("key-%d", i); l.Enforces(key) {
			keys[key] = true
		}
	}
	return keys
}

// The same keys are enforced in every process and after a restart. A larger share keeps those of a
// smaller one.
func TestShareOfKeys(t *testing.T) {
	const n = 100_000
	var last map[string]bool
	for _, share := range []float64{0.001, 0.1, 0.25, 0.5, 0.9} {
		l, _ := newLimiter(t, tokenbucket.PerHour(1))
		ok(t, l.SetEnforcement(tokenbucket.Enforcement{Share: share}))
		keys := enforced(l, n)
		if got := float64(len(keys)) / n; math.Abs(got-share) > 0.005 {
			t.Errorf("a share of %v has %v of the keys", share, got)
		}
		for key := range last {
			if !keys[key] {
				t.Fatalf("a share of %v does not have %s", share, key)
			}
		}
		last = keys
		for _, key := range []string{"", strings.Repeat("k", 1025)} {
			if l.Enforces(key) {
				t.Errorf("a share of %v has a key of %d bytes", share, len(key))
			}
		}
	}
	// Another limiter's are others.
	l := must(tokenbucket.New(memstore.New(), "other", tokenbucket.PerHour(1)))
	ok(t, l.SetEnforcement(tokenbucket.Enforcement{Share: 0.5}))
	both := 0
	for key := range enforced(l, n) {
		if last[key] {
			both++
		}
	}
	if got := float64(both) / n; math.Abs(got-0.45) > 0.005 {
		t.Errorf("two limiters share %v of the keys", got)
	}
	ok(t, l.SetEnforcement(tokenbucket.Enforcement{}))
	if !l.Enforces("") || !l.Enforces("k") {
		t.Error("not all keys are enforced")
	}
	ok(t, l.SetEnforcement(inShadow))
	if l.Enforces("") || l.Enforces("k") {
		t.Error("a key is enforced in shadow")
	}
}

// The hash must never change: the keys that are enforced would be others after an update.
func TestShareIsStable(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerHour(1))
	ok(t, l.SetEnforcement(tokenbucket.Enforcement{Share: 0.1}))
	var keys []string
	for i := range 60 {
		if key := fmt.Sprintf("key-%d", i); l.Enforces(key) {
			keys = append(keys, key)
		}
	}
	const want = "key-4 key-7 key-14 key-15 key-28 key-43 key-44 key-59"
	if got := strings.Join(keys, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Keys on both sides of a share are decided alike, and only some are denied.
func TestShareDecides(t *testing.T) {
	for name, plan := range map[string]tokenbucket.Plan{
		"limit": tokenbucket.PerDay(1),
		"PlanFunc": tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
			if strings.HasPrefix(key, "lost") {
				return nil, errors.New("no plan")
			}
			return tokenbucket.PerDay(1), nil
		}),
		"overrides": tokenbucket.Overrides(tokenbucket.PerDay(5), byKey{"key-*": tokenbucket.PerDay(1)}),
	} {
		l, st := newLimiter(t, plan)
		ok(t, l.SetEnforcement(tokenbucket.Enforcement{Share: 0.5}))
		for i := range 50 {
			key := fmt.Sprintf("key-%d", i)
			first, second := must(l.Allow(t.Context(), key)), must(l.Allow(t.Context(), key))
			if enforced := l.Enforces(key); !first.Allowed || first.Shadow || first.Enforced() != enforced || second.Enforced() != enforced ||
				second.Allowed == enforced || second.Shadow == enforced {
				t.Errorf("%s: %s: %+v", name, key, second)
			}
			if name == "PlanFunc" {
				d, err := l.Allow(t.Context(), fmt.Sprint("lost", i))
				if enforced := l.Enforces(fmt.Sprint("lost", i)); enforced != (err != nil) || d.Shadow == enforced {
					t.Errorf("%+v, %v", d, err)
				}
			}
		}
		if st.Calls(storetest.TakeTokens) != 100 {
			t.Errorf("%s: %d calls", name, st.Calls(storetest.TakeTokens))
		}
	}
}

// Of several limiters only enforced ones deny, and a denial charges none.
func TestAllInModes(t *testing.T) {
	ctx := t.Context()
	st := storetest.NewFaulty(memstore.New())
	limiter := func(name string, e tokenbucket.Enforcement, n int64) *tokenbucket.Limiter {
		l := must(tokenbucket.New(st, name, tokenbucket.PerDay(n)))
		ok(t, l.SetEnforcement(e))
		return l
	}
	left := func(l *tokenbucket.Limiter) int64 { return must(l.Peek(ctx, "k")).Limits()[0].Remaining }
	a, b, c := limiter("a", tokenbucket.Enforcement{}, 3), limiter("b", inShadow, 1), limiter("c", isOff, 1)
	all := func() (tokenbucket.Decision, error) {
		return tokenbucket.All(ctx, c.Ask("k", 1), b.Ask("k", 1), a.Ask("k", 1), c.Ask("other", 9))
	}
	names := func(d tokenbucket.Decision) (names string) {
		for _, l := range d.Limits() {
			names += l.Name
		}
		return names
	}
	if d, err := all(); err != nil || !d.Allowed || d.Shadow || !d.Enforced() || names(d) != "a" || left(a) != 2 || left(b) != 0 {
		t.Errorf("%+v, %v, limits of %q, %d and %d left", d, err, names(d), left(a), left(b))
	}
	if d, err := all(); err != nil || !d.Allowed || !d.Shadow || !d.Enforced() || left(a) != 1 || left(b) != 0 {
		t.Errorf("the shadow denies: %+v, %v, %d and %d left", d, err, left(a), left(b))
	}
	ok(t, b.Reset(ctx, "k"))
	if d, err := tokenbucket.All(ctx, b.Ask("k", 1), a.Ask("k", 2)); err != nil || d.Allowed || d.Shadow || d.RetryAfter == 0 || left(a) != 1 || left(b) != 1 {
		t.Errorf("one that is enforced denies: %+v, %v, %d and %d left", d, err, left(a), left(b))
	}
	if d, err := tokenbucket.All(ctx, a.Ask("k", 1), b.Ask("k", 5)); err != nil || !d.Allowed || !d.Shadow || left(a) != 0 || left(b) != 1 {
		t.Errorf("a cost above the shadow's burst: %+v, %v", d, err)
	}
	if d, err := tokenbucket.All(ctx, c.Ask("k", 1), c.Ask("l", 1)); err != nil || !d.Allowed || d.Enforced() || d.Shadow {
		t.Errorf("all off: %+v, %v", d, err)
	}
	if d, err := tokenbucket.All(ctx, b.Ask("k", 1), b.Ask("l", 1)); err != nil || !d.Allowed || d.Enforced() || d.Shadow || names(d) != "bb" {
		t.Errorf("all in shadow: %+v, %v", d, err)
	}
	d, err := tokenbucket.All(ctx, b.Ask("k", 1), b.Ask("m", 1))
	passed(t, "all in shadow", d, err)
	if remaining := must(b.Peek(ctx, "m")).Limits()[0].Remaining; remaining != 1 {
		t.Errorf("a shadow has charged a part")
	}
	ok(t, a.Reset(ctx, "k"))
	n := 0
	st.Hook(storetest.On(storetest.TakeTokens, func() error {
		if n++; n == 2 { // of the shadow
			return store.ErrUnavailable
		}
		return nil
	}), nil)
	if d, err := tokenbucket.All(ctx, b.Ask("k", 1), a.Ask("k", 1)); err != nil || !d.Allowed || !d.Shadow || n != 2 {
		t.Errorf("the shadow fails: %+v, %v, %d calls", d, err, n)
	}
	other := must(tokenbucket.New(memstore.New(), "d", tokenbucket.PerDay(9)))
	if _, err := tokenbucket.All(ctx, other.Ask("k", 1), a.Ask("k", 1)); !errors.Is(err, store.ErrManySlots) {
		t.Errorf("two stores: %v", err)
	}
	ok(t, other.SetEnforcement(inShadow))
	if d, err := tokenbucket.All(ctx, other.Ask("k", 1), a.Ask("k", 1)); err != nil || !d.Allowed || d.Shadow {
		t.Errorf("two stores, one in shadow: %+v, %v", d, err)
	}
}

// The denials of a shadow are neither lost nor counted as denials.
func TestCountsOfShadow(t *testing.T) {
	st := memstore.New()
	defer namesake.Watch(st)()
	l := must(tokenbucket.New(st, "api", tokenbucket.PerDay(1)))
	ok(t, l.SetEnforcement(inShadow))
	for range 3 {
		_ = must(l.Allow(t.Context(), "k"))
	}
	_ = must(l.AllowN(t.Context(), "k", 5))
	_ = must(tokenbucket.All(t.Context(), l.Ask("k", 1), l.Ask("l", 1)))
	r, _ := namesake.Members(st)[0].Counter.Read()
	if want := [...]uint64{6, 0, 0, 0, 0, 0, 5}; r.Totals != want {
		t.Errorf("%v, want %v", r.Totals, want)
	}
	if keys := deniedKeys(l); keys != "" {
		t.Errorf("denied keys %s", keys)
	}
}

// Operators see which limits are not enforced.
func TestSettingsOfModes(t *testing.T) {
	st := memstore.New()
	parent := must(tokenbucket.New(st, "teams", tokenbucket.PerHour(9)))
	l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(9), tokenbucket.Within(parent)))
	for want, e := range map[string]tokenbucket.Enforcement{
		"9/1h within teams": {}, "9/1h (shadow) within teams": inShadow, "9/1h (off) within teams": isOff,
		"9/1h (share=0.125) within teams": {Share: 0.125},
	} {
		ok(t, l.SetEnforcement(e))
		if got := inspect.Mechanisms(st)[0].Settings; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A decision in shadow or off allocates no more than one that is enforced.
func TestModesAllocate(t *testing.T) {
	for _, e := range []tokenbucket.Enforcement{{}, inShadow, isOff, {Share: 0.5}} {
		l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1)))
		ok(t, l.SetEnforcement(e))
		ctx := t.Context()
		if n := testing.AllocsPerRun(1000, func() { _, _ = l.Allow(ctx, "k") }); n > 0 {
			t.Errorf("%+v: %v allocations", e, n)
		}
	}
}

func BenchmarkModes(b *testing.B) {
	for _, e := range []tokenbucket.Enforcement{{}, inShadow, isOff, {Share: 0.5}} {
		b.Run(fmt.Sprint(e.Mode, e.Share), func(b *testing.B) {
			l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100).Burst(1e8)))
			ok(b, l.SetEnforcement(e))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(b.Context(), "user-00000042")
			}
		})
	}
}
