package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A request in a queue lives there for as long as it beats. The first few of a queue beat often,
// since they are next; so does everybody while pushes do not arrive. scripts/constants.lua has the same
// numbers.
const (
	front      = 3
	frontBeat  = time.Second
	frontLife  = 3 * frontBeat // that of whoever has just come, too
	behindLife = 3 * 10 * time.Second
	// retryBeat is when a beat that failed is tried again.
	retryBeat = 300 * time.Millisecond
)

// expect notes a request that is to be sent, so that no push comes too early.
func (s *Store) expect(w *waiter) *waiter {
	w.deaf = s.inbox.deaf()
	return s.waiters.expect(w, false)
}

// expected notes what became of it.
func (s *Store) expected(w *waiter, queued bool, at place) {
	switch {
	case w == nil:
	case queued:
		s.waiters.keep(w)
		s.placed(w, at, frontLife)
	default:
		s.waiters.dismiss(w)
	}
}

// claim tries to have what a waiter waits for. It reports whether it does; if not, where in the queue
// the request is, and for how long what is in its way is at least expected to stay.
type claim func() (has bool, at place, err error)

type place struct {
	rank    int
	blocked time.Duration
}

// await waits until a claim succeeds, and beats meanwhile. A push says when to try.
func (s *Store) await(ctx context.Context, w *waiter, try claim) error {
	if ctx.Err() != nil {
		return lease.Ended(ctx)
	}
	over := s.hooks.Over()
	s.listen()
	w = s.waiters.expect(w, true)
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
		case err == nil: // it is not its turn, or was not in the queue any more
			s.placed(w, at, frontLife)
		case ctx.Err() != nil:
			return lease.Ended(ctx)
		case errors.Is(err, w.withdrawn), errors.Is(err, ErrNotReplicated): // the request has been released
			return err
		default:
			s.silent(w, err)
		}
	}
}

// placed notes where in the queue a request is, and for how long it lives there. Its next beat depends
// on that: nothing is pushed when a hold expires.
func (s *Store) placed(w *waiter, at place, life time.Duration) {
	wait := life / 3
	if s.inbox.deaf() {
		wait = frontBeat
	}
	wait -= rand.N(wait / 5)
	if free := at.blocked + time.Millisecond + rand.N(20*time.Millisecond); at.rank == 0 && at.blocked > 0 && free < wait {
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
	calls := make([]scriptCall, len(due))
	for i, w := range due {
		calls[i] = scriptCall{w.beat, w.keys, []any{w.id, s.tells(w.fair)}}
	}
	s.eachBatch(s.life, calls, func(n *node, batch []int) {
		replies, err := call(s.life, n, opBeat, ordinary, func(ctx context.Context) ([]evaluated, error) {
			s.telemetry.Batch(ctx, len(batch))
			replies := s.evalEach(ctx, false, pick(calls, batch))
			for _, e := range replies {
				if e.err != nil && (!isReply(e.err) || didNotRun(e.err)) {
					return replies, e.err
				}
			}
			return replies, nil
		})
		for i, w := range pick(due, batch) {
			switch {
			case replies == nil:
				s.silent(w, err)
			case replies[i].err != nil:
				s.silent(w, explain(replies[i].err, false))
			default:
				s.beaten(w, replies[i].reply)
			}
		}
	})
}

// beaten acts on the reply to a beat.
func (s *Store) beaten(w *waiter, reply any) {
	r := fields(reply)
	switch outcome := r.text(); {
	case outcome == "queued" && len(r.left) == 2:
		at := place{int(r.number()), r.micros()}
		life := behindLife
		if at.rank < front {
			life = frontLife
		}
		if r.err == nil {
			s.placed(w, at, life)
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
		s.waiters.update(w, func() { w.end(w.withdrawn) })
		return
	}
	s.silent(w, errOddReply)
}
