package semaphore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

func TestPerInstanceIsTheSameOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2, semaphore.WithMaxWaiting(1))
		local := s.PerInstance()
		if local != s.PerInstance() || local != local.PerInstance() || local == s || local.Name() != s.Name() {
			t.Error("not the same one, of the same name")
		}
		variant, err := s.With(semaphore.WithHolder("variant"))
		if err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, s, 2) // does not count
		permit := mustAcquire(t, variant.PerInstance(), 1)
		if state, err := local.Inspect(t.Context(), "k"); err != nil || state.InUse != 1 || state.Holders[0].Meta != "variant" {
			t.Errorf("%+v, %v", state, err)
		}
		wantState(t, s, 2, 0)
		setCapacity(t, local, 3)
		if n, err := s.Capacity("k"); n != 3 || err != nil {
			t.Errorf("the capacity is %d, %v", n, err)
		}
		setCapacity(t, s, 1)
		if n, err := local.Capacity("k"); n != 1 || err != nil {
			t.Errorf("the capacity is %d, %v", n, err)
		}
		mustRelease(t, permit)
	})
}

// A permit that no store can lose lasts until it is released, and costs nothing meanwhile.
func TestPerInstancePermitsAreNotRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1).PerInstance()
		permit := mustAcquire(t, s, 1)
		done := permit.Context().Done()
		time.Sleep(365 * 24 * time.Hour)
		wantValid(t, permit)
		if left := time.Until(permit.ValidUntil()); left < 365*24*time.Hour {
			t.Errorf("valid for %v", left)
		}
		mustRelease(t, permit)
		<-done
		if n := w.count("renew"); n != 0 {
			t.Errorf("renewed %d times", n)
		}

		limited, err := s.With(semaphore.WithoutRenewal())
		if err != nil {
			t.Fatal(err)
		}
		permit = mustAcquire(t, limited, 1)
		time.Sleep(ttl)
		wantEnded(t, permit, semaphore.ErrExpired)
		wantState(t, s, 0, 0)
	})
}

// Never more than the capacity at work, whatever comes and goes; and nothing is left.
func TestNeverMoreThanTheCapacity(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	base, err := semaphore.New(store, "test", 5)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	for name, s := range map[string]*semaphore.Semaphore{"store": base, "per instance": base.PerInstance()} {
		t.Run(name, func(t *testing.T) {
			barging, err := s.With(semaphore.WithBarging())
			if err != nil {
				t.Fatal(err)
			}
			var (
				wg     sync.WaitGroup
				inUse  [3]atomic.Int64
				leaves atomic.Int64
			)
			for i := range 16 {
				wg.Go(func() {
					for j := range 300 {
						n, key := (i+j)%3+1, (i+j)%len(inUse)
						ctx, cancel := context.WithCancel(t.Context())
						if j%5 == 0 {
							ctx, cancel = context.WithTimeout(ctx, 50*time.Microsecond)
						}
						who := s
						if i%4 == 0 {
							who = barging
						}
						permit, err := who.AcquireN(ctx, fmt.Sprint(key), n)
						if err != nil {
							leaves.Add(1)
							cancel()
							continue
						}
						if used := inUse[key].Add(int64(n)); used > 5 {
							t.Errorf("%d in use", used)
						}
						inUse[key].Add(-int64(n))
						if j%2 == 0 {
							permit.ReleaseAsync()
						} else {
							_ = permit.Release(ctx)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d left", leaves.Load(), 16*300)
			for key := range inUse { // what is given back in the background is given back soon
				permit, err := s.AcquireN(t.Context(), fmt.Sprint(key), 5)
				if err != nil {
					t.Fatal(err)
				}
				mustRelease(t, permit)
			}
			for state, err := range s.List(t.Context()) {
				t.Errorf("%+v, %v is left", state, err)
			}
		})
	}
}

func BenchmarkPerInstance(b *testing.B) {
	store := memstore.New()
	defer store.Close()
	base, err := semaphore.New(store, "bench", 1000)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	for name, s := range map[string]*semaphore.Semaphore{"per instance": base.PerInstance(), "memstore": base} {
		request, cancel := context.WithCancel(context.Background())
		defer cancel()
		cycle := func(b *testing.B) {
			permit, err := s.Acquire(request, "k")
			if err != nil {
				b.Fatal(err)
			}
			if err := permit.Release(request); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cycle(b)
			}
		})
		b.Run(name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					cycle(b)
				}
			})
		})
	}
}
