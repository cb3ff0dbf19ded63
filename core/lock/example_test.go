package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// Run one caller at a time: all of them run, one after the other. A job that shall run once among
// many processes needs guard.Do, whose record outlives the first run.
func ExampleLocker_Do() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New, for several processes
	defer store.Close()
	stock, err := lock.New(store, "stock")
	if err != nil {
		panic(err)
	}
	left := 3 // as in a database that is read and then written
	var buyers sync.WaitGroup
	for range 4 {
		buyers.Go(func() {
			_ = stock.Do(ctx, "tea", func(context.Context) error {
				if seen := left; seen > 0 {
					left = seen - 1
				}
				return nil
			})
		})
	}
	buyers.Wait()
	fmt.Println(left, "left")
	// Output: 0 left
}

// Do nothing if the lock is held.
func ExampleLocker_TryLock() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	carts, err := lock.New(store, "carts", lock.WithHolder("web-1"))
	if err != nil {
		panic(err)
	}
	lease, err := carts.Lock(ctx, "42")
	if err != nil {
		panic(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	var held *lock.HeldError
	if _, err := carts.TryLock(ctx, "42"); errors.As(err, &held) {
		fmt.Println("held by", held.Holder, "for at most", held.Remaining.Round(time.Minute/2))
	}
	// Output: held by web-1 for at most 30s
}

// Work with the lease's context, not with the one that Lock was given: only the lease's ends when the
// lock is lost. Here an operator takes it away.
func ExampleLease_Context() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	stock, err := lock.New(store, "stock")
	if err != nil {
		panic(err)
	}
	lease, err := stock.Lock(ctx, "tea")
	if err != nil {
		panic(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	count := func(ctx context.Context) error {
		for shelf := 1; ctx.Err() == nil; shelf++ { // calls of databases and services take ctx, and end with it
			fmt.Println("shelf", shelf)
			if shelf == 2 {
				_, _ = stock.ForceUnlock(context.Background(), "tea", lease.Fence().Number)
			}
		}
		return context.Cause(ctx)
	}
	fmt.Println(count(lease.Context()))
	// Output:
	// shelf 1
	// shelf 2
	// lock: the lease was lost: others may have held the lock since
}

// The resource refuses the writes of a holder that has lost its lock.
func ExampleLease_Fence() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	files, err := lock.New(store, "files")
	if err != nil {
		panic(err)
	}
	var file fence.Gate // beside the file; package redisfence and sqlfence are for databases
	write := func(lease *lock.Lease, text string) {
		err := file.Do(lease.Fence(), func() error {
			fmt.Println("written:", text)
			return nil
		})
		if errors.Is(err, fence.ErrStale) {
			fmt.Println("refused:", text)
		}
	}

	paused, err := files.Lock(ctx, "a.txt")
	if err != nil {
		panic(err)
	}
	if _, err := files.ForceUnlock(ctx, "a.txt", paused.Fence().Number); err != nil { // as if its lease had expired
		panic(err)
	}
	next, err := files.Lock(ctx, "a.txt")
	if err != nil {
		panic(err)
	}
	write(next, "final")
	write(paused, "the rest of the draft")
	fmt.Println(paused.Unlock(ctx))
	fmt.Println(next.Unlock(ctx))
	// Output:
	// written: final
	// refused: the rest of the draft
	// lock: the lease was lost: others may have held the lock since
	// <nil>
}

// Lock several keys without a deadlock.
func ExampleLocker_LockAll() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	accounts, err := lock.New(store, "accounts")
	if err != nil {
		panic(err)
	}
	both, err := accounts.LockAll(ctx, []string{"savings", "current"})
	if err != nil {
		panic(err)
	}
	fmt.Println(both.Keys())
	fmt.Println(both.Unlock(ctx))
	// Output:
	// [current savings]
	// <nil>
}
