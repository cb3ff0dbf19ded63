// Package fallback puts a stand-in store behind another one, to answer while that is unavailable:
//
//	leases, err := fallback.Leases(redis, memstore.New(), 1.0/processes)
//	…
//	partner, err := semaphore.New(leases, "partner", 20)
//
// Policies of middleware that let requests pass in an outage (policy.FailOpen) do not apply while
// the stand-in answers. There is no fallback for locks and guards: a lock that the first store
// cannot see would not exclude anything. The locks of a store with a fallback are those of the
// first store.
package fallback

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// check returns an error for a nil store, and for a share out of its range.
func check(what string, primary, standIn any, share float64) error {
	switch {
	case naming.IsNil(primary), naming.IsNil(standIn):
		return fmt.Errorf("fallback: %s: nil store", what)
	case !(share > 0 && share <= 1): // neither is NaN
		return fmt.Errorf("fallback: %s: a share of %v is not above 0 and at most 1", what, share)
	}
	return nil
}

// none returns the error of a call that both stores have failed.
func none(primary, standIn error) error {
	return fmt.Errorf("%w, and no fallback: %w", primary, standIn)
}

// errShare is the stand-in's answer to a request that never fits into its share.
var errShare = fmt.Errorf("%w: the request is for more than the stand-in's share", store.ErrUnavailable)

// register is an alias, so that the field is not exported.
type register = namesake.Store

// registerOf returns primary's register of mechanisms, since they share primary's state.
func registerOf(primary any) register {
	if r, ok := primary.(namesake.Store); ok {
		return r
	}
	return new(namesake.Register)
}
