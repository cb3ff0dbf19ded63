package background

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// maxReleases is the maximum of requests in a task.
	maxReleases = 100
	// releaseBytes bounds the memory of unconfirmed releases.
	releaseBytes = 16 << 20
)

// Releases retries unconfirmed releases in the background, until the store confirms them or the
// leases have expired.
type Releases[R any] struct {
	queue RetryQueue
	try   func(ctx context.Context, reqs []R) (left []R, err error)

	mu      sync.Mutex
	left    int       // unconfirmed requests
	dropped int       // requests without room in the queue
	until   time.Time // when the last lease of the dropped ones expires
}

// NewReleases returns an empty queue of requests that try releases. With an error, try returns
// those that are left.
func NewReleases[R any](try func(context.Context, []R) ([]R, error)) *Releases[R] {
	return &Releases[R]{queue: RetryQueue{MaxBytes: releaseBytes}, try: try}
}

// Add adds requests whose leases expire by until.
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
		After: func(error) { r.count(-len(reqs)) }, // the leases of the rest have expired
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

// Drain retries all requests at once, and waits until the store has confirmed them or ctx ends. The
// error has the number of requests that are left or were dropped, whose leases may last until they
// expire.
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
		return fmt.Errorf("%d unconfirmed releases; their leases may last until they expire: %w",
			r.left+dropped, context.Cause(ctx))
	case dropped > 0:
		return fmt.Errorf("%d dropped releases; their leases may last until they expire", dropped)
	}
	return nil
}
