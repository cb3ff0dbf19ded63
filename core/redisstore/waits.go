package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// A request in a queue lives there for as long as it beats. The first few of a queue beat often,
// since they are next; so does everybody while pushes do not arrive. scripts/lock.lua has the lives
// that go with these.
const (
	front      = 3
	frontBeat  = time.Second
	frontLife  = 3 * frontBeat // that of whoever has just come, too
	behindLife = 3 * 10 * time.Second
	// retryBeat is when a beat that failed is tried again.
	retryBeat = 300 * time.Millisecond
)

func newWaiter(req lock.AcquireRequest, keys lockKeys) *waiter {
	now := time.Now()
	return &waiter{
		id: req.ID, keys: keys.withID(), added: now, due: now, heard: now, life: frontLife,
		fair: req.Fair, claim: make(chan struct{}, 1), over: make(chan error, 1),
	}
}

// AwaitLock implements lock.Store. It waits for a push, and beats meanwhile; the grant itself is
// one more script call.
func (s *Store) AwaitLock(ctx context.Context, req lock.AcquireRequest) (lock.Grant, error) {
	if s.closed.Load() {
		return lock.Grant{}, outage.ErrClosed
	}
	if ctx.Err() != nil {
		return lock.Grant{}, lease.Ended(ctx)
	}
	s.listen()
	req.Queue = true
	keys := s.lockKeys(req.Name, req.Key, req.ID)
	w := s.waiters.expect(newWaiter(req, keys), true)
	s.waiters.update(w, func() {
		if w.deaf && !s.inbox.deaf() { // the push may have come before there was a subscription
			w.due = time.Now()
		}
	})
	defer s.waiters.forget(w)
	s.keepBeating()
	for {
		select {
		case <-ctx.Done():
			return lock.Grant{}, lease.Ended(ctx)
		case <-s.stop:
			return lock.Grant{}, outage.ErrClosed
		case err := <-w.over:
			return lock.Grant{}, err
		case <-w.claim:
		}
		reply, err := s.acquire(ctx, req, keys)
		switch {
		case err == nil && reply.Outcome == lock.Granted:
			return reply.Grant, nil
		case err == nil && reply.Outcome == lock.Withdrawn:
			return lock.Grant{}, lock.ErrWithdrawn
		case err == nil: // it is not its turn, or was not in the queue any more
			s.placed(w, reply.rank, frontLife, reply.blocked)
		case ctx.Err() != nil:
			return lock.Grant{}, lease.Ended(ctx)
		case errors.Is(err, ErrNotReplicated): // the request has been released
			return lock.Grant{}, err
		default:
			s.silent(w, err)
		}
	}
}

// placed notes where in the queue a request is, for how long it lives there, and for how long the
// lock is not free. Its next beat depends on that: nothing is pushed when a hold expires.
func (s *Store) placed(w *waiter, rank int, life, blocked time.Duration) {
	wait := life / 3
	if s.inbox.deaf() {
		wait = frontBeat
	}
	wait -= rand.N(wait / 5)
	if free := blocked + time.Millisecond + rand.N(20*time.Millisecond); rank == 0 && blocked > 0 && free < wait {
		wait = free
	}
	now := time.Now()
	s.waiters.update(w, func() { w.heard, w.life, w.due = now, life, now.Add(wait) })
}

// silent notes that the store did not answer, and ends the wait if the place must be lost.
func (s *Store) silent(w *waiter, err error) {
	now := time.Now()
	s.waiters.update(w, func() {
		w.due = now.Add(retryBeat - rand.N(retryBeat/3))
		if now.Sub(w.heard) > w.life {
			w.end(err)
		}
	})
}

// keepBeating sees to it that beats are sent while anybody waits.
func (s *Store) keepBeating() {
	if s.waiters.startBeating() {
		s.start(s.sendBeats)
	}
}

// sendBeats sends beats as they are due, until nobody waits.
func (s *Store) sendBeats() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, more := s.waiters.dueNow()
		if !more {
			return
		}
		if len(due) > 0 {
			s.beat(due)
			continue
		}
		if echo := s.checkInbox(); echo.Before(next) {
			next = echo
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-s.waiters.changed:
		case <-s.stop:
			return
		}
	}
}

// beat sends beats, and wakes who has to do something.
func (s *Store) beat(due []*waiter) {
	keys, args := make([][]string, len(due)), make([][]any, len(due))
	for i, w := range due {
		keys[i], args[i] = w.keys, []any{w.id, s.tells(w.fair)}
	}
	s.eachBatch(s.life, keys, func(batch []int) {
		cmds, err := call(s.life, s, ordinary, func(ctx context.Context) ([]*redis.Cmd, error) {
			cmds := s.evalEach(ctx, beatLock, pick(keys, batch), pick(args, batch))
			for _, cmd := range cmds {
				if err := cmd.Err(); err != nil && (!isReply(err) || didNotRun(err)) {
					return cmds, err
				}
			}
			return cmds, nil
		})
		for i, w := range pick(due, batch) {
			if cmds == nil {
				s.silent(w, err)
			} else if reply, err := cmds[i].Result(); err != nil {
				s.silent(w, explain(err, false))
			} else {
				s.beaten(w, reply)
			}
		}
	})
}

// beaten acts on the reply to a beat.
func (s *Store) beaten(w *waiter, reply any) {
	r := fields(reply)
	switch outcome := r.text(); {
	case outcome == "queued" && len(r.left) == 2:
		rank, blocked := int(r.number()), r.micros()
		life := behindLife
		if rank < front {
			life = frontLife
		}
		if r.err == nil {
			s.placed(w, rank, life, blocked)
			return
		}
	case outcome == "granted":
		s.waiters.update(w, w.wake)
		return
	case outcome == "missing": // if the server has forgotten this one, then perhaps all
		s.waiters.update(w, w.wake)
		s.waiters.hurry(frontBeat)
		return
	case outcome == "withdrawn":
		s.waiters.update(w, func() { w.end(lock.ErrWithdrawn) })
		return
	}
	s.silent(w, errOddReply)
}
