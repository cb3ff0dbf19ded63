// Package quorum makes one store of locks of several independent ones, so that locks outlive the
// loss of a minority of them. It is the algorithm Redlock, "Distributed Locks with Redis" on
// redis.io, with a fence.
package quorum

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Member is one of the stores of a quorum, such as those of core/memstore and core/redisstore.
//
// All methods return soon after their context has ended. Those of [store.Leases] keep its contract.
type Member interface {
	AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error)
	RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error)
	ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error)
	VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error)

	// RaiseFence makes every fence that the member grants for the lock from now on larger than
	// least.
	RaiseFence(ctx context.Context, name, key string, least int64) error

	// Uptime returns for how long the member has kept its state, or less.
	Uptime(ctx context.Context) (time.Duration, error)
}

// Store keeps locks on a majority of its members: see [New].
type Store struct {
	members  []*member
	majority int
	longest  atomic.Int64 // the longest lease that a restarted member may have lost, as a duration
	hooks    hooks.Shutdown
	calls    background.Group
	requests requests

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var (
	_ store.Leases        = (*Store)(nil)
	_ store.LeaseVerifier = (*Store)(nil)
	_ namesake.Store      = (*Store)(nil)
)

// New returns a store that keeps every lock on a majority of its members: two of five may fail.
//
// docs/defaults.md has the times that it allows its members, and what happens at their edges.
//
// The members must be servers of their own that share nothing and are not replicated: a replica
// that takes over lacks the newest locks, and counts as a member that has been up all the time.
// Every process must name the same members, and agree on the leases of its locks
// ([Store.ExpectTTL]). New returns an error for fewer than three members, and for a nil or repeated
// one.
//
// Its guarantees have conditions:
//   - The clocks of processes and members run at about the same speed, a hundredth of a lease apart
//     at most.
//   - No member's clock is set forward.
//   - A member that loses its data reports that in its Uptime. A restarted Redis does. A Redis that
//     is flushed, or evicts keys, does not.
//
// As with every lock of this kind, a holder that is paused, or whose write is delayed, for longer
// than its lease does harm that only the fence prevents: a quorum makes locks available, the fence
// excludes. Fences grow from one hold to the next, with one exception: a member that has lost its
// data, and whose clock is behind the others' by more than a lease, may let one go back.
//
// It can lock exclusively, renew, release and verify. There is no queue: a waiter polls with random
// delays, so callers in different processes are served in no order. Shared locks, semaphores,
// downgrades, Inspect, List and ForceUnlock return [store.ErrNotSupported]. A lock takes three
// round trips to all members at once: the votes, the age of the members that voted, and the fence.
//
// A member that has lost its data could help a second holder to a majority. Its votes do not count
// until it has been up for longer than any lease that it may have lost. So after the start of a
// majority of members no lock is granted for that long.
func New(members ...Member) (*Store, error) {
	if len(members) < 3 {
		return nil, fmt.Errorf("quorum: New: %d members, at least 3 are needed", len(members))
	}
	q := &Store{namesakes: new(namesakes), majority: len(members)/2 + 1}
	seen := make(map[Member]bool)
	for i, m := range members {
		if naming.IsNil(m) {
			return nil, fmt.Errorf("quorum: New: member %d is nil", i)
		}
		if reflect.ValueOf(m).Comparable() {
			if seen[m] {
				return nil, fmt.Errorf("quorum: New: member %d is there twice", i)
			}
			seen[m] = true
		}
		q.members = append(q.members, &member{Member: m})
	}
	return q, nil
}

// ExpectTTL sets the longest lease, its lock-delay included, that processes may hold on these
// members. A restarted member stays out for as long. The leases of this process count without it,
// so ExpectTTL is needed only if another process has longer ones. The value never shrinks.
// ExpectTTL panics if ttl is negative, or less than a millisecond but not zero.
func (q *Store) ExpectTTL(ttl time.Duration) {
	if ttl != 0 && ttl < time.Millisecond {
		panic(fmt.Sprintf("quorum: ExpectTTL: %v is neither 0 nor at least 1ms", ttl))
	}
	for {
		old := q.longest.Load()
		if old >= int64(ttl) || q.longest.CompareAndSwap(old, int64(ttl)) {
			return
		}
	}
}

// AcquireLease implements store.Leases, for a request of the whole capacity:
//   - It is granted if a majority grants it within the lease. Otherwise grants of a minority are
//     released in the background.
//   - If a majority has answered, the reply is Queued or Taken, or Withdrawn if the request was
//     withdrawn before.
//   - Without a majority of answers the error matches store.ErrUnavailable.
func (q *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if !exclusive(&req) {
		return store.LeaseReply{}, store.ErrNotSupported
	}
	if reply, ok := q.requests.lookup(req.ID); ok {
		return reply, nil
	}
	reply, h, _, err := q.elect(ctx, req)
	switch {
	case err == nil && reply.Outcome == store.Granted:
		if !q.requests.granted(req.ID, h, req.TTL, reply.Grant) {
			q.releaseAsync(req.Ref(0), h, nil)
			return store.LeaseReply{Outcome: store.Withdrawn}, nil
		}
	case err == nil && reply.Outcome == store.Taken && req.Queue:
		reply.Outcome, reply.Grant = store.Queued, queued
		q.requests.queue(req.ID)
	}
	return reply, err
}

// exclusive reports whether a request is for a lock, and for all of it.
func exclusive(req *store.LeaseRequest) bool {
	return strings.HasPrefix(req.Name, store.LockKind) && req.Weight == req.Capacity && req.Reserve == 0
}

const (
	// pollMin to pollMax is the mean pause between two attempts of a waiter.
	pollMin, pollMax = 15 * time.Millisecond, 110 * time.Millisecond
	// maxSilence is for how long a waiter tolerates the lack of a majority of answers.
	maxSilence = 3 * time.Second
)

// AwaitLease implements store.Leases. It polls, with pauses that grow up to 165 ms and are random,
// so that two waiters that have split the votes do not collide again. If a majority has not
// answered for 3 s, it returns an error that matches store.ErrUnavailable.
func (q *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if !exclusive(&req) {
		return store.Grant{}, store.ErrNotSupported
	}
	waiting, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	place, grant, err := q.requests.await(req.ID, withdraw)
	if place == nil {
		return grant, err
	}
	defer q.requests.endWait(place)
	stopped := func() error {
		if errors.Is(context.Cause(waiting), store.ErrWithdrawn) {
			return store.ErrWithdrawn
		}
		return ctx.Err()
	}

	delay := backoff.Growing{Min: pollMin, Max: pollMax}
	heard := time.Now()
	for {
		if !backoff.Sleep(waiting, delay.Next()) {
			return store.Grant{}, stopped()
		}
		// A late release of one attempt must not end another, so every attempt has its own ID.
		attempt := req
		attempt.ID = naming.NewID()
		reply, h, cleared, err := q.elect(waiting, attempt)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			reply.Place = queued.Place
			if !q.requests.granted(req.ID, h, req.TTL, reply.Grant) {
				q.releaseAsync(attempt.Ref(0), h, nil)
				return store.Grant{}, store.ErrWithdrawn
			}
			return reply.Grant, nil
		case err == nil:
			heard = time.Now()
		case waiting.Err() != nil:
			return store.Grant{}, stopped()
		case time.Since(heard) >= maxSilence, errors.Is(err, store.ErrClosed):
			return store.Grant{}, err
		}
		// The last attempt's minority of grants must not block the next attempt.
		select {
		case <-cleared:
		case <-waiting.Done():
		}
	}
}

// ReleaseLeases implements store.Leases. A release goes to all members, even if ctx has ended. If a
// member does not confirm it, it is retried there in the background until the lease is over. The
// lease was held if a majority had it. Without a majority of answers the error matches
// store.ErrUnavailable.
func (q *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	outcomes := make([]store.ReleaseOutcome, len(refs))
	errs := make([]error, len(refs))
	var wg sync.WaitGroup
	for i, ref := range refs {
		wg.Go(func() { outcomes[i], errs[i] = q.release(ctx, ref) })
	}
	wg.Wait()
	return outcomes, errors.Join(errs...)
}

func (q *Store) release(ctx context.Context, ref store.LeaseRef) (store.ReleaseOutcome, error) {
	h, named := q.requests.release(ref, len(q.members))
	if h == nil { // an attempt in flight releases its grants
		return store.NotHeld, nil
	}
	answers := callMembers(ctx, q, longestWait, func(ctx context.Context, i int, m *member) (bool, error) {
		h.settle(ctx, q, i, func() { m.releaseLater(h.on(i, ref)) })
		outcome, err := m.release(ctx, h.on(i, ref))
		return outcome == store.Released || outcome == store.ReleaseUnknown && err == nil, err
	})
	held, err := q.decide(ctx, answers)
	switch {
	case err != nil:
		return store.ReleaseUnknown, err
	case ref.Repeated:
		q.requests.released(ref.ID)
		return store.ReleaseUnknown, nil
	}
	q.requests.released(ref.ID)
	if held && named {
		return store.Released, nil
	}
	return store.NotHeld, nil
}

// VerifyLease implements store.LeaseVerifier: it reports whether a majority has the hold. Without a
// majority of answers the error matches store.ErrUnavailable.
func (q *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	h := q.requests.holdOf(ref)
	if h == nil {
		return false, nil
	}
	return q.decide(ctx, callMembers(ctx, q, longestWait, func(ctx context.Context, i int, m *member) (bool, error) {
		return m.VerifyLease(ctx, h.on(i, ref))
	}))
}

// AtShutdown implements store.Hooks.
func (q *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return q.hooks.AtShutdown(f)
}

// Shutdown finishes the pending steps of Lockers, and the releases that members have not confirmed,
// until ctx ends. Call it before the members are closed: it does not shut them down.
func (q *Store) Shutdown(ctx context.Context) error {
	errs := []error{q.hooks.Run(ctx), q.calls.Wait(ctx)}
	var (
		wg     sync.WaitGroup
		drains = make([]error, len(q.members))
	)
	for i, m := range q.members {
		wg.Go(func() { drains[i] = m.retries.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(append(errs, drains...)...)
}
