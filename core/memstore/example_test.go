package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// One store has the state of all mechanisms of a process. Another process has its own: there the
// same key is free, and has all its tokens.
func Example() {
	ctx := context.Background()
	here, elsewhere := memstore.New(), memstore.New()
	defer here.Close()
	defer elsewhere.Close()
	for _, st := range []*memstore.Store{here, here, elsewhere} {
		carts, err := lock.New(st, "carts")
		if err != nil {
			panic(err)
		}
		_, err = carts.TryLock(ctx, "42") // never unlocked
		fmt.Println("held by another:", errors.Is(err, lock.ErrNotAcquired))
	}
	// Output:
	// held by another: false
	// held by another: true
	// held by another: false
}

// A full store forgets the bucket that will be full first, so that its key may use its whole limit
// again. RefuseNewBuckets refuses new keys instead: take it where a client must not get rid of its
// debt by sending requests under many keys.
func ExampleRefuseNewBuckets() {
	ctx := context.Background()
	st := memstore.New(memstore.WithMaxBuckets(2), memstore.RefuseNewBuckets())
	defer st.Close()
	logins, err := tokenbucket.New(st, "logins", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	for _, account := range []string{"alice", "bob", "carol", "alice"} {
		d, err := logins.Allow(ctx, account)
		fmt.Println(account, d.Allowed, errors.Is(err, store.ErrFull))
	}
	// Output:
	// alice true false
	// bob true false
	// carol false true
	// alice false false
}

// The order at the end of a process: first the server, then the mechanisms, then the store.
func ExampleStore_Shutdown() {
	st := memstore.New()
	carts, err := lock.New(st, "carts")
	if err != nil {
		panic(err)
	}

	// After http.Server.Shutdown has returned:
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	fmt.Println(st.Shutdown(ctx)) // an error names the leases and completions that are left
	_, err = carts.Lock(ctx, "42")
	fmt.Println(errors.Is(err, store.ErrClosed))
	fmt.Println(st.Close())
	// Output:
	// <nil>
	// true
	// <nil>
}
