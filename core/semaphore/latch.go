package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

// Latch is closed until a number of participants have counted it down, in one process or across a
// fleet. It does not close again. Latches with the same name on the same store are the same latch.
//
//	ready, err := semaphore.NewLatch(store, "import-2024-06-01", 3)
//	…
//	remaining, err := ready.CountDown(ctx, "customers") // each of three jobs, when it is done
//	…
//	err = ready.Wait(ctx) // blocks until all are done
//
// The store keeps the set of participants that have counted down: one that does it again, after a
// lost reply or a restart, counts once. The set expires some time after its last change
// ([WithLatchTTL]). Then the latch is a new one, and closed. Use a new name, such as one with a
// date, for each repetition.
//
// All methods may be called concurrently. There is nothing to close.
type Latch struct {
	store store.Latches
	req   store.LatchRequest
}

// LatchOption is an optional setting of [NewLatch].
type LatchOption func(*Latch)

const (
	minLatchTTL = time.Second
	maxLatchTTL = 30 * 24 * time.Hour
)

// WithLatchTTL sets how long a latch is kept after the last participant has counted it down: 24 h
// by default, 1 s to 30 days. Every process should set the same. Waiters do not extend it.
func WithLatchTTL(d time.Duration) LatchOption { return func(l *Latch) { l.req.TTL = d } }

// NewLatch returns the latch with this name in store, which opens after count participants. The
// store does not keep the count: processes should use the same one.
//
// docs/defaults.md has the default of the option, and what happens at its edge.
//
// It returns an error that matches [ErrInvalidCapacity] if the count is not between 1 and
// [store.MaxParticipants], and another one if the store is nil, if the name is empty, longer than
// 128 bytes or not printable ASCII, or if an option is out of its range.
func NewLatch(st store.Latches, name string, count int, opts ...LatchOption) (*Latch, error) {
	l := &Latch{st, store.LatchRequest{Name: name, Count: count, TTL: 24 * time.Hour}}
	option.Apply(l, opts)
	if naming.IsNil(st) {
		return nil, errors.New("semaphore: NewLatch: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("semaphore: NewLatch: %w", err)
	}
	if count < 1 || count > store.MaxParticipants {
		return nil, fmt.Errorf("%w: a count of %d is not between 1 and %d", ErrInvalidCapacity, count, store.MaxParticipants)
	}
	if ttl := l.req.TTL; ttl < minLatchTTL || ttl > maxLatchTTL {
		return nil, fmt.Errorf("semaphore: NewLatch: a TTL of %v is not between %v and %v", ttl, minLatchTTL, maxLatchTTL)
	}
	return l, nil
}

// Name returns the name that the latch was built with.
func (l *Latch) Name() string { return l.req.Name }

// CountDown records that a participant is done, and returns how many are not: 0 if the latch is
// open. A participant counts once, so a failed call may be repeated. Participants beyond the
// latch's count change nothing.
//
// It returns [ErrInvalidKey] if the participant is empty or longer than 1,024 bytes, ctx's cause,
// or an error that matches store.ErrUnavailable: if it matches store.ErrUnconfirmed too, it may
// have counted.
func (l *Latch) CountDown(ctx context.Context, participant string) (remaining int, err error) {
	if err := naming.CheckKey(participant); err != nil {
		return 0, fmt.Errorf("%w: participant: %w", ErrInvalidKey, err)
	}
	return l.remaining(ctx, func() (int, error) { return l.store.CountDownLatch(ctx, l.req, participant) })
}

// Remaining returns how many participants are not done: 0 if the latch is open. Errors are ctx's
// cause, or match store.ErrUnavailable.
func (l *Latch) Remaining(ctx context.Context) (int, error) {
	return l.remaining(ctx, func() (int, error) { return l.store.InspectLatch(ctx, l.req) })
}

func (l *Latch) remaining(ctx context.Context, ask func() (int, error)) (int, error) {
	if ctx.Err() != nil {
		return 0, lease.Ended(ctx)
	}
	arrived, err := ask()
	switch {
	case err == nil:
		return max(l.req.Count-arrived, 0), nil
	case ctx.Err() != nil:
		err = lease.Ended(ctx)
	}
	return 0, err
}

// Wait blocks until the latch is open, or until ctx ends. It returns nil, ctx's cause, or an error
// that matches store.ErrUnavailable if the store did not reply for more than a few seconds; calling
// Wait again loses nothing.
func (l *Latch) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return lease.Ended(ctx)
	}
	err := l.store.AwaitLatch(ctx, l.req)
	if err != nil && ctx.Err() != nil {
		err = lease.Ended(ctx)
	}
	return err
}
