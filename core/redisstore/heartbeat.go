package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// beatEvery is the time between heartbeats of a key, unless there are more than maxBeats keys: then
	// the process sends that many heartbeats in a second.
	beatEvery = time.Second
	maxBeats  = 2000
	// silentBeats is for how many intervals a waiter puts up with a silent server. Its place may be lost
	// earlier, and is restored if the server replies in time.
	silentBeats = 6
	// retryBeat is when a failed heartbeat is retried.
	retryBeat = 300 * time.Millisecond
	// recheckAfter is when a heartbeat is repeated that knows less than the process.
	recheckAfter = 50 * time.Millisecond
	// maxBeatKeys is how many keys share a script call on a single server.
	maxBeatKeys = 100
	// shortTTL is the TTL below which a pushed grant is confirmed before it is used.
	shortTTL = 100 * time.Millisecond
)

func jitter(most time.Duration) time.Duration { return rand.N(max(most, 1)) }

// AwaitLease implements store.Leases. It waits for a push, while the process sends heartbeats. A
// grant that has almost run out, or that is to be confirmed, costs one more script call.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if s.hooks.Begun() {
		return store.Grant{}, store.ErrClosed
	}
	if ctx.Err() != nil {
		return store.Grant{}, lease.Ended(ctx)
	}
	if req.Weight > req.Capacity-req.Reserve {
		return store.Grant{}, store.ErrWithdrawn
	}
	req.Queue, req.MaxWaiting = true, 0
	confirmed := req.Confirmed || s.config.acks > 0 || req.TTL < shortTTL
	over := s.hooks.Over()
	keys := s.leaseKeys(req.Name, req.Key)
	s.listen()
	w := s.waiters.await(&req, &keys)
	defer s.waiters.leave(w)
	s.keepBeating()
	for {
		select {
		case <-ctx.Done():
			return store.Grant{}, lease.Ended(ctx)
		case <-over:
			return store.Grant{}, store.ErrClosed
		case <-w.woken:
		}
		granted, ask, err := s.waiters.next(w, func(g *pushedGrant) bool {
			return !confirmed && time.Until(g.sent.Add(g.span)) >= g.span/4
		})
		switch {
		case err != nil:
			return store.Grant{}, err
		case granted != nil:
			return store.Grant{
				Sent: granted.sent, Fence: granted.first, LastFence: granted.last, Place: granted.place, TTL: granted.span, Untaken: true,
			}, nil
		case !ask:
			continue
		}
		s.waiters.asks(w)
		if req.Place == 0 {
			req.Place = w.place
		}
		reply, err := s.acquireLease(ctx, &req, &keys)
		s.waiters.answered(w, &req, &keys, &reply, err)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			return reply.Grant, nil
		case err == nil && reply.Outcome == store.Withdrawn:
			return store.Grant{}, store.ErrWithdrawn
		case err == nil && reply.Outcome == store.Queued:
		case err == nil: // its weight does not fit any more
			return store.Grant{}, store.ErrWithdrawn
		case ctx.Err() != nil:
			return store.Grant{}, lease.Ended(ctx)
		case errors.Is(err, ErrNotReplicated): // it was released
			return store.Grant{}, err
		default:
			s.waiters.askAgain(w, err)
		}
	}
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
func (s *Store) beat(due []*waitedKey) {
	together := maxBeatKeys
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		together = 1
	}
	var (
		calls  []script.Call
		groups [][]*waitedKey
	)
	head := []any{s.inbox.process, strconv.FormatInt(elapsed(), 10), s.pushMode(), s.waiters.deadAfter().Microseconds(), s.inbox.channels}
	for len(due) > 0 {
		group := due[:min(together, len(due))]
		due = due[len(group):]
		keys, args := make([]string, 0, 5*len(group)), append(make([]any, 0, len(head)+2*len(group)), head...)
		for _, k := range group {
			keys = append(keys, k.keys[:]...)
			args = append(args, k.linger, s.waiters.resets(k))
		}
		calls, groups = append(calls, beatLease.Call(keys, args...)), append(groups, group)
	}
	broken := s.inbox.broken()
	_ = s.redis.RunEach(s.redis.Life(), opBeat, script.Ordinary, calls, func(i int, reply any, err error) error {
		var r script.Reader
		if err == nil {
			r = *script.Fields(reply)
		}
		for _, k := range groups[i] {
			places, ends := 0, time.Duration(0)
			if err == nil {
				places, ends = int(r.Number()), r.Micros()
				err = r.Err
			}
			if err != nil {
				s.waiters.silent(k, err)
			} else {
				s.waiters.heard(k, places, ends, broken)
			}
		}
		return nil
	})
}

// pushedLease handles a push of a grant: see scripts/lib/lease.lua.
func (s *Store) pushedLease(text string) {
	f := strings.SplitN(text, " ", 7)
	if len(f) != 7 {
		return
	}
	var r script.Reader
	g := &pushedGrant{id: f[0], first: r.Parse(f[1]), last: r.Parse(f[2]), place: r.Parse(f[3]), record: f[6]}
	g.span = time.Duration(r.Parse(f[4])) * time.Microsecond
	g.sent = time.Now().Add(-time.Duration(elapsed()-r.Parse(f[5])) * time.Microsecond)
	if r.Err != nil || s.waiters.push(g) {
		return
	}
	// Nobody waits for it any more, or the ID holds another lease.
	s.redis.Start(func() {
		_, name, _ := strings.Cut(g.record, "}:")
		c := s.newReleaseCallOf(leaseKeysOf(g.record), &store.LeaseRef{ID: g.id, Fence: g.first}, linger(name))
		c.tombstone = "-"
		_, _ = s.finish(s.redis.Life(), opReleaseLeases, releaseLease.Call(c.keys[:], c.args[:]...))
	})
}
