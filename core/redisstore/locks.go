package redisstore

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

// releasedFor is for how long a delayed acquire of a released id is refused.
const releasedFor = time.Minute

var _ lock.Store = (*Store)(nil)

// lockKeys are the Redis keys of a lock and of an id, in one slot of a Cluster: the record, the
// holds, the queue, and who is alive in it, of which scripts/lock.lua has the layout; what tells that
// the id has been released; and the largest fence.
type lockKeys []string

// lock is what every script of a lock has.
func (k lockKeys) lock() []string { return k[:4] }

// withID is what a script has that may end what the id stands for.
func (k lockKeys) withID() []string { return k[:5] }

func (k lockKeys) fence() string { return k[5] }

// lockKeys names the Redis keys of a lock. Only the record's ends in the lock's name.
func (s *Store) lockKeys(name, key, id string) lockKeys {
	return s.taggedLockKeys(name, s.tag(name, key), id)
}

func (s *Store) taggedLockKeys(name, tag, id string) lockKeys {
	// Pieces of one string: a lock is asked for often.
	endings := [6][2]string{{":", name}, {"h"}, {"q"}, {"w"}, {"x:", id}, {"f"}}
	stem := len(s.config.prefix) + len(":l:{}") + len(tag)
	var b strings.Builder
	b.Grow(6*(stem+1) + len(name) + 1 + len(id))
	for _, end := range endings {
		b.WriteString(s.config.prefix)
		b.WriteString(":l:{")
		b.WriteString(tag)
		b.WriteString("}")
		b.WriteString(end[0])
		b.WriteString(end[1])
	}
	keys, text := make(lockKeys, len(endings)), b.String()
	for i, end := range endings {
		n := stem + len(end[0]) + len(end[1])
		keys[i], text = text[:n], text[n:]
	}
	return keys
}

// AcquireLock implements lock.Store: one script call, and before the first one a look at the
// server's eviction policy.
func (s *Store) AcquireLock(ctx context.Context, req lock.AcquireRequest) (lock.AcquireReply, error) {
	keys := s.lockKeys(req.Name, req.Key, req.ID)
	var w *waiter
	if req.Queue { // known before it is sent, so that no push comes too early
		w = newWaiter(req, keys)
		w.deaf = s.inbox.deaf()
		w = s.waiters.expect(w, false)
	}
	reply, err := s.acquire(ctx, req, keys)
	if w != nil {
		if err == nil && reply.Outcome == lock.Queued {
			s.placed(w, reply.rank, frontLife, reply.blocked)
		} else {
			s.waiters.dismiss(w)
		}
	}
	return reply.AcquireReply, err
}

// acquireReply has what a waiter wants to know besides.
type acquireReply struct {
	lock.AcquireReply
	rank    int           // in the queue
	blocked time.Duration // until the lock may be free
	acks    int           // from replicas
}

// acquire asks for a lock, or claims it.
func (s *Store) acquire(ctx context.Context, req lock.AcquireRequest, keys lockKeys) (acquireReply, error) {
	kind, queue, key := "X", 0, req.Key
	if req.Shared {
		kind = "S"
	}
	if req.Queue {
		queue = 1
	}
	if len(s.config.secret) > 0 {
		key = ""
	}
	args := []any{
		req.ID, kind, queue, req.TTL.Microseconds(), req.Delay.Microseconds(),
		min(max(req.Fences, 1), lock.MaxFences), s.inbox.channel, req.Holder, key, s.tells(req.Fair),
	}
	reply, err := call(ctx, s, ordinary, func(ctx context.Context) (acquireReply, error) {
		if err := s.checkEviction(ctx); err != nil {
			return acquireReply{}, err
		}
		s.listen()
		sent := time.Now()
		reply, acks, err := s.evalAcked(ctx, acquireLock, keys, args...)
		if err != nil {
			return acquireReply{}, err
		}
		a, err := readAcquireReply(reply)
		if a.Outcome == lock.Granted {
			a.Sent = sent
		}
		a.acks = acks
		return a, err
	})
	if err == nil && reply.Outcome == lock.Granted && reply.acks < s.config.acks {
		return acquireReply{}, s.notReplicated(ctx, req, reply.acks)
	}
	return reply, err
}

func readAcquireReply(reply any) (acquireReply, error) {
	var a acquireReply
	r := fields(reply)
	switch outcome := r.text(); {
	case outcome == "granted" && len(r.left) == 1:
		a.Outcome = lock.Granted
		first, last, _ := strings.Cut(r.text(), " ")
		a.Fence, a.LastFence = r.parse(first), r.parse(last)
	case outcome == "withdrawn":
		a.Outcome = lock.Withdrawn
	case (outcome == "queued" || outcome == "taken") && len(r.left) == 5:
		a.Outcome = lock.Taken
		if outcome == "queued" {
			a.Outcome = lock.Queued
		}
		a.Holder, a.Remaining, a.Waiting = r.text(), r.micros(), int(r.number())
		a.rank, a.blocked = int(r.number()), r.micros()
	default:
		return a, errOddReply
	}
	return a, r.err
}

// RenewLocks implements lock.Store: one pipeline for each hundred.
func (s *Store) RenewLocks(ctx context.Context, reqs []lock.HoldRequest) ([]bool, error) {
	keys, args := make([][]string, len(reqs)), make([][]any, len(reqs))
	for i, r := range reqs {
		keys[i] = s.lockKeys(r.Name, r.Key, r.ID).lock()
		args[i] = []any{r.ID, r.TTL.Microseconds(), r.Delay.Microseconds()}
	}
	return s.renewEach(ctx, renewLock, keys, args)
}

// ReleaseLock implements lock.Store: one script call.
func (s *Store) ReleaseLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	keys := s.lockKeys(req.Name, req.Key, req.ID)
	held, err := owned(ctx, s, func(ctx context.Context) (any, error) {
		return s.eval(ctx, false, releaseLock, keys.withID(), req.ID, releasedFor.Milliseconds())
	})
	if err == nil {
		s.waiters.withdraw(req.ID)
	}
	return held, err
}

// DowngradeLock implements lock.Store: one script call.
func (s *Store) DowngradeLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	return owned(ctx, s, func(ctx context.Context) (any, error) {
		return s.eval(ctx, false, downgradeLock, s.lockKeys(req.Name, req.Key, req.ID).lock(),
			req.ID, req.TTL.Microseconds(), req.Delay.Microseconds())
	})
}

// VerifyLock implements lock.Store: one script call, which changes nothing.
func (s *Store) VerifyLock(ctx context.Context, req lock.HoldRequest) (bool, error) {
	state, err := s.inspect(ctx, s.lockKeys(req.Name, req.Key, req.ID), req.ID)
	return err == nil && len(state.ids) == 1, err
}

// ForceUnlock implements lock.Store: a script call to find the hold, and one to end it. Its holder
// is told by a push.
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
		return owned(ctx, s, func(ctx context.Context) (any, error) {
			return s.eval(ctx, false, forceUnlock, s.lockKeys(name, key, id).withID(), id, fence, me, releasedFor.Milliseconds())
		})
	}
	return false, nil
}
