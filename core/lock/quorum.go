package lock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/errand"
	"github.com/lockkeeper/lockkeeper/internal/namesake"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/shutdown"
)

// QuorumMember is one of the stores that a [Quorum] is made of. The stores of core/memstore and
// core/redisstore are such.
//
// All methods return soon after their context has ended. Those that [Store] has too do what it says.
type QuorumMember interface {
	AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error)
	RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error)
	ReleaseLock(ctx context.Context, req store.LockRef) (bool, error)
	VerifyLock(ctx context.Context, req store.LockRef) (bool, error)

	// RaiseFence makes every fence that the member gives to the lock from now on larger than least.
	RaiseFence(ctx context.Context, name, key string, least int64) error

	// Uptime says for how long the member has kept what it was told. It may say less than that, and
	// never more.
	Uptime(ctx context.Context) (time.Duration, error)
}

// QuorumStore is a Store made of others: see [Quorum].
type QuorumStore struct {
	members  []*quorumMember
	majority int
	longest  atomic.Int64 // what a member may have forgotten, as a duration
	hooks    shutdown.Hooks
	errands  errand.Group
	requests quorumRequests

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var _ namesake.Store = (*QuorumStore)(nil)

var _ store.Locks = (*QuorumStore)(nil)

// Quorum returns a store that keeps every lock on a majority of independent stores, so that locks
// outlive the loss of the others: two of five may fail. It is the algorithm Redlock, "Distributed
// Locks with Redis" on redis.io, with a fence.
//
// The members must be servers of their own that share nothing and are not replicated: a replica that
// takes over has not seen every lock, and counts as a member that has been up all the time. Every
// process must name the same ones, and agree on the leases of its locks ([QuorumStore.ExpectTTL]).
// Quorum returns an error for fewer than three members, and for a nil or repeated one.
//
// What it promises has conditions: the clocks of processes and members run at about the same speed
// (a hundredth of a lease apart at most), nobody sets a member's clock forward, and a member that
// loses its data says so in its Uptime: a Redis that is restarted does, one that is flushed or evicts
// keys does not. As with every lock of this kind, a holder that is paused, or
// whose write is delayed, for longer than its lease does harm that only the fence keeps out; a quorum
// makes locks available, and the fence is what excludes. Fences grow from one hold to the next, except
// that a member which has lost its data, and whose clock is behind the others' by more than a lease,
// may let one go back.
//
// It can lock exclusively, renew, release and verify. Nobody queues: whoever waits asks again after a
// random delay, so that callers in different processes are served in no order. Shared locks,
// downgrades, Inspect, List and ForceUnlock answer [ErrNotSupported]. A lock takes three round trips to
// the members, all at once, for the votes, for the age of those that voted, and for the fence.
//
// A member that has lost its data could help a second holder to a majority. Its votes do not count
// until it has been up for longer than any lease that it may have forgotten. So after the start of a
// majority of members nothing can be locked for that long.
func Quorum(members ...QuorumMember) (*QuorumStore, error) {
	if len(members) < 3 {
		return nil, fmt.Errorf("lock: Quorum: %d members, at least 3 are needed", len(members))
	}
	q := &QuorumStore{namesakes: new(namesakes), majority: len(members)/2 + 1}
	seen := make(map[QuorumMember]bool)
	for i, m := range members {
		if naming.IsNil(m) {
			return nil, fmt.Errorf("lock: Quorum: member %d is nil", i)
		}
		if reflect.ValueOf(m).Comparable() {
			if seen[m] {
				return nil, fmt.Errorf("lock: Quorum: member %d is there twice", i)
			}
			seen[m] = true
		}
		q.members = append(q.members, &quorumMember{QuorumMember: m})
	}
	return q, nil
}

// ExpectTTL says that processes may hold locks on these members with leases of up to ttl, their
// lock-delay included. A member that was restarted stays out for as long. The longest that this
// process has asked for is known without being told, so it is needed only where another process uses
// longer ones. The expectation never shrinks. It panics if ttl is negative or less than a millisecond,
// but not zero.
func (q *QuorumStore) ExpectTTL(ttl time.Duration) {
	if ttl != 0 && ttl < time.Millisecond {
		panic(fmt.Sprintf("lock: ExpectTTL: %v is neither 0 nor at least 1ms", ttl))
	}
	for {
		old := q.longest.Load()
		if old >= int64(ttl) || q.longest.CompareAndSwap(old, int64(ttl)) {
			return
		}
	}
}

// AcquireLock implements store.Locks. The lock is granted if a majority grants it within the lease. If not,
// what was granted is given back in the background, and the reply is Queued or Taken if a majority has
// answered (Withdrawn if the ID was released before), and otherwise an error that matches store.ErrUnavailable.
func (q *QuorumStore) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	if req.Shared {
		return store.LockReply{}, ErrNotSupported
	}
	if reply, ok := q.requests.again(req.ID); ok {
		return reply, nil
	}
	reply, _, err := q.elect(ctx, req)
	if err == nil && reply.Outcome == store.Taken && req.Queue {
		reply.Outcome = store.Queued
		q.requests.queue(req.ID)
	}
	return reply, err
}

const (
	// pollMin to pollMax is what passes between two requests of one that waits.
	pollMin, pollMax = 10 * time.Millisecond, 200 * time.Millisecond
	// maxSilence is for how long one that waits puts up with a majority that does not answer.
	maxSilence = 3 * time.Second
)

// AwaitLock implements store.Locks. It asks again and again, after delays that are random, so that two who
// have split the votes do not meet for ever, and grow, up to 200 ms. If a majority has not answered
// for 3 s, it returns an error that matches store.ErrUnavailable.
func (q *QuorumStore) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	if req.Shared {
		return store.Grant{}, ErrNotSupported
	}
	waiting, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	place, grant, err := q.requests.await(req.ID, withdraw)
	if place == nil {
		return grant, err
	}
	defer q.requests.leave(place)
	stopped := func() error {
		if errors.Is(context.Cause(waiting), store.ErrWithdrawn) {
			return store.ErrWithdrawn
		}
		return ctx.Err()
	}

	pause := newPollDelay()
	heard := time.Now()
	for {
		if !sleep(waiting, pause()) {
			return store.Grant{}, stopped()
		}
		// Members refuse an ID that was given back, so every attempt has its own.
		attempt := req
		attempt.ID = naming.NewID()
		reply, cleared, err := q.elect(waiting, attempt)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			if !q.requests.granted(place, attempt, reply.Grant) {
				q.giveBack(attempt.Ref(), q.members)
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
		// What the last attempt has got must not stand in the way of the next.
		select {
		case <-cleared:
		case <-waiting.Done():
		}
	}
}

// ReleaseLock implements store.Locks. All members are asked, whatever ctx says, and those that do not answer
// are asked again in the background until they do, or until the lease is over. It reports whether a
// majority had the hold. If that cannot be told, the error matches store.ErrUnavailable.
func (q *QuorumStore) ReleaseLock(ctx context.Context, req store.LockRef) (bool, error) {
	if req.Shared {
		return false, ErrNotSupported
	}
	id, withdrawn := q.requests.release(req)
	if withdrawn { // an attempt that is under way gives back what it gets
		return false, nil
	}
	asked := req
	asked.ID = id
	held, err := q.decide(ctx, askMembers(ctx, q, longestWait, func(ctx context.Context, m *quorumMember) (bool, error) {
		return m.release(ctx, asked)
	}))
	if err == nil {
		q.requests.released(req.ID)
	}
	return held, err
}

// VerifyLock implements store.Locks: it reports whether a majority has the hold. If that cannot be told for
// want of answers, the error matches store.ErrUnavailable.
func (q *QuorumStore) VerifyLock(ctx context.Context, req store.LockRef) (bool, error) {
	if req.Shared {
		return false, ErrNotSupported
	}
	req.ID = q.requests.memberID(req)
	return q.decide(ctx, askMembers(ctx, q, longestWait, func(ctx context.Context, m *quorumMember) (bool, error) {
		return m.VerifyLock(ctx, req)
	}))
}

// DowngradeLock answers [ErrNotSupported].
func (q *QuorumStore) DowngradeLock(context.Context, store.LockRef) (bool, error) {
	return false, ErrNotSupported
}

// InspectLock answers [ErrNotSupported].
func (q *QuorumStore) InspectLock(context.Context, string, string) (store.LockState, error) {
	return store.LockState{}, ErrNotSupported
}

// ListLocks answers [ErrNotSupported].
func (q *QuorumStore) ListLocks(context.Context, string) iter.Seq2[store.LockState, error] {
	return func(yield func(store.LockState, error) bool) { yield(store.LockState{}, ErrNotSupported) }
}

// ForceUnlock answers [ErrNotSupported].
func (q *QuorumStore) ForceUnlock(context.Context, string, string, int64) (bool, error) {
	return false, ErrNotSupported
}

// NotifyLost does nothing: holders find out when they renew.
func (q *QuorumStore) NotifyLost(func(id string)) (remove func()) { return func() {} }

// AtShutdown implements store.Locks.
func (q *QuorumStore) AtShutdown(f func(context.Context) error) (remove func()) {
	return q.hooks.AtShutdown(f)
}

// Shutdown finishes what Lockers have pending, and what members have not confirmed, until ctx ends.
// Call it before the members are closed: it does not shut them down.
func (q *QuorumStore) Shutdown(ctx context.Context) error {
	errs := []error{q.hooks.Run(ctx), q.errands.Wait(ctx)}
	var (
		wg     sync.WaitGroup
		drains = make([]error, len(q.members))
	)
	for i, m := range q.members {
		wg.Go(func() { drains[i] = m.redo.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(append(errs, drains...)...)
}
