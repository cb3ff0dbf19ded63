package observability_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// series counts the time series of all instruments.
func (w *world) series() (n int) {
	for _, scope := range w.collect().ScopeMetrics {
		for _, m := range scope.Metrics {
			all, _ := points(w.t, m)
			n += len(all)
		}
	}
	return n
}

// Ten thousand keys have the time series of one.
func TestSeriesDoNotGrowWithKeys(t *testing.T) {
	w := newWorld(t)
	store := w.memstore()
	limiter, locker, semaphore, orders := w.limiter(store, tokenbucket.PerHour(1)), w.locker(store), w.semaphore(store),
		w.guard(store, guard.WithMaxPerScope(20_000))
	unpaid := w.queue(store)
	use := func(key string) {
		ctx := context.Background()
		_ = must(limiter.Allow(ctx, key))
		_ = must(limiter.Allow(ctx, key)) // is denied
		lease := must(locker.Lock(ctx, key))
		_, _ = locker.TryLock(ctx, key)
		_ = lease.Unlock(ctx)
		permit := must(semaphore.Acquire(ctx, key))
		_, _ = semaphore.TryAcquire(ctx, key)
		_ = permit.Release(ctx)
		attempt, _, err := orders.Begin(ctx, operation(key))
		if err != nil {
			t.Fatal(err)
		}
		_ = attempt.Complete(ctx, guard.Result{})
		_, _, _ = orders.Begin(ctx, operation(key)) // is replayed
		_ = must(unpaid.Put(ctx, key, nil, 0))
		_ = must(unpaid.Take(ctx)).Done(ctx)
		_ = must(unpaid.Cancel(ctx, key)) // is absent
	}
	use("0")
	one := w.series()
	for i := range 10_000 {
		use(strconv.Itoa(i + 1))
	}
	if many := w.series(); one < 10 || many != one {
		t.Errorf("%d time series with one key, %d with 10,001", one, many)
	}
}
