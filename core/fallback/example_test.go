package fallback_test

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Continue with this process's share while the store cannot be reached.
func ExampleLeases() {
	ctx := context.Background()
	remote, local := memstore.New(), memstore.New()
	defer remote.Close()
	defer local.Close()
	primary := storetest.NewFaulty(remote)
	const processes = 4
	leases, err := fallback.Leases(primary, local, 1.0/processes)
	if err != nil {
		panic(err)
	}
	partner, err := semaphore.New(leases, "partner", 20)
	if err != nil {
		panic(err)
	}
	primary.Break(storetest.Any, storetest.Down)
	permit, err := partner.AcquireN(ctx, "api", 5)
	if err != nil {
		panic(err)
	}
	_, err = partner.TryAcquire(ctx, "api")
	fmt.Println(err)
	fmt.Println(permit.Release(ctx))
	// Output:
	// semaphore: not acquired: 5 of 20 in use, 0 waiting
	// <nil>
}

// Keep limiting, by this process's share, while the store cannot be reached.
func ExampleBuckets() {
	ctx := context.Background()
	remote, local := memstore.New(), memstore.New()
	defer remote.Close()
	defer local.Close()
	primary := storetest.NewFaulty(remote)
	const processes = 2
	buckets, err := fallback.Buckets(primary, local, 1.0/processes)
	if err != nil {
		panic(err)
	}
	limiter, err := tokenbucket.New(buckets, "api", tokenbucket.PerMinute(4))
	if err != nil {
		panic(err)
	}
	primary.Break(storetest.Any, storetest.Down)
	for range 3 {
		d, err := limiter.Allow(ctx, "alice")
		fmt.Println(d.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}
