package redisstore_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// denier has a limiter on a server behind a proxy that counts requests, and one of another process.
type denier struct {
	t            *testing.T
	proxy        *redistest.Proxy
	plan         tokenbucket.Plan
	here, beyond *tokenbucket.Limiter
}

func newDenier(t *testing.T, plan tokenbucket.Plan, opts ...redisstore.Option) *denier {
	server := redistest.Start(t)
	d := &denier{t: t, proxy: redistest.NewProxy(t, server.Addr()), plan: plan}
	d.here = d.limiter(newStore(t, dial(t, d.proxy.Addr(), time.Second), opts...))
	d.beyond = d.limiter(newStore(t, server.Client(), redisstore.WithoutDenialCache()))
	return d
}

func (d *denier) limiter(s store.Buckets) *tokenbucket.Limiter {
	l, err := tokenbucket.New(s, "api", d.plan)
	if err != nil {
		d.t.Fatal(err)
	}
	return l
}

// allow requests n tokens, and returns the number of script calls.
func (d *denier) allow(key string, n int64) (tokenbucket.Decision, int) {
	d.t.Helper()
	before := d.proxy.Seen("evalsha")
	decision, err := d.here.AllowN(ctx(), key, n)
	if err != nil {
		d.t.Fatal(err)
	}
	return decision, d.proxy.Seen("evalsha") - before
}

func TestDenialsAreCached(t *testing.T) {
	testpace.Parallel(t)
	d := newDenier(t, tokenbucket.PerHour(60).Burst(5))
	d.allow("k", 5)
	first, asked := d.allow("k", 1)
	if first.Allowed || asked != 1 || first.Source != tokenbucket.FromStore {
		t.Fatalf("the first denial: %+v, sent %d times", first, asked)
	}
	for range 100 {
		again, asked := d.allow("k", 1)
		if again.Allowed || asked != 0 || again.Source != tokenbucket.FromCache {
			t.Fatalf("denied again: %+v, sent %d times", again, asked)
		}
		if again.RetryAfter > first.RetryAfter || again.RetryAfter < first.RetryAfter-time.Second {
			t.Errorf("retry after %v, and then %v", first.RetryAfter, again.RetryAfter)
		}
		if l := again.Limits()[0]; l.Remaining != 0 || l.RetryAfter != again.RetryAfter || l.Reset <= 4*time.Minute {
			t.Errorf("%+v", l)
		}
	}
	if more, asked := d.allow("k", 3); more.Allowed || asked != 0 || more.RetryAfter <= first.RetryAfter {
		t.Errorf("a larger cost is denied too: %+v, sent %d times", more, asked)
	}
	if _, asked := d.allow("other", 1); asked != 1 {
		t.Errorf("another key: sent %d times", asked)
	}
	if peek, err := d.here.Peek(ctx(), "k"); err != nil || peek.Source != tokenbucket.FromStore {
		t.Errorf("a peek: %+v, %v", peek, err)
	}
}

// The denial of a large cost does not deny a smaller one.
func TestADenialIsOfItsCost(t *testing.T) {
	testpace.Parallel(t)
	d := newDenier(t, tokenbucket.PerHour(60).Burst(5))
	d.allow("k", 3)
	if much, asked := d.allow("k", 4); much.Allowed || asked != 1 {
		t.Fatalf("%+v, sent %d times", much, asked)
	}
	if little, asked := d.allow("k", 2); !little.Allowed || asked != 1 {
		t.Errorf("%+v, sent %d times", little, asked)
	}
}

// Without other callers, the denial cache never denies what Redis would allow.
func TestCachedDenialsAreExact(t *testing.T) {
	testpace.Parallel(t)
	d := newDenier(t, tokenbucket.PerHour(100).Burst(100))
	began := time.Now()
	for range 20 {
		_, err := d.beyond.Peek(ctx(), "k")
		must(t, err)
	}
	// A token comes back in the time of some calls, also on a busy machine.
	each := max(3*time.Millisecond, 3*time.Since(began)/20).Round(time.Millisecond)
	plan := tokenbucket.Limits{tokenbucket.Per(1, each).Burst(2), tokenbucket.Per(7, 15*each).Named("more")}
	must(t, d.here.SetPlan(plan))
	must(t, d.beyond.SetPlan(plan))
	remembered, allowed := 0, 0
	enough := func() bool { return remembered >= 100 && allowed >= 100 }
	for began := time.Now(); time.Since(began) < time.Second || !enough() && time.Since(began) < 30*time.Second; {
		there, err := d.beyond.Peek(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		here, _ := d.allow("k", 1)
		if there.Allowed && !here.Allowed {
			t.Fatalf("denied what Redis allows: %+v", here)
		}
		if here.Source == tokenbucket.FromCache {
			remembered++
		}
		if here.Allowed {
			allowed++
		}
	}
	if !enough() {
		t.Errorf("%d denials from memory and %d allowed: the test does not test what it says", remembered, allowed)
	}
}

func TestResetsAreSeen(t *testing.T) {
	testpace.Parallel(t)
	d := newDenier(t, tokenbucket.PerHour(1).Burst(1))
	exhaust := func() {
		t.Helper()
		d.allow("k", 1)
		d.allow("k", 1)
		if again, asked := d.allow("k", 1); again.Allowed || asked != 0 {
			t.Fatalf("%+v, sent %d times", again, asked)
		}
	}
	exhaust()
	if err := d.here.Reset(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	if after, _ := d.allow("k", 1); !after.Allowed {
		t.Errorf("after this process's reset: %+v", after)
	}
	exhaust()
	if err := d.beyond.Reset(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Second, "another process's reset is seen", func() bool {
		after, _ := d.allow("k", 1)
		return after.Allowed
	})
	exhaust()
	if err := d.here.SetPlan(tokenbucket.PerHour(1).Burst(2)); err != nil {
		t.Fatal(err)
	}
	if after, asked := d.allow("k", 1); !after.Allowed || asked != 1 {
		t.Errorf("under a larger plan: %+v, sent %d times", after, asked)
	}
}

func TestWithoutDenialCache(t *testing.T) {
	testpace.Parallel(t)
	d := newDenier(t, tokenbucket.PerHour(1).Burst(1), redisstore.WithoutDenialCache())
	d.allow("k", 1)
	for range 3 {
		if again, asked := d.allow("k", 1); again.Allowed || asked != 1 || again.Source != tokenbucket.FromStore {
			t.Errorf("%+v, sent %d times", again, asked)
		}
	}
}

// A cached denial takes the memory of its key, not of the request that the key is part of, and is
// removed when it expires, also without another request for its key.
func TestMemoryOfCachedDenials(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	l, err := tokenbucket.New(s, "api", tokenbucket.PerHour(1))
	must(t, err)
	deny := func(key string) {
		for allowed := true; allowed; {
			d, err := l.Allow(ctx(), key)
			must(t, err)
			allowed = d.Allowed
		}
	}
	deny("first")
	const keys = 1000
	before, line := heap(), strings.Repeat("q", 258<<10)
	for i := range keys {
		deny(fmt.Sprintf("key-%06d?%s", i, line)[:10])
	}
	if each := (heap() - before) / keys; each > 1<<10 {
		t.Errorf("%d bytes for each key", each)
	}
	t.Parallel() // the rest waits
	eventually(t, 4*time.Second, "no denial is in memory", func() bool { return s.CachedDenials() == 0 })
	deny("key-000000") // and later ones are swept too
	eventually(t, 4*time.Second, "no denial is in memory", func() bool { return s.CachedDenials() == 0 })
	if got, _ := l.Allow(ctx(), "key-000000"); got.Allowed || got.Source != tokenbucket.FromStore {
		t.Errorf("after the cache was swept: %+v", got)
	}
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what was in pools goes at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
