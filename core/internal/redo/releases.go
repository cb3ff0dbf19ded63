package redo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// maxReleases is how many requests go into one task.
	maxReleases = 100
	// releaseBytes bounds the memory of requests to release that the store has not confirmed.
	releaseBytes = 16 << 20
)

// Releases retries, in the background, what a store has not confirmed to be released, until it does or the
// lease is over by itself.
type Releases[R any] struct {
	queue Queue
	try   func(ctx context.Context, reqs []R) (left []R, err error)

	mu      sync.Mutex
	left    int       // requests that the store has not confirmed
	dropped int       // requests for which there was no room
	until   time.Time // when the last lease of those is over
}

// NewReleases returns an empty queue of requests that are released by try, which returns with an error
// those that are left.
func NewReleases[R any](try func(context.Context, []R) ([]R, error)) *Releases[R] {
	return &Releases[R]{queue: Queue{MaxBytes: releaseBytes}, try: try}
}

// Add has requests released whose leases are over by then.
func (r *Releases[R]) Add(until time.Time, reqs ...R) {
	for part := range slices.Chunk(reqs, maxReleases) {
		r.add(until, part)
	}
}

func (r *Releases[R]) add(until time.Time, reqs []R) {
	r.count(len(reqs))
	task := Task{
		Until: until,
		Try: func(ctx context.Context) error {
			left, err := r.try(ctx, reqs)
			if err == nil {
				left = nil
			}
			r.count(len(left) - len(reqs))
			reqs = left
			return err
		},
		After: func(error) { r.count(-len(reqs)) }, // those that are left are over by themselves
	}
	if r.queue.Add(task) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= len(reqs)
	if time.Now().After(r.until) {
		r.dropped = 0
	}
	r.dropped += len(reqs)
	if until.After(r.until) {
		r.until = until
	}
}

func (r *Releases[R]) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += n
}

// Drain retries everything at once, and waits until the store has confirmed it or ctx ends. The error says
// how many requests are left, or were dropped, so that what they are about may be held until its lease
// ends.
func (r *Releases[R]) Drain(ctx context.Context) error {
	err := r.queue.Drain(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped := 0
	if time.Now().Before(r.until) {
		dropped = r.dropped
	}
	switch {
	case err != nil:
		return fmt.Errorf("%d leases may be held until they end by themselves, of which no release is confirmed: %w",
			r.left+dropped, context.Cause(ctx))
	case dropped > 0:
		return fmt.Errorf("%d leases may be held until they end by themselves, since too many releases were to be retried", dropped)
	}
	return nil
}
