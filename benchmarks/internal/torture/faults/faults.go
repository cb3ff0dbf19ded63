// Package faults is the list of what a fleet is tortured with: each fault is injected, lasts for a
// while, and is ended.
package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/fleet"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
)

// Fault is a kind of fault.
type Fault struct {
	Name  string
	About string
	// Lost says that the server may lose its state, or a part of it, or what it knows of time.
	Lost bool
	// Emptied says that the server loses its token buckets, and nothing else.
	Emptied bool
	// Moves says that it makes other servers masters on purpose. After any other fault, new masters
	// mean that state may have been lost.
	Moves bool
	// Stale says that all connections from before the fault are of no use, while new ones work.
	Stale bool
	// Replies means that the server replies in time during the fault.
	Replies bool
	// stores are those that can have it; none means all with servers.
	stores []string
	// Inject injects the fault, ends it even if ctx ends before, and returns what it has hit.
	Inject func(ctx context.Context, t *Target) (hit Hit, err error)
}

// Hit is what a fault has hit.
type Hit struct {
	Target string
	Count  int64         // such as delayed replies, where that can be counted
	Step   time.Duration // of the server's clock
	// Failover means that another server took over without the writes that were not replicated.
	// They may be of token buckets, locks and permits.
	Failover bool
	From     int64 // when the fault began, if it had to be prepared
	Turned   int64 // see check.Fault
	// Away is how long the server has not replied, before From.
	Away time.Duration
}

// Target is what a fault can hit.
type Target struct {
	*site.Site
	Fleet *fleet.Fleet
	Rand  *rand.Rand
	// Longest is the longest duration of a fault.
	Longest time.Duration
}

// All returns all faults, in the order of the report.
func All() []Fault {
	return slices.Concat(clients(), networks(), servers(), failovers(), postgres(), coordination(), moves(), crowds())
}

// onRedis are the stores on Redis.
var onRedis = []string{"redis", "cluster", "sentinel"}

// whole are the stores with all mechanisms on a server, whose protocols the network knows.
var whole = append(slices.Clone(onRedis), onPostgres...)

// For returns the faults that a site can have.
func For(s *site.Site) []Fault {
	return slices.DeleteFunc(All(), func(f Fault) bool {
		if len(f.stores) == 0 {
			return s.Kind == "memory"
		}
		return !slices.Contains(f.stores, s.Kind) || f.Name == clockForward && s.Clock == nil || f.Name == clockBack && s.Clock == nil
	})
}

// some returns a random time between two, at most the longest time of a fault.
func (t *Target) some(least, most time.Duration) time.Duration {
	if most = min(most, t.Longest); most <= least {
		return most
	}
	return least + time.Duration(t.Rand.Int64N(int64(most-least)))
}

// last waits for a random time between two, or for the end of ctx.
func (t *Target) last(ctx context.Context, least, most time.Duration) { wait(ctx, t.some(least, most)) }

// wait waits for some time, or for the end of ctx.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// worker returns a random worker and its place.
func (t *Target) worker() (*fleet.Worker, int) {
	i := t.Rand.IntN(t.Fleet.Size())
	return t.Fleet.Worker(i), i
}

// mending returns a context for ending a fault, with a timeout of its own.
func mending(ctx context.Context) (context.Context, context.CancelFunc) {
	const patience = time.Minute // to make a replica, beside a fleet
	return context.WithTimeoutCause(context.WithoutCancel(ctx), patience, fmt.Errorf("not within %v", patience))
}
