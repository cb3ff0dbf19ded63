package redisstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var _ store.Permits = (*Store)(nil)

func (s *Store) newPermitWaiter(req store.PermitRequest, keys []string) *waiter {
	return s.waiters.newWaiter(req.ID, beatPermit, keys, store.ErrWithdrawn)
}

// AcquirePermits implements store.Permits: one script call, and before the first one a check of the
// server's eviction policy.
func (s *Store) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	if s.hooks.Begun() {
		return store.PermitReply{}, store.ErrClosed
	}
	keys := s.permitKeys(req.Name, req.Key, req.ID)
	var w *waiter
	if req.Queue {
		w = s.registerWaiter(s.newPermitWaiter(req, keys))
	}
	reply, err := s.acquirePermit(ctx, req, keys, 1)
	s.settleWaiter(w, err == nil && reply.Outcome == store.Queued, reply.place)
	return reply.PermitReply, err
}

// AwaitPermits implements store.Permits. It waits for a push, and sends heartbeats while it waits;
// the claim is one more script call.
func (s *Store) AwaitPermits(ctx context.Context, req store.PermitRequest) (grant store.Grant, err error) {
	if s.hooks.Begun() {
		return store.Grant{}, store.ErrClosed
	}
	req.Queue = true
	req.MaxWaiting = 0 // it is in the queue, or is queued again if the server has lost it
	keys := s.permitKeys(req.Name, req.Key, req.ID)
	err = s.await(ctx, s.newPermitWaiter(req, keys), func() (bool, place, error) {
		reply, err := s.acquirePermit(ctx, req, keys, 2)
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

// permitReply is an AcquireReply with the request's place and the replicas' confirmations.
type permitReply struct {
	store.PermitReply
	place
	acks int // of replicas
}

// acquirePermit requests a permit, or claims it. queue is the argument of
// scripts/acquire_permit.lua.
func (s *Store) acquirePermit(ctx context.Context, req store.PermitRequest, keys []string, queue int) (permitReply, error) {
	barges, key := "F", req.Key
	if !req.Queue {
		queue = 0
	}
	if req.Barging {
		barges = "B"
	}
	if len(s.config.secret) > 0 {
		key = ""
	}
	args := []any{
		req.ID, req.Weight, req.Capacity, queue, barges, req.MaxWaiting, req.TTL.Microseconds(),
		s.inbox.channel, req.Holder, key, s.pushMode(false),
	}
	st := script.Step{Call: acquirePermit.Call(keys, args...), Operation: opAcquirePermits, Begins: true, Grants: true}
	s.listen()
	reply, err := script.Run(ctx, s.redis, st, func(r script.Reply) (permitReply, error) {
		a, err := readPermitReply(r.Value)
		if a.Outcome == store.Granted {
			a.Sent = r.Sent
		}
		a.acks = r.Acks
		return a, err
	})
	if err == nil && reply.Outcome == store.Granted && reply.acks < s.config.acks {
		release := func(ctx context.Context) error {
			_, err := s.ReleasePermits(ctx, []store.PermitRef{{Name: req.Name, Key: req.Key, ID: req.ID}})
			return err
		}
		return permitReply{}, s.notReplicated(ctx, reply.acks, release)
	}
	return reply, err
}

func readPermitReply(reply any) (permitReply, error) {
	var a permitReply
	if fence, ok := reply.(string); ok { // a list would cost allocations
		var r script.Reader
		a.Outcome, a.Fence = store.Granted, r.Parse(fence)
		return a, r.Err
	}
	r := script.Fields(reply)
	switch outcome := r.Text(); {
	case outcome == "withdrawn":
		a.Outcome = store.Withdrawn
	case (outcome == "queued" || outcome == "taken" || outcome == "full") && len(r.Left) == 4:
		a.Outcome = store.Taken
		if outcome == "queued" {
			a.Outcome = store.Queued
		}
		a.QueueFull = outcome == "full"
		a.InUse, a.Waiting, a.Remaining = int(r.Number()), int(r.Number()), r.Micros()
		a.place = place{int(r.Number()), a.Remaining}
	default:
		return a, script.ErrOddReply
	}
	return a, r.Err
}

// RenewPermits implements store.Permits: one pipeline for each hundred.
func (s *Store) RenewPermits(ctx context.Context, reqs []store.PermitRef) ([]bool, error) {
	calls := make([]script.Call, len(reqs))
	for i, r := range reqs {
		calls[i] = renewPermit.Call(s.permitKeys(r.Name, r.Key, r.ID), r.ID, r.TTL.Microseconds())
	}
	return s.finishEach(ctx, opRenewPermits, calls, true)
}

// ReleasePermits implements store.Permits: one script call for one permit, and one pipeline for
// each hundred of many.
func (s *Store) ReleasePermits(ctx context.Context, reqs []store.PermitRef) (held []bool, err error) {
	calls := make([]script.Call, len(reqs))
	for i, r := range reqs {
		calls[i] = releasePermit.Call(s.permitKeys(r.Name, r.Key, r.ID), r.ID, releasedMillis)
	}
	if len(calls) == 1 {
		held = make([]bool, 1)
		held[0], err = s.finish(ctx, opReleasePermits, calls[0])
	} else {
		held, err = s.finishEach(ctx, opReleasePermits, calls, false)
	}
	if err == nil {
		for _, r := range reqs {
			s.waiters.withdraw(r.ID)
		}
	}
	return held, err
}

// InspectPermits implements store.Permits: one script call, which changes nothing.
func (s *Store) InspectPermits(ctx context.Context, name, key string) (store.SemaphoreState, error) {
	keys := s.permitKeys(name, key, "")
	st := script.Step{Call: inspectPermits.Call(keys, store.MaxHolders), Operation: opInspect}
	state, err := script.Run(ctx, s.redis, st, func(r script.Reply) (store.SemaphoreState, error) { return readPermits(r.Value) })
	state.Key = key
	return state, err
}

func readPermits(reply any) (store.SemaphoreState, error) {
	r := script.Fields(reply)
	state := store.SemaphoreState{Key: r.Text(), Waiting: int(r.Number()), InUse: int(r.Number())}
	for len(r.Left) > 0 && r.Err == nil {
		state.Holders = append(state.Holders, store.PermitHolder{
			Fence: r.Number(), Weight: int(r.Number()), Remaining: r.Micros(), Meta: r.Text(),
		})
	}
	return state, r.Err
}

// ListPermits implements store.Permits: it scans all keys of every master, a thousand at a time. Of
// a store with WithSecret the Key of each state is the hash of the semaphore's key.
func (s *Store) ListPermits(ctx context.Context, name string) iter.Seq2[store.SemaphoreState, error] {
	return list(ctx, s, ofSemaphores, name,
		func(tag string) script.Call {
			return inspectPermits.Call(s.permitKeysOf(name, []byte(tag), ""), store.MaxHolders)
		},
		func(tag string, reply any) (store.SemaphoreState, bool, error) {
			state, err := readPermits(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state, state.InUse > 0 || state.Waiting > 0, err
		})
}
