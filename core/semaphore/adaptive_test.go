package semaphore_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestAdaptiveSettingsOutOfTheirRange(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	shared := storetest.NewFaulty(st)
	with := func(target time.Duration, floor, ceiling int) []semaphore.Option {
		return []semaphore.Option{semaphore.WithAdaptiveCapacity(target, floor, ceiling)}
	}
	for name, c := range map[string]struct {
		st       store.Leases
		capacity int
		opts     []semaphore.Option
	}{
		"a store of several processes": {shared, 10, with(target, 10, 100)},
		"no target":                    {st, 10, with(0, 10, 100)},
		"a negative target":            {st, 10, with(-time.Second, 10, 100)},
		"a floor of 0":                 {st, 1, with(target, 0, 100)},
		"a negative floor":             {st, 1, with(target, math.MinInt, 100)},
		"a ceiling below the floor":    {st, 10, with(target, 10, 9)},
		"too large a ceiling":          {st, 10, with(target, 10, store.MaxCapacity+1)},
		"a capacity below the floor":   {st, 9, with(target, 10, 100)},
		"a capacity above the floor":   {st, 11, with(target, 10, 100)},
		"a capacity of 0":              {st, 0, with(target, 10, 100)},
		"a function of capacities":     {st, 10, append(with(target, 10, 100), semaphore.WithCapacityFunc(func(string) int { return 0 }))},
	} {
		if _, err := semaphore.New(c.st, "test", c.capacity, c.opts...); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
	}
	if _, err := semaphore.New(st, "test", 11, with(target, 10, 100)...); !errors.Is(err, semaphore.ErrInvalidCapacity) {
		t.Error(err)
	}
	s := newSemaphore(t, st, 10, with(target, 10, 100)...)
	for name, err := range map[string]error{
		"With":                    second(s.With(with(target, 10, 100)...)),
		"With of a function":      second(s.With(semaphore.WithCapacityFunc(func(string) int { return 0 }))),
		"SetCapacity":             s.SetCapacity(10),
		"SetCapacities":           s.SetCapacities(10, map[string]int{"k": 1}),
		"no target":               s.SetAdaptiveCapacity(0, 10, 100),
		"a floor of 0":            s.SetAdaptiveCapacity(target, 0, 100),
		"a ceiling below":         s.SetAdaptiveCapacity(target, 10, 9),
		"of one that adapts none": newSemaphore(t, st, 10).SetAdaptiveCapacity(target, 10, 100),
	} {
		if err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	wantCapacities(t, s, map[string]int{"k": 10, "other": 10})
}

func second[T any](_ T, err error) error { return err }

// adaptive runs a test with an adaptive Semaphore in faked time.
func adaptive(t *testing.T, floor, ceiling int, test func(t *testing.T, s *semaphore.Semaphore, capacity func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		s := newSemaphore(t, st, floor, semaphore.WithAdaptiveCapacity(target, floor, ceiling))
		test(t, s, func() int { return must(s.Capacity("k")) })
	})
}

// window has so many permits held beside each other for a time, and then each of them released.
func window(t *testing.T, s *semaphore.Semaphore, permits int, d time.Duration, report func(i int, p *semaphore.Permit)) {
	t.Helper()
	held := make([]*semaphore.Permit, permits)
	for i := range held {
		held[i] = mustAcquire(t, s, 1)
	}
	time.Sleep(d)
	for i, p := range held {
		if report != nil {
			report(i, p)
		}
		mustRelease(t, p)
	}
}

const fast, slow = 150 * time.Millisecond, 250 * time.Millisecond

func TestEndsOfWindows(t *testing.T) {
	adaptive(t, 20, 100, func(t *testing.T, s *semaphore.Semaphore, capacity func() int) {
		step := func(what string, permits int, d time.Duration, want int) {
			t.Helper()
			window(t, s, permits, d, nil)
			if got := capacity(); got != want {
				t.Errorf("%s: the capacity is %d, want %d", what, got, want)
			}
		}
		step("150 ms are not over", 20, fast, 20)
		step("300 ms, and 20 samples, with the first release", 20, fast, 21)
		step("full, 19 samples are left", 21, fast, 21)
		step("and more", 21, fast, 22)
		time.Sleep(time.Second)
		step("full when it began", 1, 0, 23)
		for range 3 {
			time.Sleep(time.Second)
			step("less than nine tenths", 20, fast, 23)
		}
		time.Sleep(time.Second)
		step("nine tenths", 21, 0, 24)
	})
}

func TestCapacityFollowsTheTarget(t *testing.T) {
	adaptive(t, 20, 24, func(t *testing.T, s *semaphore.Semaphore, capacity func() int) {
		for _, want := range []int{21, 22, 23, 24, 24, 24} { // the ceiling
			window(t, s, capacity(), fast, nil)
			window(t, s, capacity(), fast, nil)
			if capacity() != want {
				t.Fatalf("the capacity is %d, want %d", capacity(), want)
			}
		}
		for _, c := range []struct{ slow, want int }{{2, 23}, {3, 19}} { // a tenth of 20, and more
			ok(t, s.SetAdaptiveCapacity(target, 22, 22))
			ok(t, s.SetAdaptiveCapacity(target, 10, 24))
			var held []*semaphore.Permit
			for i := range 20 {
				if i == c.slow {
					time.Sleep(slow)
				}
				held = append(held, mustAcquire(t, s, 1))
			}
			mustRelease(t, held...)
			if capacity() != c.want {
				t.Errorf("after %d slow ones of 20 the capacity is %d, want %d", c.slow, capacity(), c.want)
			}
		}
		ok(t, s.SetAdaptiveCapacity(target, 18, 24))
		for range 5 { // to the floor
			window(t, s, capacity(), slow, nil)
			window(t, s, capacity(), slow, nil)
		}
		if capacity() != 18 {
			t.Errorf("the capacity is %d", capacity())
		}
	})
}

// Of permits that are reported, only those count that tell of the load.
func TestReportsOfPermits(t *testing.T) {
	failed := func(_ int, p *semaphore.Permit) { p.Failed() }
	void := func(_ int, p *semaphore.Permit) { p.Void() }
	for name, c := range map[string]struct {
		d      time.Duration
		report func(int, *semaphore.Permit)
		rises  bool
		falls  bool
	}{
		"fast":                      {fast, nil, true, false},
		"slow":                      {slow, nil, false, true},
		"fast and failed":           {fast, failed, false, false},
		"slow and failed":           {slow, failed, false, true},
		"fast and void":             {fast, void, false, false},
		"slow and void":             {slow, void, false, false},
		"void stays void":           {slow, func(i int, p *semaphore.Permit) { void(i, p); failed(i, p) }, false, false},
		"failed becomes void":       {slow, func(i int, p *semaphore.Permit) { failed(i, p); void(i, p) }, false, false},
		"a late report is too late": {slow, func(_ int, p *semaphore.Permit) { p.ReleaseAsync(); p.Void() }, false, true},
		"a second release is no two": {fast, func(i int, p *semaphore.Permit) {
			if i > 0 {
				p.Void()
			}
			for range 20 {
				p.ReleaseAsync()
			}
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			adaptive(t, 20, 1000, func(t *testing.T, s *semaphore.Semaphore, capacity func() int) {
				for range 40 {
					window(t, s, capacity(), fast, nil)
				}
				ok(t, s.SetAdaptiveCapacity(target, 20, 1000)) // begins a window
				before := capacity()
				for range 10 {
					held := make([]*semaphore.Permit, capacity())
					for i := range held {
						held[i] = mustAcquire(t, s, 1)
					}
					time.Sleep(c.d)
					for i, p := range held {
						if c.report != nil {
							c.report(i, p)
						}
						p.ReleaseAsync()
					}
					synctest.Wait()
				}
				if after := capacity(); after > before != c.rises || after < before != c.falls {
					t.Errorf("the capacity was %d and is %d", before, after)
				}
			})
		})
	}
}

// Requests that fail in 1 ms do not raise the capacity, as they would without their reports: not if
// they are half of an overload, nor if they are almost all requests and the others are one.
func TestFastFailuresDoNotRaiseTheCapacity(t *testing.T) {
	mean := func(s *service, d time.Duration, load float64, shape func(*request)) float64 {
		s.run(d, load, shape)
		sum, n := 0, 0
		s.each = func() { sum, n = sum+must(s.high.Capacity("global")), n+1 }
		s.run(d, load, shape)
		s.each = nil
		return float64(sum) / float64(n)
	}
	for name, c := range map[string]struct {
		part   int // of the requests that works
		d      time.Duration
		load   float64
		within float64
	}{
		"half":       {2, 10 * time.Second, 3, 0.1},
		"almost all": {20, 4 * time.Second, 25, 0.2}, // which have a dozen of the permits themselves
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, adapting(0, 20, 1000))
				s.run(20*time.Second, 3, nil)
				before := mean(s, 10*time.Second, 3, nil)
				during := mean(s, c.d, c.load, func(r *request) {
					if s.random.IntN(c.part) > 0 {
						r.work, r.parallel, r.fails = time.Millisecond, true, true
					}
				})
				after := mean(s, 10*time.Second, 3, nil)
				t.Logf("the mean capacity was %.1f, during the failures %.1f, and then %.1f", before, during, after)
				if math.Abs(during/before-1) > c.within || math.Abs(after/before-1) > 0.1 {
					t.Errorf("the mean capacity was %.1f, during the failures %.1f, and then %.1f", before, during, after)
				}
				s.drain()
			})
		})
	}
}

// No answer comes in time, and all clients leave: the capacity falls to its floor and stays there.
func TestTimeoutsLowerTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, adapting(0, 20, 1000))
		s.run(20*time.Second, 3, nil)
		before := must(s.high.Capacity("global"))
		hangs := func(r *request) { r.work, r.parallel = patience+time.Millisecond, true }
		s.run(30*time.Second, 0.5, hangs)
		s.each = func() {
			if n := must(s.high.Capacity("global")); n != 20 {
				t.Fatalf("the capacity was %d, and is %d", before, n)
			}
		}
		s.run(10*time.Minute, 0.5, hangs)
		s.drain()
		if before < 60 {
			t.Errorf("the capacity was %d before", before)
		}
	})
}

// Target, floor and ceiling change while it runs: the capacity stays within them, and moves no
// further.
func TestAdaptiveSettingsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, adapting(0.2, 50, 1000))
		capacity := func() int { return must(s.low.Capacity("global")) }
		s.run(20*time.Second, 3, nil)
		for _, c := range []struct {
			target         time.Duration
			floor, ceiling int
		}{
			{target, 50, 1000}, {2 * target, 50, 1000}, {target / 2, 30, 1000}, {target, 150, 160}, {target, 10, 20}, {target, 20, 20},
			{target, 200, 1000}, {target, 50, 1000},
		} {
			before := capacity()
			ok(t, s.low.SetAdaptiveCapacity(c.target, c.floor, c.ceiling))
			if got, want := capacity(), min(max(before, c.floor), c.ceiling); got != want {
				t.Errorf("%+v: the capacity was %d and is %d, want %d", c, before, got, want)
			}
			last := capacity()
			s.each = func() {
				n := capacity()
				if n < c.floor || n > c.ceiling || n < last*9/10 || n > last+max(last/20, 1) {
					t.Fatalf("%+v: the capacity was %d, and is %d", c, last, n)
				}
				last = n
			}
			s.run(5*time.Second, 3, nil)
			if err := s.low.SetAdaptiveCapacity(target, c.ceiling+1, c.ceiling); err == nil || capacity() != last {
				t.Errorf("a ceiling below the floor: %v, %d", err, capacity())
			}
			s.each = nil
		}
		s.drain()
	})
}

// A wait for a permit does not count: more waiting callers lower nothing. Each permit that is
// handed on in the process is a sample of its own.
func TestWaitsDoNotCount(t *testing.T) {
	adaptive(t, 10, 40, func(t *testing.T, s *semaphore.Semaphore, capacity func() int) {
		var wg sync.WaitGroup
		end := time.Now().Add(20 * time.Second)
		for range 200 {
			wg.Go(func() {
				for time.Now().Before(end) {
					p := must(s.Acquire(t.Context(), "k")) // after up to 1 s
					time.Sleep(target / 4)
					mustRelease(t, p)
				}
			})
		}
		wg.Wait()
		if capacity() != 40 {
			t.Errorf("the capacity is %d", capacity())
		}
	})
}

// Waiting requests, also of tiers, use the capacity as it changes.
func TestWaitersUseTheAdaptiveCapacity(t *testing.T) {
	adaptive(t, 20, 21, func(t *testing.T, s *semaphore.Semaphore, capacity func() int) {
		ok(t, s.SetTierShares(semaphore.TierShares{Normal: 1, Low: 0.95, Background: 0.9}))
		window(t, s, 20, fast, nil)
		held := make([]*semaphore.Permit, 20)
		for i := range held {
			held[i] = mustAcquire(t, s, 1)
		}
		time.Sleep(fast)
		low := start(t.Context(), s.Tier(semaphore.Low), 1)
		high := start(t.Context(), s, 1)
		other := must(s.TryAcquire(t.Context(), "other"))
		mustRelease(t, other) // ends the window
		if capacity() != 21 || !high.got() || low.got() {
			t.Errorf("the capacity is %d, the high one has a permit: %v, the low one: %v", capacity(), high.got(), low.got())
		}
		mustRelease(t, held[:2]...)
		if !low.got() { // and leaves one of 21
			t.Error("the low one has none")
		}
		mustRelease(t, append(held[2:], low.permit, high.permit)...)
	})
}

// Permits, settings and observers at the same time; for the race detector.
func TestAdaptiveCapacityInAStorm(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 4, semaphore.WithAdaptiveCapacity(time.Millisecond, 4, 16))
	var wg sync.WaitGroup
	for i := range 16 {
		from := s.Tier(semaphore.Tier(i % 4))
		wg.Go(func() {
			for j := range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				if p, err := from.Acquire(ctx, "k"); err == nil {
					go p.Void()
					p.Failed()
					if j%50 == 0 {
						time.Sleep(2 * time.Millisecond)
					}
					go p.ReleaseAsync()
					_ = p.Release(ctx)
				}
				cancel()
				if n, err := s.Capacity("k"); err != nil || n < 4 || n > 16 {
					t.Errorf("the capacity is %d, %v", n, err)
				}
				if j%100 == 0 {
					ok(t, s.SetAdaptiveCapacity(time.Millisecond, 4, 10+i%7))
				}
			}
		})
	}
	wg.Wait()
	mustRelease(t, must(s.AcquireN(t.Context(), "k", 4)))
}
