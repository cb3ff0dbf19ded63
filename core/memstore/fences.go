package memstore

import (
	"context"
	"sync/atomic"
	"time"
)

// Uptime returns how long the store has kept its state: since New. A quorum of stores needs it,
// since a store that has lost its locks must not vote before they would have expired.
func (s *Store) Uptime(ctx context.Context) (time.Duration, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return time.Since(s.start), nil
}

// RaiseFence makes every later fence larger than least. A quorum of stores calls it with the
// largest fence of a grant. In this store all leases share a counter, so it raises the fences of
// others too.
func (s *Store) RaiseFence(ctx context.Context, _, _ string, least int64) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.fences.raise(least)
	return nil
}

// fences is the counter of all fences.
type fences struct {
	last  atomic.Int64
	epoch int64 // wall clock at the start of the store's clock, in µs
}

// fenceLead is how far, in µs, blocks may advance the counter beyond the clock. It must be less
// than the time in which a program can restart, or fences could go back.
const fenceLead = 10_000

// mint returns the next n fences: a single one if they are used up faster than time passes.
func (f *fences) mint(n int, now int64) (first, last int64) {
	for {
		old := f.last.Load()
		first = max(old+1, f.epoch+now)
		if first-(f.epoch+now) > fenceLead {
			n = 1
		}
		last = first + int64(n) - 1
		if f.last.CompareAndSwap(old, last) {
			return first, last
		}
	}
}

func (f *fences) raise(least int64) {
	for {
		old := f.last.Load()
		if old >= least || f.last.CompareAndSwap(old, least) {
			return
		}
	}
}
