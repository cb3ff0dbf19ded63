package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// shortTTL is the TTL below which a pushed grant is confirmed before it is used.
const shortTTL = 100 * time.Millisecond

// pushedGrant is a grant that a push has announced.
type pushedGrant struct {
	id          string
	first, last int64
	place       int64
	span        time.Duration
	sent        time.Time // of the process's last sign of life that the store had: no later than the grant
	record      string
}

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
	if s.waiters.startBeating() {
		s.redis.Start(s.sendBeats)
	}
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
		if req.Place == 0 {
			req.Place = w.place
		}
		reply, err := s.acquireLease(ctx, &req, &keys)
		s.waiters.answered(w, &req, &keys, &reply, err)
		switch {
		case err == nil && reply.Outcome == store.Granted:
			return reply.Grant, nil
		case err == nil && reply.Outcome == store.Queued:
		case err == nil: // it was withdrawn, or its weight does not fit any more
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
		c := s.newReleaseCallOf(leaseKeysOf([]byte(g.record)), &store.LeaseRef{ID: g.id, Fence: g.first}, linger(name))
		c.tombstone = "-"
		_, _ = s.finish(s.redis.Life(), opReleaseLeases, releaseLease.Call(c.keys[:], c.args[:]...))
	})
}
