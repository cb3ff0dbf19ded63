package redisstore

import (
	"context"
	"crypto/rand"
	"iter"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// releasedFor is how long a delayed acquire of a released ID is refused.
const releasedFor = time.Minute

var releasedMillis any = releasedFor.Milliseconds()

var _ store.Locks = (*Store)(nil)

func (s *Store) newLockWaiter(req store.LockRequest, keys *lockKeys) *waiter {
	w := s.waiters.newWaiter(req.ID, beatLock, keys.withID(), store.ErrWithdrawn)
	w.fair = req.Fair
	return w
}

// AcquireLock implements store.Locks: one script call, and before the first one a check of the
// server's eviction policy.
func (s *Store) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	if s.hooks.Begun() {
		return store.LockReply{}, store.ErrClosed
	}
	c := s.newAcquireCall(req, s.lockKeys(req.Name, req.Key, req.ID))
	var w *waiter
	if req.Queue {
		w = s.registerWaiter(s.newLockWaiter(req, &c.keys))
	}
	reply, err := s.acquire(ctx, req, c)
	s.settleWaiter(w, err == nil && reply.Outcome == store.Queued, reply.place)
	return reply.LockReply, err
}

// AwaitLock implements store.Locks. It waits for a push, and sends heartbeats while it waits; the
// claim is one more script call.
func (s *Store) AwaitLock(ctx context.Context, req store.LockRequest) (grant store.Grant, err error) {
	if s.hooks.Begun() {
		return store.Grant{}, store.ErrClosed
	}
	req.Queue = true
	keys := s.lockKeys(req.Name, req.Key, req.ID)
	err = s.await(ctx, s.newLockWaiter(req, &keys), func() (bool, place, error) {
		reply, err := s.acquire(ctx, req, s.newAcquireCall(req, keys))
		if err == nil && reply.Outcome == store.Withdrawn {
			err = store.ErrWithdrawn
		}
		grant = reply.Grant
		return reply.Outcome == store.Granted, reply.place, err
	})
	if err != nil {
		return store.Grant{}, err
	}
	return grant, nil
}

// acquireReply is an AcquireReply with the request's place and the replicas' confirmations.
type acquireReply struct {
	store.LockReply
	place
	acks int // of replicas
}

// acquireCall has the arguments of a call of the script, in one allocation: converting a string to
// an interface allocates, converting a pointer does not.
type acquireCall struct {
	keys                                   lockKeys
	id, kind, queue, holder, key, pushMode string
	ttl, delay                             int64
	args                                   [10]any
}

func (s *Store) newAcquireCall(req store.LockRequest, keys lockKeys) *acquireCall {
	a := &acquireCall{
		keys: keys, id: req.ID, kind: "X", queue: "0", ttl: req.TTL.Microseconds(), delay: req.Delay.Microseconds(),
		holder: req.Holder, key: req.Key, pushMode: s.pushMode(req.Fair),
	}
	if req.Shared {
		a.kind = "S"
	}
	if req.Queue {
		a.queue = "1"
	}
	if len(s.config.secret) > 0 {
		a.key = ""
	}
	a.args = [...]any{
		&a.id, &a.kind, &a.queue, &a.ttl, &a.delay, min(max(req.Fences, 1), store.MaxFences),
		&s.inbox.channel, &a.holder, &a.key, &a.pushMode,
	}
	return a
}

// acquire requests a lock, or claims it.
func (s *Store) acquire(ctx context.Context, req store.LockRequest, c *acquireCall) (acquireReply, error) {
	st := script.Step{Call: acquireLock.Call(c.keys[:], c.args[:]...), Operation: opAcquireLock, Begins: true, Grants: true}
	s.listen()
	reply, err := script.Run(ctx, s.redis, st, func(r script.Reply) (acquireReply, error) {
		a, err := readAcquireReply(r.Value)
		if a.Outcome == store.Granted {
			a.Sent = r.Sent
		}
		a.acks = r.Acks
		return a, err
	})
	if err == nil && reply.Outcome == store.Granted && reply.acks < s.config.acks {
		release := func(ctx context.Context) error {
			_, err := s.ReleaseLock(ctx, store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID})
			return err
		}
		return acquireReply{}, s.notReplicated(ctx, reply.acks, release)
	}
	return reply, err
}

func readAcquireReply(reply any) (acquireReply, error) {
	var a acquireReply
	if fences, ok := reply.(string); ok { // a list would cost allocations
		var r script.Reader
		a.Outcome = store.Granted
		first, last, _ := strings.Cut(fences, " ")
		a.Fence, a.LastFence = r.Parse(first), r.Parse(last)
		return a, r.Err
	}
	r := script.Fields(reply)
	switch outcome := r.Text(); {
	case outcome == "withdrawn":
		a.Outcome = store.Withdrawn
	case (outcome == "queued" || outcome == "taken") && len(r.Left) == 5:
		a.Outcome = store.Taken
		if outcome == "queued" {
			a.Outcome = store.Queued
		}
		a.Holder, a.Remaining, a.Waiting = r.Text(), r.Micros(), int(r.Number())
		a.place = place{int(r.Number()), r.Micros()}
	default:
		return a, script.ErrOddReply
	}
	return a, r.Err
}

// RenewLocks implements store.Locks: one pipeline for each hundred.
func (s *Store) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	calls := make([]script.Call, len(reqs))
	for i, r := range reqs {
		keys := s.lockKeys(r.Name, r.Key, r.ID)
		calls[i] = renewLock.Call(keys.shared(), r.ID, r.TTL.Microseconds(), r.Delay.Microseconds())
	}
	return s.finishEach(ctx, opRenewLocks, calls, true)
}

// ReleaseLock implements store.Locks: one script call.
func (s *Store) ReleaseLock(ctx context.Context, req store.LockRef) (bool, error) {
	c := &struct { // one allocation, as above
		keys lockKeys
		id   string
		args [2]any
	}{keys: s.lockKeys(req.Name, req.Key, req.ID), id: req.ID}
	c.args = [...]any{&c.id, releasedMillis}
	held, err := s.finish(ctx, opReleaseLock, releaseLock.Call(c.keys.withID(), c.args[:]...))
	if err == nil {
		s.waiters.withdraw(req.ID)
	}
	return held, err
}

// DowngradeLock implements store.Locks: one script call.
func (s *Store) DowngradeLock(ctx context.Context, req store.LockRef) (bool, error) {
	keys := s.lockKeys(req.Name, req.Key, req.ID)
	return s.finish(ctx, opReleaseLock, downgradeLock.Call(keys.shared(), req.ID, req.TTL.Microseconds(), req.Delay.Microseconds()))
}

// VerifyLock implements store.Locks: one script call, which changes nothing.
func (s *Store) VerifyLock(ctx context.Context, req store.LockRef) (bool, error) {
	state, err := s.inspect(ctx, s.lockKeys(req.Name, req.Key, req.ID), req.ID)
	return err == nil && len(state.ids) == 1, err
}

// ForceUnlock implements store.Locks: a script call to find the hold, and one to end it. Its holder
// gets a push.
func (s *Store) ForceUnlock(ctx context.Context, name, key string, fence int64) (bool, error) {
	state, err := s.inspect(ctx, s.lockKeys(name, key, ""), "")
	if err != nil {
		return false, err
	}
	for i, h := range state.Holders {
		if fence < h.Fence || fence > h.LastFence {
			continue
		}
		id, me := state.ids[i], rand.Text()
		keys := s.lockKeys(name, key, id)
		return s.finish(ctx, opReleaseLock, forceUnlock.Call(keys.withID(), id, fence, me, releasedFor.Milliseconds()))
	}
	return false, nil
}

// lockState is a store.LockState with the IDs of the holders.
type lockState struct {
	store.LockState
	ids []string
}

// InspectLock implements store.Locks: one script call, which changes nothing.
func (s *Store) InspectLock(ctx context.Context, name, key string) (store.LockState, error) {
	state, err := s.inspect(ctx, s.lockKeys(name, key, ""), "")
	state.Key = key
	return state.LockState, err
}

// inspect returns the holders of a lock, or one of them by its ID.
func (s *Store) inspect(ctx context.Context, keys lockKeys, id string) (lockState, error) {
	st := script.Step{Call: inspectLock.Call(keys.shared(), id), Operation: opInspect}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (lockState, error) { return readState(r.Value) })
}

func readState(reply any) (lockState, error) {
	r := script.Fields(reply)
	state := lockState{LockState: store.LockState{Key: r.Text(), Waiting: int(r.Number())}}
	for len(r.Left) > 0 && r.Err == nil {
		state.ids = append(state.ids, r.Text())
		state.Holders = append(state.Holders, store.LockHolder{
			Shared: r.Text() == "S", Fence: r.Number(), LastFence: r.Number(), Remaining: r.Micros(), Meta: r.Text(),
		})
	}
	return state, r.Err
}

// ListLocks implements store.Locks: it scans all keys of every master, a thousand at a time. With
// WithSecret, the Key of each state is the hash of the lock's key.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[store.LockState, error] {
	return list(ctx, s, ofLocks, name,
		func(tag string) script.Call {
			keys := s.lockKeysOf(name, []byte(tag), "")
			return inspectLock.Call(keys.shared(), "")
		},
		func(tag string, reply any) (store.LockState, bool, error) {
			state, err := readState(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state.LockState, len(state.Holders) > 0 || state.Waiting > 0, err
		})
}
