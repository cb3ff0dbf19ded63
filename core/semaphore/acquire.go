package semaphore

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
)

// Acquire blocks until it has a permit of key, or until ctx ends. It is AcquireN(ctx, key, 1).
func (s *Semaphore) Acquire(ctx context.Context, key string) (*Permit, error) {
	return s.acquire(ctx, key, 1, true)
}

// AcquireN blocks until it has a permit of key with the weight n, or until ctx ends.
//
// It returns a permit, or:
//
//   - ctx's cause if ctx has ended, or a *[BusyError] that matches it if ctx ended while there was
//     no room;
//   - a *[BusyError] that matches [ErrQueueFull] if the queue is full ([WithMaxWaiting]);
//   - [ErrInvalidKey], [ErrInvalidWeight] or [ErrInvalidCapacity];
//   - [ErrClosed]; or
//   - an error that matches store.ErrUnavailable.
//
// After an error there is no permit, and no place in the queue: a late grant is released in the
// background.
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
	got, err := s.pool.Acquire(ctx, lease.Request{Config: s.config, Key: key, Weight: n, Wait: wait})
	if err != nil {
		return nil, err
	}
	p := got.Owner().(*Permit)
	if p.core != nil {
		p.sample.Store(int64(got.Granted().Sub(p.core.adaptive.epoch)) << outcomeBits)
	}
	return p, nil
}
