package storetest_test

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// locks is a store that broken ones wrap.
type locks interface {
	store.Store
	store.Locks
}

type noQueue struct{ locks }

func (s noQueue) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	queue := req.Queue
	req.Queue = false
	reply, err := s.locks.AcquireLock(ctx, req)
	if err == nil && reply.Outcome == store.Taken && queue {
		reply.Outcome = store.Queued
	}
	return reply, err
}

func (s noQueue) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	for {
		switch reply, err := s.AcquireLock(ctx, req); {
		case err != nil:
			return store.Grant{}, err
		case reply.Outcome == store.Withdrawn:
			return store.Grant{}, store.ErrWithdrawn
		case reply.Outcome == store.Granted:
			return reply.Grant, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type queuesTwice struct{ locks }

func (s queuesTwice) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := s.locks.AcquireLock(ctx, req)
	if err == nil && reply.Outcome == store.Queued {
		req.ID += "-"
		return s.locks.AcquireLock(ctx, req)
	}
	return reply, err
}

type placeEndsWithWait struct{ locks }

func (s placeEndsWithWait) AwaitLock(ctx context.Context, req store.LockRequest) (store.Grant, error) {
	grant, err := s.locks.AwaitLock(ctx, req)
	if err != nil && ctx.Err() != nil {
		_, _ = s.ReleaseLock(context.WithoutCancel(ctx), store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID})
	}
	return grant, err
}

type forgetsReleases struct{ locks }

func (s forgetsReleases) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := s.locks.AcquireLock(ctx, req)
	if err == nil && reply.Outcome == store.Withdrawn {
		req.ID += "-"
		return s.locks.AcquireLock(ctx, req)
	}
	return reply, err
}

type revives struct{ locks }

func (s revives) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	held, err := s.locks.RenewLocks(ctx, reqs)
	for i := range held {
		if held[i] {
			continue
		}
		reply, err := s.AcquireLock(ctx, store.LockRequest{
			Name: reqs[i].Name, Key: reqs[i].Key, ID: reqs[i].ID, Shared: reqs[i].Shared, TTL: reqs[i].TTL, Fences: 1,
		})
		held[i] = err == nil && reply.Outcome == store.Granted
	}
	return held, err
}

type oneFence struct{ locks }

func (s oneFence) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := s.locks.AcquireLock(ctx, req)
	reply.Fence, reply.LastFence = 1, 1
	return reply, err
}

type readersShareLease struct{ locks }

func (s readersShareLease) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	state, err := s.InspectLock(ctx, req.Name, req.Key)
	if err != nil {
		return store.LockReply{}, err
	}
	for _, holder := range state.Holders {
		if req.Shared && holder.Shared {
			req.TTL = max(req.TTL, holder.Remaining)
		}
	}
	return s.locks.AcquireLock(ctx, req)
}

type halfDowngrades struct{ locks }

func (s halfDowngrades) DowngradeLock(ctx context.Context, req store.LockRef) (bool, error) {
	held, err := s.RenewLocks(ctx, []store.LockRef{req})
	return err == nil && held[0], err
}

// readersPass grants readers the lock although others wait for it.
type readersPass struct{ locks }

func (s readersPass) AcquireLock(ctx context.Context, req store.LockRequest) (store.LockReply, error) {
	reply, err := s.locks.AcquireLock(ctx, req)
	if err != nil || !req.Shared || reply.Outcome == store.Granted || reply.Outcome == store.Withdrawn {
		return reply, err
	}
	state, err := s.InspectLock(ctx, req.Name, req.Key)
	if err == nil && len(state.Holders) > 0 && state.Holders[0].Shared {
		fence := state.Holders[0].LastFence
		return store.LockReply{Grant: store.Grant{Sent: time.Now(), Fence: fence, LastFence: fence}}, nil
	}
	return reply, err
}

type forcesAny struct{ locks }

func (s forcesAny) ForceUnlock(ctx context.Context, name, key string, fence int64) (bool, error) {
	state, err := s.InspectLock(ctx, name, key)
	if err == nil && len(state.Holders) > 0 {
		fence = state.Holders[0].Fence
	}
	return s.locks.ForceUnlock(ctx, name, key, fence)
}

type notifiesNone struct{ locks }

func (s notifiesNone) NotifyLost(func(string)) (remove func()) { return func() {} }

type renewsAllOrNone struct{ locks }

func (s renewsAllOrNone) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	held, err := s.locks.RenewLocks(ctx, reqs)
	for i := range held {
		held[i] = held[0]
	}
	return held, err
}
