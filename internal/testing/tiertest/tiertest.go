// Package tiertest checks the tiers of a semaphore that several processes share, on any store, and
// the samples that a middleware reports to an adaptive capacity.
package tiertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

const (
	processes = 4
	capacity  = 40
	within    = time.Minute
)

// parts are what each tier may use of the capacity.
var parts = [...]int64{semaphore.Critical: 40, semaphore.Normal: 36, semaphore.Low: 28, semaphore.Background: 20}

// fleet is the Semaphore of each process.
type fleet struct {
	testing.TB
	semaphores []*semaphore.Semaphore
}

// newFleet builds Semaphores of one name, each on a store that open opens: as of so many processes.
func newFleet(t testing.TB, open func() store.Leases) *fleet {
	t.Helper()
	f := &fleet{TB: t}
	for range processes {
		s, err := semaphore.New(open(), "gate", capacity)
		f.must(err)
		t.Cleanup(func() { _ = s.Close() })
		f.semaphores = append(f.semaphores, s)
	}
	return f
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// usage has the weights that the holders of each tier and of those below it have together. A holder
// counts from the return of its request until before its release, so no more than the store counts.
type usage struct{ lower [len(parts)]atomic.Int64 }

// add adds a weight, and returns an error if a tier, with those below it, has more than its part.
func (u *usage) add(tier semaphore.Tier, weight int64) (err error) {
	for above := range tier + 1 {
		if n := u.lower[above].Add(weight); n > parts[above] {
			err = errors.Join(err, fmt.Errorf("%v and below have %d of %d", above, n, parts[above]))
		}
	}
	return err
}

// Overload checks four processes at more than three times the capacity: no tier, with those below
// it, ever has what is kept for those above it, and a critical request that is within what is kept
// for such ones alone is never refused. The test must not be parallel: it leaves no CPU time.
func Overload(t *testing.T, open func() store.Leases) {
	f := newFleet(t, open)
	var (
		wg      sync.WaitGroup
		used    usage
		grants  [len(parts)]atomic.Int64
		refused atomic.Int64
		end     = time.Now().Add(testpace.Scale(1500 * time.Millisecond))
	)
	serve := func(tier semaphore.Tier, p *semaphore.Permit) {
		grants[tier].Add(1)
		weight := int64(p.Weight())
		if err := used.add(tier, weight); err != nil {
			t.Error(err)
		}
		<-time.After(time.Duration(1+rand.IntN(3)) * time.Millisecond)
		_ = used.add(tier, -weight)
		if err := p.Release(context.Background()); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	for _, s := range f.semaphores {
		wg.Go(func() { // with the others up to 4, which are kept
			critical := s.Tier(semaphore.Critical)
			for time.Now().Before(end) {
				p, err := critical.TryAcquire(t.Context(), "k")
				if err != nil {
					refused.Add(1)
					t.Errorf("a critical request: %v", err)
					continue
				}
				serve(semaphore.Critical, p)
			}
		})
		for tier, goroutines := range map[semaphore.Tier]int{semaphore.Normal: 3, semaphore.Low: 8, semaphore.Background: 20} {
			variant := s.Tier(tier)
			for range goroutines {
				wg.Go(func() {
					for time.Now().Before(end) {
						p, err := variant.AcquireN(t.Context(), "k", 1+rand.IntN(2))
						if err != nil {
							t.Errorf("AcquireN: %v", err)
							return
						}
						serve(tier, p)
						if tier != semaphore.Background { // so that it has its turns
							<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
						}
					}
				})
			}
		}
	}
	wg.Wait()
	for tier := range grants {
		t.Logf("%v: %d permits", semaphore.Tier(tier), grants[tier].Load())
		if grants[tier].Load() == 0 {
			t.Errorf("%v has had none", semaphore.Tier(tier))
		}
	}
	t.Logf("%d critical requests were refused", refused.Load())
	f.empty()
}

// empty waits until nothing is held and nothing waits.
func (f *fleet) empty() {
	f.Helper()
	testpace.Eventually(f, within, "nothing is left", func() bool {
		state, err := f.semaphores[0].Inspect(context.Background(), "k")
		return err == nil && state.InUse == 0 && state.Waiting == 0
	})
}

// Order checks that waiting requests are granted by their tiers, and within a tier in the order of
// their arrival, in four processes, also when capacity and shares have changed since.
func Order(t *testing.T, open func() store.Leases) {
	f := newFleet(t, open)
	held, err := f.semaphores[0].TryAcquireN(t.Context(), "k", capacity)
	f.must(err)
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		got []grant
	)
	const requests = 32                 // all have places, of which a process has no more for a tier than fit
	weights := [...]int{16, 16, 10, 10} // of which one fits at a time
	for i := range requests {
		tier := semaphore.Tier(i * 7 % len(weights))
		s := f.semaphores[i/len(weights)%processes].Tier(tier)
		wg.Go(func() {
			p, err := s.AcquireN(t.Context(), "k", weights[tier])
			if err != nil {
				t.Errorf("AcquireN: %v", err)
				return
			}
			mu.Lock()
			got = append(got, grant{p.Fence().Number, tier, i / len(weights)})
			mu.Unlock()
			if err := p.Release(context.Background()); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
		testpace.Eventually(t, within, "the request is in the queue", func() bool {
			state, err := f.semaphores[0].Inspect(t.Context(), "k")
			return err == nil && len(state.Waiters) == i+1
		})
	}
	for _, change := range []struct {
		capacity int
		shares   semaphore.TierShares
	}{
		{24, semaphore.TierShares{Normal: 0.8, Low: 0.6, Background: 0.5}},
		{20, semaphore.TierShares{Normal: 0.9, Low: 0.7, Background: 0.6}},
		{30, semaphore.TierShares{Normal: 0.9, Low: 0.6, Background: 0.5}},
	} {
		for _, s := range f.semaphores {
			f.must(s.SetCapacity(change.capacity))
			f.must(s.SetTierShares(change.shares))
		}
	}
	testpace.Eventually(t, within, "the requests have their new reserves", func() bool {
		state, err := f.semaphores[0].Inspect(t.Context(), "k")
		return err == nil && len(state.Waiters) == requests && !slices.ContainsFunc(state.Waiters, func(w semaphore.Waiter) bool {
			return !slices.Contains([]int{0, 3, 12, 15}, w.Reserve)
		})
	})
	f.must(held.Release(t.Context()))
	wg.Wait()
	slices.SortFunc(got, func(a, b grant) int { return cmp.Compare(a.fence, b.fence) })
	if len(got) != requests || !slices.IsSortedFunc(got, grant.compare) {
		t.Errorf("granted in the order (fence, tier, arrival) %v", got)
	}
	f.empty()
}

// grant is a request that was granted.
type grant struct {
	fence   int64
	tier    semaphore.Tier
	arrival int // within the tier; processes have their turns
}

// compare compares requests in the order in which they must be granted. Critical permits are handed
// on within a process, so those of several processes have no order.
func (g grant) compare(other grant) int {
	if g.tier == semaphore.Critical && other.tier == g.tier && (g.arrival-other.arrival)%processes != 0 {
		return 0
	}
	return cmp.Or(cmp.Compare(g.tier, other.tier), cmp.Compare(g.arrival, other.arrival))
}
