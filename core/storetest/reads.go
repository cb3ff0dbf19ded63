package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Reads makes a call of every kind that changes nothing: of the lock "k" of "locks", the operation "op",
// the latch "latch" and the bucket "k" of "api". It returns the errors of all of them, joined.
func Reads(ctx context.Context, st store.Store) error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := st.InspectLease(ctx, "locks", "k")
	add(err)
	for _, err := range st.ListLeases(ctx, "locks") {
		add(err)
	}
	_, _, err = st.InspectOperation(ctx, store.OperationRef{ID: "op", Guard: "g", Scope: "user"})
	add(err)
	for _, err := range st.ListUnresolved(ctx, "g") {
		add(err)
	}
	_, err = st.InspectLatch(ctx, store.LatchRequest{Name: "latch", TTL: time.Minute})
	add(err)
	_, err = st.TakeTokens(ctx, store.TokenRequest{Limiter: "api", Key: "k", Charges: []store.Charge{{
		Bucket: "a", Capacity: time.Minute, Interval: time.Second,
	}}})
	add(err)
	return errors.Join(errs...)
}
