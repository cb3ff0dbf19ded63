package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// What does a program do while its store is down, and what if the reply to a step is lost?
func ExampleFaulty() {
	ctx := context.Background()
	st := storetest.NewFaulty(memstore.New())
	defer func() { _ = st.Close() }()
	mails, err := guard.New(st, "mails")
	if err != nil {
		panic(err)
	}
	send := func(key string) {
		_, replayed, err := guard.Do(ctx, mails, guard.Operation{Key: key}, func(context.Context) (bool, error) {
			fmt.Println("sends", key)
			return true, nil
		})
		fmt.Println("replayed:", replayed, "unavailable:", errors.Is(err, store.ErrUnavailable))
	}

	st.Break(storetest.Any, storetest.Down)
	send("receipt") // does not run
	st.Mend(storetest.Any)
	st.BreakNext(storetest.SettleOperation, storetest.LostReply, 1)
	send("receipt") // runs; the store has recorded that, and its reply is lost
	send("receipt") // does not run again
	// Output:
	// replayed: false unavailable: true
	// sends receipt
	// replayed: false unavailable: false
	// replayed: true unavailable: false
}

// The contract, run on a store of your own: here on one in memory, in a bubble whose time the tests
// advance. On a real server, Advance is time.Sleep too, without the bubble.
func ExampleAll() {
	testContract := func(t *testing.T) { // func TestContract(t *testing.T)
		storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*memstore.Store])) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New() // yours, new and empty
				defer st.Close()
				test(t, storetest.Harness[*memstore.Store]{Store: st, Advance: time.Sleep})
			})
		})
	}
	_ = testContract
}
