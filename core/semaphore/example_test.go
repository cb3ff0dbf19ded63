package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Run at most two reports of a tenant at a time, on all servers together.
func ExampleSemaphore_Do() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New, for several processes
	defer store.Close()
	reports, err := semaphore.New(store, "reports", 2)
	if err != nil {
		panic(err)
	}
	err = reports.Do(ctx, "tenant-7", func(ctx context.Context) error {
		fmt.Println("making a report, until", ctx.Err())
		return nil
	})
	fmt.Println(err)
	// Output:
	// making a report, until <nil>
	// <nil>
}

// Wait for a permit for some time, and then report the holders.
func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	partner, err := semaphore.New(store, "partner", 1)
	if err != nil {
		panic(err)
	}
	permit, err := partner.Acquire(ctx, "api")
	if err != nil {
		panic(err)
	}
	defer func() { _ = permit.Release(ctx) }()

	waiting, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = partner.Acquire(waiting, "api")
	var busy *semaphore.BusyError
	if errors.As(err, &busy) {
		fmt.Println(busy.InUse, "of", busy.Capacity, "in use")
		fmt.Println("timed out:", errors.Is(err, context.DeadlineExceeded))
	}
	// Output:
	// 1 of 1 in use
	// timed out: true
}

// A permit is released by itself, and once: a second release frees nothing that is another's.
func ExamplePermit_Release() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	partner, err := semaphore.New(store, "partner", 2)
	if err != nil {
		panic(err)
	}
	mine, err := partner.Acquire(ctx, "api")
	if err != nil {
		panic(err)
	}
	another, err := partner.Acquire(ctx, "api")
	if err != nil {
		panic(err)
	}
	fmt.Println(mine.Release(ctx))
	fmt.Println(mine.Release(ctx)) // such as one that was deferred as well
	state, err := partner.Inspect(ctx, "api")
	if err != nil {
		panic(err)
	}
	fmt.Println(state.InUse, "in use; still mine:", mine.Context().Err() == nil, "still another's:", another.Context().Err() == nil)
	fmt.Println(another.Release(ctx))
	// Output:
	// <nil>
	// semaphore: the permit was released, by Release or with its Semaphore or store
	// 1 in use; still mine: false still another's: true
	// <nil>
}

// A large import takes a permit of a larger weight.
func ExampleSemaphore_AcquireN() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	memory, err := semaphore.New(store, "import-memory", 8) // in GB
	if err != nil {
		panic(err)
	}
	large, err := memory.AcquireN(ctx, "worker-1", 6)
	if err != nil {
		panic(err)
	}
	small, err := memory.AcquireN(ctx, "worker-1", 2)
	if err != nil {
		panic(err)
	}
	state, err := memory.Inspect(ctx, "worker-1")
	if err != nil {
		panic(err)
	}
	fmt.Println(state.InUse, "of 8 in use by", len(state.Holders))
	fmt.Println(large.Release(ctx), small.Release(ctx))
	_, err = memory.AcquireN(ctx, "worker-1", 9)
	fmt.Println(err)
	// Output:
	// 8 of 8 in use by 2
	// <nil> <nil>
	// semaphore: invalid weight: 9 is more than the capacity of 8
}

// Set capacities of single customers, and change the default at run time.
func ExampleWithCapacityFunc() {
	store := memstore.New()
	defer store.Close()
	exports, err := semaphore.New(store, "exports", 2, semaphore.WithCapacityFunc(func(key string) int {
		if key == "big-customer" {
			return 20
		}
		return 0 // that of the semaphore
	}))
	if err != nil {
		panic(err)
	}
	fmt.Println(exports.Capacity("big-customer"))
	fmt.Println(exports.Capacity("customer"))
	if err := exports.SetCapacity(1); err != nil {
		panic(err)
	}
	fmt.Println(exports.Capacity("customer"))
	// Output:
	// 20 <nil>
	// 2 <nil>
	// 1 <nil>
}

// Limit the goroutines that wait for a slow dependency: a semaphore in memory counts this process
// alone.
func Example_bulkhead() {
	store := memstore.New()
	defer store.Close()
	search, err := semaphore.New(store, "search", 10)
	if err != nil {
		panic(err)
	}
	permit, err := search.TryAcquire(context.Background(), "backend")
	if err != nil {
		panic(err)
	}
	defer permit.ReleaseAsync()
	fmt.Println("searching")
	// Output: searching
}

// Wait until three jobs are done, in any process.
func ExampleLatch() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New
	defer store.Close()
	imported, err := semaphore.NewLatch(store, "import-2024-06-01", 3)
	if err != nil {
		panic(err)
	}
	var jobs sync.WaitGroup
	for _, job := range []string{"customers", "orders", "prices"} {
		jobs.Go(func() {
			for range 2 { // the second time is a retry, and does not count
				if _, err := imported.CountDown(ctx, job); err != nil {
					panic(err)
				}
			}
		})
	}
	if err := imported.Wait(ctx); err != nil {
		panic(err)
	}
	fmt.Println("all imported")
	jobs.Wait()
	// Output: all imported
}

// Low requests find the gate closed while critical ones pass. The server says which is which.
func ExampleSemaphore_Tier() {
	gate, err := semaphore.New(memstore.New(), "gate", 10)
	if err != nil {
		panic(err)
	}
	critical, low := gate.Tier(semaphore.Critical), gate.Tier(semaphore.Low)

	ctx := context.Background()
	served := 0
	for range 20 { // and none of them ends
		if _, err := low.TryAcquire(ctx, "global"); err == nil {
			served++
		}
	}
	_, err = critical.TryAcquire(ctx, "global")
	fmt.Println(served, "of 20 low requests, and a critical one:", err)
	// Output: 7 of 20 low requests, and a critical one: <nil>
}
