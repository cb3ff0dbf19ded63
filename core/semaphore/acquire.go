package semaphore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Acquire blocks until it has a permit of key, or until ctx ends. It is AcquireN(ctx, key, 1).
func (s *Semaphore) Acquire(ctx context.Context, key string) (*Permit, error) {
	return s.acquire(ctx, key, 1, true)
}

// AcquireN blocks until it has a permit of key with the weight n, or until ctx ends.
//
// It returns a permit, or: ctx's cause if ctx has ended, or a *[BusyError] that matches it if it
// ended while there was no room; a *[BusyError] that matches [ErrQueueFull] if the queue is full
// ([WithMaxWaiting]); [ErrInvalidKey], [ErrInvalidWeight] or [ErrInvalidCapacity]; [ErrClosed]; or
// an error that matches store.ErrUnavailable. After an error there is no permit, and no place in
// the queue: a late grant is released in the background.
//
// ctx is the parent of the permit's context. Its end does not release the permit.
func (s *Semaphore) AcquireN(ctx context.Context, key string, n int) (*Permit, error) {
	return s.acquire(ctx, key, n, true)
}

// TryAcquire is Acquire without waiting: if there is no room, or others wait for it, it returns a
// *[BusyError] at once.
func (s *Semaphore) TryAcquire(ctx context.Context, key string) (*Permit, error) {
	return s.acquire(ctx, key, 1, false)
}

// TryAcquireN is AcquireN without waiting: if there is no room, or others wait for it, it returns a
// *[BusyError] at once.
func (s *Semaphore) TryAcquireN(ctx context.Context, key string, n int) (*Permit, error) {
	return s.acquire(ctx, key, n, false)
}

func (s *Semaphore) acquire(ctx context.Context, key string, n int, wait bool) (*Permit, error) {
	x := s.telemetry.Begin(ctx, wait)
	permit, err := s.acquireUntraced(ctx, key, n, wait)
	result := resultOf(ctx, err)
	s.telemetry.End(ctx, x, result, err)
	return permit, err
}

// resultOf returns the result of a request for telemetry.
func resultOf(ctx context.Context, err error) telemetry.AcquireResult {
	switch {
	case err == nil:
		return telemetry.Acquired
	case ctx.Err() != nil:
		return telemetry.Canceled
	case errors.Is(err, ErrNotAcquired):
		return telemetry.Busy
	}
	return telemetry.AcquireError
}

func (s *Semaphore) acquireUntraced(ctx context.Context, key string, n int, wait bool) (*Permit, error) {
	if err := naming.CheckKey(key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: %d is less than 1", ErrInvalidWeight, n)
	}
	s.calls.Begin()
	defer s.calls.End()
	now := s.size.Load()
	capacity, err := s.weigh(now, key, n)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, lease.Ended(ctx)
	case s.closing.Err() != nil:
		return nil, ErrClosed
	}
	key = strings.Clone(key) // a substring of a request would keep the whole request in memory
	req := store.PermitRequest{
		Name: s.name, Key: key, ID: naming.NewID(), Weight: n, Capacity: capacity, Queue: wait,
		Barging: s.config.barging, MaxWaiting: s.config.maxWaiting, TTL: s.config.ttl, Holder: s.config.holder,
	}
	reply, left, err := s.send(ctx, req)
	if err == nil && reply.Outcome == store.Queued {
		left = true
		reply.Grant, err = s.await(ctx, now, req, reply)
	}
	if err != nil {
		if left {
			s.pool.releaseAsync(req.Ref())
		}
		return nil, err
	}
	return s.newPermit(ctx, req, reply.Grant)
}

// send sends a request to acquire. Without an error, the request was granted or queued. With an
// error, left reports whether the store may have kept something of it.
func (s *Semaphore) send(ctx context.Context, req store.PermitRequest) (reply store.PermitReply, left bool, err error) {
	reply, err = s.pool.store.AcquirePermits(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return reply, true, lease.Ended(ctx)
	case err != nil:
		return reply, errors.Is(err, store.ErrUnconfirmed), err
	case reply.Outcome == store.Granted, reply.Outcome == store.Queued && req.Queue:
		return reply, false, nil
	case reply.Outcome == store.Taken:
		return reply, false, busy(req, reply, nil)
	}
	return reply, true, fmt.Errorf("%w: unexpected reply to acquire: %d", store.ErrUnavailable, reply.Outcome)
}

// await blocks in the store's queue until a request is granted. If the capacity changes, it sends
// the new one to the store, and the request keeps its place. After an error the place may still
// exist.
func (s *Semaphore) await(ctx context.Context, now *size, req store.PermitRequest, reply store.PermitReply) (store.Grant, error) {
	for {
		grant, err := awaitUntil(ctx, now.over, s.pool.store, req)
		switch {
		case err == nil:
			return grant, nil
		case ctx.Err() != nil:
			return store.Grant{}, busy(req, reply, lease.Ended(ctx))
		case s.closing.Err() != nil:
			return store.Grant{}, ErrClosed
		case now.over.Err() == nil:
			return store.Grant{}, err
		}
		now = s.size.Load()
		capacity, err := s.weigh(now, req.Key, req.Weight)
		if err != nil {
			return store.Grant{}, err
		}
		if capacity == req.Capacity {
			continue
		}
		req.Capacity = capacity
		if reply, _, err = s.send(ctx, req); err != nil || reply.Outcome == store.Granted {
			return reply.Grant, err
		}
	}
}

// awaitUntil awaits a request until one of two contexts ends.
func awaitUntil(ctx, over context.Context, st store.Permits, req store.PermitRequest) (store.Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(over, cancel)()
	return st.AwaitPermits(ctx, req)
}
