package mwtest

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Leases is a store for locks, semaphores and latches alone, such as core/etcdstore's.
type Leases interface {
	store.Leases
	store.LeaseDowngrader
	store.LeaseVerifier
	store.LeaseLister
	store.LeaseRevoker
	store.Latches
	Ping(ctx context.Context) error
	Shutdown(ctx context.Context) error
	Close() error
}

// beside is a store whose leases and latches are on one store, and all else on another, as in a service
// that locks on a store for nothing but that.
type beside struct {
	Leases
	others
}

// others has its methods one level below those of Leases, which therefore hide them.
type others struct{ store.Store }

// RunLeases is RunOn for the rows about locks and permits. Their other state is in memory. If the
// store takes no reserves, the rows about tiers are replaced by one about the refusal of a tier
// that has one.
func RunLeases(t *testing.T, f Framework, open func(t *testing.T) func() Leases, reserves bool) {
	k := kind{onServer: true, open: func(t *testing.T) func() store.Store {
		leases, memory := open(t), inMemory.open(t)
		return func() store.Store { return beside{leases(), others{memory()}} }
	}}
	permits := concurrencyRows
	if !reserves {
		tiers := named(permits, "a tier is refused beyond its part, and higher ones pass", "a waiting request of a higher tier is served first")
		permits = slices.DeleteFunc(slices.Clone(permits), func(r row) bool {
			return slices.ContainsFunc(tiers, func(of row) bool { return of.name == r.name })
		})
		permits = append(permits, withoutReserves)
	}
	newRig(t, f, k).run([]group{{name: "exclusive", rows: exclusiveRows}, {name: "concurrency", rows: permits}})
}

var withoutReserves = row{"a tier with a reserve is an internal error, and the highest one passes", func(t *rig) {
	var c counter
	s := serve(t, c.handle, Concurrency{
		Semaphore: newSemaphore(t, newStore(t), 2), By: byID, Tiers: tierOf, Options: []policy.ConcurrencyOption{policy.FailOpen()},
	})
	s.send("1", "", "X-Tier", "3").denies(policy.InternalError)
	s.send("1", "", "X-Tier", "0").is(http.StatusCreated, "run 1").has("Concurrency-Status", "")
	c.ran(t, 1)
}}
