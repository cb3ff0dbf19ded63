package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A request stays in a queue for as long as it sends heartbeats. The first few of a queue send them
// often, since they are next; all do while pushes do not arrive. scripts/constants.lua has the same
// numbers.
const (
	front      = 3
	frontBeat  = time.Second
	frontLife  = 3 * frontBeat // also that of a new request
	behindLife = 3 * 10 * time.Second
	// retryBeat is when a failed heartbeat is retried.
	retryBeat = 300 * time.Millisecond
)

// registerWaiter registers a request before it is sent, so that no push comes too early.
func (s *Store) registerWaiter(w *waiter) *waiter {
	w.queuedWithoutInbox = s.inbox.broken()
	return s.waiters.register(w, false)
}

// settleWaiter records the outcome of the request.
func (s *Store) settleWaiter(w *waiter, queued bool, at place) {
	switch {
	case w == nil:
	case queued:
		s.waiters.keepUnawaited(w)
		s.recordPlace(w, at, frontLife)
	default:
		s.waiters.discard(w)
	}
}

// claim tries to claim the lock or permit of a waiter. If it fails without an error, it returns the
// place in the queue, and how long the current hold is expected to block it at least.
type claim func() (has bool, at place, err error)

type place struct {
	rank    int
	blocked time.Duration
}

// await blocks until a claim succeeds, and sends heartbeats while it waits. A push triggers a
// claim.
func (s *Store) await(ctx context.Context, w *waiter, try claim) error {
	if ctx.Err() != nil {
		return lease.Ended(ctx)
	}
	over := s.hooks.Over()
	s.listen()
	w = s.waiters.register(w, true)
	s.waiters.update(w, func() {
		if w.queuedWithoutInbox && !s.inbox.broken() { // a push may have been lost before the subscription
			w.due = time.Now()
		}
	})
	defer s.waiters.remove(w)
	s.keepBeating()
	for {
		select {
		case <-ctx.Done():
			return lease.Ended(ctx)
		case <-over:
			return store.ErrClosed
		case <-w.woken:
		}
		if err := s.waiters.ended(w); err != nil {
			return err
		}
		has, at, err := try()
		switch {
		case err == nil && has:
			return nil
		case err == nil: // not its turn yet, or queued again
			s.recordPlace(w, at, frontLife)
		case ctx.Err() != nil:
			return lease.Ended(ctx)
		case errors.Is(err, w.withdrawn), errors.Is(err, ErrNotReplicated): // the request was released
			return err
		default:
			s.recordSilence(w, err)
		}
	}
}

// recordPlace records the place of a request in the queue, and its TTL there. Its next heartbeat
// depends on that: there is no push when a hold expires.
func (s *Store) recordPlace(w *waiter, at place, life time.Duration) {
	wait := life / 3
	if s.inbox.broken() {
		wait = frontBeat
	}
	wait -= rand.N(wait / 5)
	if free := at.blocked + time.Millisecond + rand.N(20*time.Millisecond); at.rank == 0 && at.blocked > 0 && free < wait {
		wait = free
	}
	now := time.Now()
	s.waiters.update(w, func() { w.lastReply, w.ttl, w.due = now, life, now.Add(wait) })
}

// recordSilence records that the store did not reply, and ends the wait if the place must have
// expired.
func (s *Store) recordSilence(w *waiter, err error) {
	now := time.Now()
	s.waiters.update(w, func() {
		w.due = now.Add(retryBeat - rand.N(retryBeat/3))
		if now.Sub(w.lastReply) > w.ttl {
			w.end(err)
		}
	})
}

// keepBeating starts sending heartbeats, unless that is running.
func (s *Store) keepBeating() {
	if s.waiters.startBeating() {
		s.redis.Start(s.sendBeats)
	}
}

// sendBeats sends heartbeats when they are due, while there are waiters.
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
		case <-s.redis.Life().Done():
			return
		}
	}
}

// beat sends heartbeats, and handles the replies.
func (s *Store) beat(due []*waiter) {
	calls := make([]script.Call, len(due))
	for i, w := range due {
		calls[i] = w.beat.Call(w.keys, w.id, s.pushMode(w.fair))
	}
	_ = s.redis.RunEach(s.redis.Life(), opBeat, script.Ordinary, calls, func(i int, reply any, err error) error {
		if err != nil {
			s.recordSilence(due[i], err)
		} else {
			s.handleBeat(due[i], reply)
		}
		return nil
	})
}

// handleBeat handles the reply to a heartbeat.
func (s *Store) handleBeat(w *waiter, reply any) {
	r := script.Fields(reply)
	switch outcome := r.Text(); {
	case outcome == "queued" && len(r.Left) == 2:
		at := place{int(r.Number()), r.Micros()}
		life := behindLife
		if at.rank < front {
			life = frontLife
		}
		if r.Err == nil {
			s.recordPlace(w, at, life)
			return
		}
	case outcome == "granted":
		s.waiters.update(w, w.wake)
		return
	case outcome == "missing": // if the server has lost this one, it may have lost all
		s.waiters.update(w, w.wake)
		s.waiters.heartbeatNow(frontBeat)
		return
	case outcome == "withdrawn":
		s.waiters.update(w, func() { w.end(w.withdrawn) })
		return
	}
	s.recordSilence(w, script.ErrOddReply)
}
