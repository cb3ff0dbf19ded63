package tokenbucket_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// leased is what two processes admit together in 5 s, with blocks of 50 and a burst of 100, if they
// are asked 1600 times a second.
func leased(t *testing.T, rate int64) (asked, admitted, calls int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		var (
			wg        sync.WaitGroup
			all, some atomic.Int64
		)
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		for range 2 {
			l := must(tokenbucket.New(st, "api", tokenbucket.PerSecond(rate).Burst(100), tokenbucket.WithLease(50)))
			for range 8 {
				wg.Go(func() {
					for ctx.Err() == nil {
						d, err := l.Allow(t.Context(), "hot")
						if err != nil {
							t.Error(err)
							return
						}
						if all.Add(1); d.Allowed {
							some.Add(1)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
		asked, admitted, calls = all.Load(), some.Load(), int64(st.Calls(storetest.TakeTokens))
	})
	t.Logf("at %d a second %d of %d were admitted, in %d calls", rate, admitted, asked, calls)
	return asked, admitted, calls
}

// Two processes admit no more than the burst, the rate, and a block each, and nearly as much.
func TestLeasedOvershoot(t *testing.T) {
	_, admitted, _ := leased(t, 1000)
	if most, least := int64(100+5*1000+2*50), int64(0.99*(100+5*1000)); admitted > most || admitted < least {
		t.Errorf("%d were admitted, want %d to %d", admitted, least, most)
	}
}

func TestLeasedCalls(t *testing.T) {
	asked, admitted, calls := leased(t, 10_000)
	if admitted < asked*99/100 || calls > asked/10 {
		t.Errorf("%d of %d were admitted, in %d calls", admitted, asked, calls)
	}
}

// A key whose requests are rare is charged one by one: no token is lost.
func TestRareKeysAreNotLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(20), tokenbucket.WithLease(50)))
		for i := range 20 {
			if d := must(l.Allow(t.Context(), "k")); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
			time.Sleep(time.Second)
		}
	})
}

// A hold ends what this process has in advance.
func TestAHoldEndsABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.PerSecond(1000), tokenbucket.WithLease(50)))
		for range 20 {
			must(l.Allow(t.Context(), "k"))
		}
		if err := l.Hold(t.Context(), "k", time.Second); err != nil {
			t.Fatal(err)
		}
		if d := must(l.Allow(t.Context(), "k")); d.Allowed || d.Held != time.Second {
			t.Errorf("%+v", d)
		}
	})
}

// A reservation of one token may come from a block. What it gives back, or uses beyond the token, is
// the store's. An attempt, which has buckets of its own, never comes from one.
func TestReservationsFromABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst, block = 1000, 50
		l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.PerDay(burst), tokenbucket.WithLease(block)))
		leased, used := 0, int64(0)
		for i := range 300 {
			r := must(l.ReserveN(t.Context(), "k", 1))
			if r.Source == tokenbucket.FromLease {
				leased++
			}
			switch i % 3 {
			case 0:
				used++
			case 1:
				if err := r.Use("api", 2); err != nil {
					t.Fatal(err)
				}
				used += 2
			case 2:
				if err := r.Cancel(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := must(l.ReserveN(t.Context(), "k", 1, tokenbucket.AsAttempt(nil))); a.Source == tokenbucket.FromLease {
				t.Fatal("an attempt comes from a block")
			} else if err := a.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if leased < 100 {
			t.Errorf("%d reservations of 300 come from a block", leased)
		}
		d := must(l.Peek(t.Context(), "k"))
		if spent := burst - d.Limits()[0].Remaining; spent < used || spent > used+block {
			t.Errorf("%d tokens were used, and %d are gone", used, spent)
		}
	})
}

// In steady traffic few tokens are lost, at whatever pace, also if a PlanFunc makes the plan anew
// each time.
func TestLeasedLosses(t *testing.T) {
	plan := tokenbucket.PerHour(20_000)
	for name, p := range map[string]tokenbucket.Plan{
		"fixed": plan, "PlanFunc": tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return plan, nil }),
	} {
		for _, gap := range []time.Duration{200 * time.Microsecond, 1300 * time.Microsecond, 5 * time.Millisecond, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				l := must(tokenbucket.New(st, "api", p, tokenbucket.WithLease(1000)))
				const used = 3000
				for range used {
					if d := must(l.Allow(t.Context(), "k")); !d.Allowed {
						t.Fatalf("%s, every %v: %+v", name, gap, d)
					}
					time.Sleep(gap)
				}
				charged := 20_000 - must(l.Peek(t.Context(), "k")).Limits()[0].Remaining + int64(used*gap/(180*time.Millisecond))
				if charged > used+1000 || gap >= 5*time.Millisecond && charged > used*11/10 {
					t.Errorf("%s, every %v: %d of %d charged tokens were used", name, gap, used, charged)
				}
			})
		}
	}
}
