package semaphore_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

var allTiers = []semaphore.Tier{semaphore.Critical, semaphore.Normal, semaphore.Low, semaphore.Background}

func TestWhatTiersLeaveToOthers(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	for capacity, want := range map[int][]int{
		100: {0, 10, 30, 50}, 1000: {0, 100, 300, 500}, 10: {0, 1, 3, 5}, 20: {0, 2, 6, 10}, 7: {0, 0, 2, 3},
		5: {0, 0, 1, 2}, 3: {0, 0, 0, 1}, 2: {0, 0, 0, 1}, 1: {0, 0, 0, 0}, // shares that round to nothing
	} {
		s := newSemaphore(t, st, capacity, semaphore.WithReserve(capacity-1)) // which a tier replaces
		for _, tier := range allTiers {
			if got := leaves(t, s.Tier(tier)); got != want[tier] {
				t.Errorf("%v leaves %d of %d, want %d", tier, got, capacity, want[tier])
			}
		}
		for _, unknown := range []semaphore.Tier{semaphore.Background + 1, 100, math.MaxUint8} {
			if got := leaves(t, s.Tier(unknown)); got != want[semaphore.Background] || unknown.String() != "background" {
				t.Errorf("the unknown tier %v leaves %d of %d", unknown, got, capacity)
			}
		}
	}
}

func TestNamesOfTiers(t *testing.T) {
	for i, want := range []string{"critical", "normal", "low", "background"} {
		if got := fmt.Sprint(allTiers[i]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A variant of a tier keeps the tier, and another reserve ends it.
func TestVariantsOfATier(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	low := newSemaphore(t, st, 10).Tier(semaphore.Low)
	for _, c := range []struct {
		s    *semaphore.Semaphore
		want int
	}{
		{must(low.With(semaphore.WithMaxWaiting(1))), 3}, {low.Tier(semaphore.Critical), 0}, {low.Tier(semaphore.Background), 5},
		{must(low.With(semaphore.WithReserve(1))), 1}, {must(low.With(semaphore.WithReserveShare(0.8))), 8},
		{must(low.With(semaphore.WithReserve(8))).Tier(semaphore.Low), 3},
	} {
		if got := leaves(t, c.s); got != c.want {
			t.Errorf("it leaves %d, want %d", got, c.want)
		}
	}
}

func TestTierSharesOutOfTheirRange(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 100)
	low := s.Tier(semaphore.Low)
	nan := math.NaN()
	for _, shares := range []semaphore.TierShares{
		{}, {1, 1, 0}, {1, 1, -0.1}, {1.1, 0.5, 0.5}, {0.5, 0.6, 0.4}, {0.9, 0.4, 0.5}, {nan, 0.5, 0.5}, {0.9, nan, 0.5}, {0.9, 0.5, nan},
		{math.Inf(1), 0.5, 0.5},
	} {
		if err := s.SetTierShares(shares); err == nil {
			t.Errorf("%+v is accepted", shares)
		}
		if got := leaves(t, low); got != 30 {
			t.Fatalf("after %+v a tier leaves %d", shares, got)
		}
	}
	for _, shares := range []semaphore.TierShares{{1, 1, 1}, {0.5, 0.5, 0.5}, {1, 1, 1e-9}, {0.9, 0.7, 0.5}} {
		ok(t, low.SetTierShares(shares)) // of any variant, for all
		for tier, share := range []float64{1, shares.Normal, shares.Low, shares.Background} {
			if got, want := leaves(t, s.Tier(semaphore.Tier(tier))), min(int(100*(1-share)+0.5), 99); got != want {
				t.Errorf("with %+v, tier %d leaves %d, want %d", shares, tier, got, want)
			}
		}
	}
}

// Waiting requests use new shares, and stand where they stood in their tier.
func TestTierSharesChangeWhileRequestsWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 10)
		low, background := s.Tier(semaphore.Low), s.Tier(semaphore.Background)
		held := mustAcquire(t, s, 7)
		calls := []*pending{start(t.Context(), background, 1), start(t.Context(), low, 1), start(t.Context(), low, 2), start(t.Context(), low, 7)}
		wantGot(t, calls)
		ok(t, s.SetTierShares(semaphore.TierShares{Normal: 1, Low: 0.8, Background: 0.1}))
		wantGot(t, calls, 1)
		ok(t, s.SetTierShares(semaphore.TierShares{Normal: 0.6, Low: 0.6, Background: 0.6}))
		if !calls[3].returned() || !errors.Is(calls[3].err, semaphore.ErrInvalidWeight) {
			t.Errorf("7 of 6: %v", calls[3].err)
		}
		calls = calls[:3]
		mustRelease(t, calls[1].permit, held)
		wantGot(t, calls, 0, 1, 2)
		mustRelease(t, calls[0].permit, calls[2].permit)
		wantState(t, s, 0, 0)
	})
}

// Concurrent callers of all tiers, whose capacity and shares change: no tier ever holds more than
// its largest part, each gets permits, and nothing is left.
func TestTiersInAStorm(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 20)
	var (
		wg     sync.WaitGroup
		inUse  [4]atomic.Int64
		grants [4]atomic.Int64
		limits = []int64{20, 18, 14, 10} // with the largest capacity and shares
	)
	for _, tier := range slices.Repeat(allTiers, 8) {
		wg.Go(func() {
			variant := s.Tier(tier)
			for range 300 {
				p, err := variant.AcquireN(t.Context(), "k", 1+rand.IntN(2))
				if errors.Is(err, semaphore.ErrInvalidWeight) {
					continue // the tier has one
				}
				if err != nil {
					t.Errorf("AcquireN: %v", err)
					return
				}
				grants[tier].Add(1)
				if used := inUse[tier].Add(int64(p.Weight())); used > limits[tier] {
					t.Errorf("%v has %d", tier, used)
				}
				inUse[tier].Add(-int64(p.Weight()))
				mustRelease(t, p)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			ok(t, s.SetCapacity(5+rand.IntN(16)))
			low := 0.2 + 0.5*rand.Float64()
			ok(t, s.SetTierShares(semaphore.TierShares{Normal: 0.9, Low: low, Background: min(low, 0.5)}))
			time.Sleep(time.Millisecond)
		}
		ok(t, s.SetCapacity(20))
		ok(t, s.SetTierShares(semaphore.TierShares{Normal: 0.9, Low: 0.7, Background: 0.5}))
	}()
	wg.Wait()
	<-done
	for tier := range grants {
		if grants[tier].Load() == 0 {
			t.Errorf("%v got nothing", semaphore.Tier(tier))
		}
	}
	mustRelease(t, must(s.AcquireN(t.Context(), "k", 20)))
	for state, err := range s.List(t.Context()) {
		t.Errorf("%+v, %v is left", state, err)
	}
}
