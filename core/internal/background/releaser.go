package background

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// maxReleases is the maximum of leases in a retried call.
	maxReleases = 100
	// releaseBytes bounds the memory of unconfirmed releases.
	releaseBytes = 16 << 20
)

// Releaser releases leases in the background, in batches: at once if no other batch is in flight. A
// release is retried until the store has confirmed it, or the lease has expired.
type Releaser struct {
	release func(context.Context, []store.LeaseRef) ([]store.ReleaseOutcome, error)
	batches *BatchQueue[store.LeaseRef]
	retries RetryQueue

	mu      sync.Mutex
	left    int       // unconfirmed leases
	dropped int       // leases without room in the queue
	until   time.Time // when the last of the dropped ones expires
}

// NewReleaser returns a Releaser that calls release, a store's ReleaseLeases.
func NewReleaser(release func(context.Context, []store.LeaseRef) ([]store.ReleaseOutcome, error)) *Releaser {
	r := &Releaser{release: release, retries: RetryQueue{MaxBytes: releaseBytes}}
	r.batches = NewBatchQueue(func(refs []store.LeaseRef) {
		if was, err := release(context.Background(), refs); err != nil {
			r.Retry(refs, was)
		}
	})
	return r
}

// Add releases a lease soon.
func (r *Releaser) Add(ref store.LeaseRef) {
	if !r.batches.Add(ref) {
		r.Retry([]store.LeaseRef{ref}, nil)
	}
}

// Retry retries the leases of a failed release whose outcome is unknown.
func (r *Releaser) Retry(refs []store.LeaseRef, was []store.ReleaseOutcome) {
	left := unconfirmed(refs, was)
	longest := time.Duration(0)
	for _, ref := range left {
		longest = max(longest, ref.TTL)
	}
	for part := range slices.Chunk(left, maxReleases) {
		r.retry(time.Now().Add(longest+time.Second), part)
	}
}

func (r *Releaser) retry(until time.Time, refs []store.LeaseRef) {
	r.count(len(refs))
	task := Task{
		Until: until,
		Try: func(ctx context.Context) error {
			was, err := r.release(ctx, refs)
			var left []store.LeaseRef
			if err != nil {
				left = unconfirmed(refs, was)
			}
			r.count(len(left) - len(refs))
			refs = left
			return err
		},
		After: func(error) { r.count(-len(refs)) }, // the leases of the rest have expired
	}
	if r.retries.Add(task) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= len(refs)
	if time.Now().After(r.until) {
		r.dropped = 0
	}
	r.dropped += len(refs)
	if until.After(r.until) {
		r.until = until
	}
}

func (r *Releaser) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += n
}

// Wait waits until the first try of every lease has ended, or ctx ends.
func (r *Releaser) Wait(ctx context.Context) error { return r.batches.Wait(ctx) }

// Drain retries at once, and waits until all releases are confirmed. If ctx ends first, its error
// has the number of leases that are left or were dropped, which may last until they expire.
func (r *Releaser) Drain(ctx context.Context) error {
	err := r.retries.Drain(ctx)
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

// unconfirmed returns the leases of a failed release whose outcome is unknown. They are not marked
// as Repeated: ReleaseUnknown could then also mean that a lease is released.
func unconfirmed(refs []store.LeaseRef, was []store.ReleaseOutcome) []store.LeaseRef {
	var left []store.LeaseRef
	for i, ref := range refs {
		if i >= len(was) || was[i] == store.ReleaseUnknown {
			left = append(left, ref)
		}
	}
	return left
}
