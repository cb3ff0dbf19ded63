package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/httprate"
	"github.com/labstack/echo/v4/middleware"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmemory "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// limit is n tokens in a period, all of which may be taken at once.
type limit struct {
	n      int
	period time.Duration
}

// pace is one of the rates at which tokens are taken.
type pace struct {
	id, title string // suffixes of those of a table
	limit     func(keys int) limit
}

func rates() []pace {
	return []pace{{"", "", whole}, {"-300", " at 300 a second", ordinary}}
}

// whole returns a limit whose interval is a whole number of microseconds. One key needs a limit that it does not use up
// in a measurement. With many, debts last for longer than one, so that no limiter can forget a key.
func whole(keys int) limit {
	if keys == 1 {
		return limit{1_000_000_000, 1000 * time.Second}
	}
	return limit{10_000, 24 * time.Hour}
}

// ordinary returns a limit of 300 a second with a burst that no measurement uses up.
func ordinary(keys int) limit {
	if keys == 1 {
		return limit{900_000_000, 3_000_000 * time.Second}
	}
	return limit{90_000, 300 * time.Second}
}

// take takes a token of a key, which also has a number.
type take func(number int, key string) bool

// contender is a limiter for a number of keys.
type contender struct {
	row string
	new func(keys int, l limit) (take, func(), error)
}

// The rows that targets or tables name.
const (
	lockkeeper = "Lockkeeper"
	goLimiter  = "go-limiter"
	bareSwap   = "compare-and-swap, without a look-up"
)

func contenders() []contender {
	return []contender{
		{lockkeeper, newLockkeeper},
		{goLimiter, newGoLimiter},
		{"x/time/rate in a map with a mutex", newRateMutex},
		{"x/time/rate in a sync.Map", newRateSyncMap},
		{"throttled", newThrottled},
		{"ulule/limiter", newUlule},
		{"httprate's counter", newHTTPRate},
		{"echo's RateLimiterMemoryStore", newEcho},
		{bareSwap, newBareSwap},
	}
}

func newLockkeeper(keys int, l limit) (take, func(), error) {
	return lockkeeperOn(memstore.WithMaxBuckets(max(2*keys, 1<<20)), l) // the default is a million
}

func lockkeeperOn(size memstore.Option, l limit) (take, func(), error) {
	store := memstore.New(size)
	limiter, err := tokenbucket.New(store, "bench", tokenbucket.Per(int64(l.n), l.period))
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	ctx := context.Background()
	return func(_ int, key string) bool {
		d, err := limiter.Allow(ctx, key)
		return err == nil && d.Allowed
	}, func() { store.Close() }, nil
}

func newGoLimiter(_ int, l limit) (take, func(), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.n), Interval: l.period})
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	return func(_ int, key string) bool {
		_, _, _, ok, err := store.Take(ctx, key)
		return err == nil && ok
	}, func() { _ = store.Close(ctx) }, nil
}

func (l limit) rate() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(l.n)/l.period.Seconds()), l.n)
}

func newRateMutex(_ int, l limit) (take, func(), error) {
	var mu sync.Mutex
	limiters := make(map[string]*rate.Limiter)
	return func(_ int, key string) bool {
		mu.Lock()
		limiter, ok := limiters[key]
		if !ok {
			limiter = l.rate()
			limiters[key] = limiter
		}
		mu.Unlock()
		return limiter.Allow()
	}, func() {}, nil
}

func newRateSyncMap(_ int, l limit) (take, func(), error) {
	var limiters sync.Map
	return func(_ int, key string) bool {
		limiter, ok := limiters.Load(key)
		if !ok {
			limiter, _ = limiters.LoadOrStore(key, l.rate())
		}
		return limiter.(*rate.Limiter).Allow()
	}, func() {}, nil
}

func newThrottled(_ int, l limit) (take, func(), error) {
	store, err := throttledmemory.NewCtx(0)
	if err != nil {
		return nil, nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDuration(l.n, l.period), MaxBurst: l.n - 1,
	})
	if err != nil {
		return nil, nil, err
	}
	limiter.SetMaxCASAttemptsLimit(1000) // with its default of ten, goroutines with the same key get errors
	ctx := context.Background()
	return func(_ int, key string) bool {
		limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited
	}, func() {}, nil
}

func newUlule(_ int, l limit) (take, func(), error) {
	limiter := limiter.New(ululememory.NewStore(), limiter.Rate{Period: l.period, Limit: int64(l.n)})
	ctx := context.Background()
	return func(_ int, key string) bool {
		r, err := limiter.Get(ctx, key)
		return err == nil && !r.Reached
	}, func() {}, nil
}

// newHTTPRate counts as httprate's middleware does, without its header fields: it reads two windows and adds to one, under
// a mutex.
func newHTTPRate(_ int, l limit) (take, func(), error) {
	var mu sync.Mutex
	counter := httprate.NewLocalLimitCounter(l.period)
	counter.Config(l.n, l.period)
	return func(_ int, key string) bool {
		now := time.Now().UTC()
		current := now.Truncate(l.period)
		mu.Lock()
		defer mu.Unlock()
		in, before, err := counter.Get(key, current, current.Add(-l.period))
		if err != nil {
			return false
		}
		left := float64(l.period-now.Sub(current)) / float64(l.period)
		if float64(before)*left+float64(in)+1 > float64(l.n) {
			return false
		}
		return counter.IncrementBy(key, current, 1) == nil
	}, func() {}, nil
}

func newEcho(_ int, l limit) (take, func(), error) {
	store := middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
		Rate: rate.Limit(float64(l.n) / l.period.Seconds()), Burst: l.n, ExpiresIn: time.Hour,
	})
	return func(_ int, key string) bool {
		ok, err := store.Allow(key)
		return err == nil && ok
	}, func() {}, nil
}

// newBareSwap is GCRA alone, without keys.
func newBareSwap(keys int, l limit) (take, func(), error) {
	if l.n <= 0 {
		return nil, nil, fmt.Errorf("memory: a limit of %d", l.n)
	}
	buckets := make([]atomic.Int64, keys)
	began := time.Now()
	cost, capacity := int64(l.period)/int64(l.n), int64(l.period)
	return func(number int, _ string) bool {
		bucket, now := &buckets[number], int64(time.Since(began))
		for {
			old := bucket.Load()
			empties := max(old, now) + cost
			if empties-now > capacity {
				return false
			}
			if bucket.CompareAndSwap(old, empties) {
				return true
			}
		}
	}, func() {}, nil
}
