package memstore

import (
	"context"
	"sync/atomic"
	"time"
)

// Uptime is for how long the store has kept what it was told: since New. A quorum of stores needs
// it, since one that has forgotten its locks must not be asked before they would have expired.
func (s *Store) Uptime(ctx context.Context) (time.Duration, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return time.Since(s.start), nil
}

// RaiseFence makes every fence that is given out from now on larger than least. A quorum of stores
// calls it with the largest fence that one of them gave. In this store all locks share a counter,
// so it raises the fences of the others too.
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
	epoch int64 // what the wall clock said when the store's clock began, in µs
}

// fenceLead is how far, in µs, the counter may run ahead of the clock by giving out blocks. It must
// be less than the time in which a program can be started again, lest the fences go back.
const fenceLead = 10_000

// mint returns the next n fences: fewer where they are given out faster than time passes.
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
