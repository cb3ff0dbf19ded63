package background

import (
	"context"
	"time"
)

// Releaser releases leases in the background, in batches: at once if no other batch is in flight.
// Releases that the store has not confirmed are retried until it does, or the leases have expired.
type Releaser[R any] struct {
	ttl     func(R) time.Duration
	batches *BatchQueue[R]
	retries *Releases[R]
}

// NewReleaser returns a Releaser that calls release, which reports for each lease whether it was
// held. With an error, the leases reported as held are released, and the others unconfirmed.
func NewReleaser[R any](release func(context.Context, []R) ([]bool, error), ttl func(R) time.Duration) *Releaser[R] {
	r := &Releaser[R]{ttl: ttl}
	r.batches = NewBatchQueue(func(refs []R) {
		if held, err := release(context.Background(), refs); err != nil {
			r.Retry(refs, held)
		}
	})
	r.retries = NewReleases(func(ctx context.Context, refs []R) (left []R, err error) {
		held, err := release(ctx, refs)
		if err != nil {
			left = unconfirmed(refs, held)
		}
		return left, err
	})
	return r
}

// Add releases a lease soon.
func (r *Releaser[R]) Add(ref R) {
	if !r.batches.Add(ref) {
		r.Retry([]R{ref}, nil)
	}
}

// Retry retries the leases of a failed release that were not reported as held.
func (r *Releaser[R]) Retry(refs []R, held []bool) {
	left := unconfirmed(refs, held)
	longest := time.Duration(0)
	for _, ref := range left {
		longest = max(longest, r.ttl(ref))
	}
	r.retries.Add(time.Now().Add(longest+time.Second), left...)
}

// Wait waits until the first try of every lease has ended, or ctx has.
func (r *Releaser[R]) Wait(ctx context.Context) error { return r.batches.Wait(ctx) }

// Drain retries at once, and waits until all releases are confirmed, or ctx ends: then its error has
// the number of those that are left.
func (r *Releaser[R]) Drain(ctx context.Context) error { return r.retries.Drain(ctx) }

func unconfirmed[R any](refs []R, held []bool) []R {
	var left []R
	for i, ref := range refs {
		if i >= len(held) || !held[i] {
			left = append(left, ref)
		}
	}
	return left
}
