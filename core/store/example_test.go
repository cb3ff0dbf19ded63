package store_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// explain says what an error of a mechanism means. ErrClosed, ErrFull, ErrMisconfigured and
// ErrUnconfirmed match ErrUnavailable too, which is therefore asked for after them. ErrWithdrawn is
// between stores and mechanisms: no caller of a mechanism gets it.
func explain(err error) string {
	switch {
	case errors.Is(err, store.ErrClosed):
		return "this process ends: nothing was done"
	case errors.Is(err, store.ErrFull):
		return "no room for anything new: nothing was done; alert"
	case errors.Is(err, store.ErrMisconfigured):
		return "waiting does not help: nothing was done; alert: " + string(store.CauseOf(err))
	case errors.Is(err, store.ErrUnconfirmed):
		return "it may have been carried out"
	case errors.Is(err, store.ErrUnavailable):
		return "an outage: nothing was done; try again later"
	case errors.Is(err, errors.ErrUnsupported): // ErrNotSupported, ErrManySlots
		return "this store cannot do that: a mistake in the program"
	}
	return "not the store's"
}

// What the errors of every store mean, and what was done.
func Example_errors() {
	ctx := context.Background()
	st := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(st, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	for _, fault := range []storetest.Fault{storetest.Down, storetest.LostReply, storetest.Full, storetest.Misconfigured} {
		st.Break(storetest.TakeTokens, fault)
		_, err := limiter.Allow(ctx, "tenant-7")
		fmt.Println(explain(err))
	}
	st.Mend(storetest.Any)
	_ = st.Close()
	_, err = limiter.Allow(ctx, "tenant-7")
	fmt.Println(explain(err))
	// Output:
	// an outage: nothing was done; try again later
	// it may have been carried out
	// no room for anything new: nothing was done; alert
	// waiting does not help: nothing was done; alert: _OTHER
	// this process ends: nothing was done
}

// Down tells outages, which end by themselves, from what an operator has to mend.
func ExampleDown() {
	for _, err := range []error{store.ErrUnavailable, store.ErrUnconfirmed, store.ErrFull, store.ErrMisconfigured, store.ErrClosed} {
		fmt.Println(store.Down(err), err)
	}
	// Output:
	// true lockkeeper: store unavailable
	// true lockkeeper: store unavailable: the request was sent but its outcome is not known
	// false lockkeeper: store unavailable: store is full
	// false lockkeeper: store unavailable: store is misconfigured
	// false lockkeeper: store unavailable: closed
}
