package delay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// Put a time-out under the order's number. A further put moves it, unless KeepFirst is set.
func ExampleQueue_Put() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New, for several processes
	defer store.Close()
	unpaid, err := delay.New(store, "unpaid")
	if err != nil {
		panic(err)
	}
	put, err := unpaid.Put(ctx, "order/42", nil, 15*time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(put.Outcome, "and due in", put.Due)
	if put, err = unpaid.Put(ctx, "order/42", nil, time.Hour); err != nil { // the customer asks for more time
		panic(err)
	}
	fmt.Println(put.Outcome, "and due in", put.Due)
	if put, err = unpaid.Put(ctx, "order/42", nil, time.Minute, delay.KeepFirst()); err != nil {
		panic(err)
	}
	fmt.Println(put.Outcome, "and due in", put.Due.Round(time.Minute))
	// Output:
	// created and due in 15m0s
	// moved and due in 1h0m0s
	// kept and due in 1h0m0s
}

// Cancel says whether the task may have run. If it may, the data decides.
func ExampleQueue_Cancel() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	unpaid, err := delay.New(store, "unpaid")
	if err != nil {
		panic(err)
	}
	if _, err := unpaid.Put(ctx, "order/42", nil, 15*time.Minute); err != nil {
		panic(err)
	}
	for range 2 {
		cancelled, err := unpaid.Cancel(ctx, "order/42")
		if err != nil {
			panic(err)
		}
		switch cancelled {
		case delay.Prevented:
			fmt.Println("it has not run, and will not")
		case delay.Ended, delay.Running:
			fmt.Println("it has run, or runs: look at the order")
		case delay.Absent:
			fmt.Println("there is none: it is done, or was never put")
		}
	}
	// Output:
	// it has not run, and will not
	// there is none: it is done, or was never put
}

// Run the tasks that are due, four at a time. A task may run more than once; a guard with its ID as
// the key makes its effect happen once.
func ExampleQueue_Run() {
	ctx, stop := context.WithCancel(context.Background())
	store := memstore.New()
	defer store.Close()
	unpaid, err := delay.New(store, "unpaid", delay.WithBackoff(func(int) time.Duration { return time.Millisecond }))
	if err != nil {
		panic(err)
	}
	effects, err := guard.New(store, "unpaid", guard.WithRerun())
	if err != nil {
		panic(err)
	}
	if _, err := unpaid.Put(ctx, "order/42", []byte("customer-7"), 0); err != nil { // due at once
		panic(err)
	}
	err = unpaid.Run(ctx, 4, func(ctx context.Context, t *delay.Task) error {
		err := guard.Once(ctx, effects, guard.Operation{Key: t.ID()}, func(context.Context) error {
			fmt.Printf("cancel %s of %s unless it is paid\n", t.Key(), t.Payload())
			return nil
		})
		if err == nil && t.Attempt() == 1 {
			err = errors.New("the mail to the customer fails") // so the task runs again
		}
		if err == nil {
			fmt.Println("done after", t.Attempt(), "attempts")
			stop()
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// cancel order/42 of customer-7 unless it is paid
	// done after 2 attempts
	// context canceled
}

// Buried lists the tasks whose attempts are used up, or that were given up. Revive runs one again.
func ExampleQueue_Revive() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	unpaid, err := delay.New(store, "unpaid")
	if err != nil {
		panic(err)
	}
	if _, err := unpaid.Put(ctx, "order/42", nil, 0); err != nil {
		panic(err)
	}
	task, err := unpaid.Take(ctx)
	if err != nil {
		panic(err)
	}
	if err := task.Bury(ctx, "the order is in another currency"); err != nil {
		panic(err)
	}
	for state, err := range unpaid.Buried(ctx) {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s after %d attempt: %s\n", state.Key, state.Attempt, state.Reason)
		revived, err := unpaid.Revive(ctx, state.Key)
		if err != nil {
			panic(err)
		}
		fmt.Println("revived:", revived)
	}
	// Output:
	// order/42 after 1 attempt: the order is in another currency
	// revived: true
}
