package bench

import (
	"context"
	"math"
	"math/bits"
	"runtime"
	"sync"
	"time"
)

// LoadResult is the result of [Load]. A failed call is not an operation.
type LoadResult struct {
	Ops       int64
	PerSecond float64
	P50, P99  time.Duration // of the operations, to about 2 %; zero if there were none
	Errors    int64
	Err       error // the first error of some worker
	// AllocsPerOp is of the whole process, per call, to a tenth: what runs in the background allocates, too.
	AllocsPerOp float64
	Elapsed     time.Duration
}

// Load calls fn repeatedly on g goroutines for the time d or until the context ends, and waits for
// the calls in flight. fn gets the worker's number and that of its call, both from 0.
func Load(ctx context.Context, g int, d time.Duration, fn func(ctx context.Context, worker, i int) error) LoadResult {
	type worker struct {
		latencies histogram
		errors    int64
		err       error
		_         [64]byte // workers write at the same time
	}
	var (
		workers       = make([]worker, g)
		running       sync.WaitGroup
		before, after runtime.MemStats
		start         = make(chan struct{})
		began         time.Time
	)
	for w := range workers {
		me := &workers[w]
		running.Go(func() {
			<-start
			last := began
			for i := 0; last.Sub(began) < d && ctx.Err() == nil; i++ {
				err := fn(ctx, w, i)
				now := time.Now()
				if err == nil {
					me.latencies.add(now.Sub(last))
				} else {
					me.errors++
					if me.err == nil {
						me.err = err
					}
				}
				last = now
			}
		})
	}
	runtime.ReadMemStats(&before)
	began = time.Now()
	close(start)
	running.Wait()
	elapsed := time.Since(began)
	runtime.ReadMemStats(&after)

	var (
		all histogram
		r   = LoadResult{Elapsed: elapsed}
	)
	for i := range workers {
		all.merge(&workers[i].latencies)
		r.Errors += workers[i].errors
		if r.Err == nil {
			r.Err = workers[i].err
		}
	}
	r.Ops = all.count()
	r.PerSecond = float64(r.Ops) / elapsed.Seconds()
	r.P50, r.P99 = all.quantile(0.50), all.quantile(0.99)
	if calls := r.Ops + r.Errors; calls > 0 {
		r.AllocsPerOp = math.Round(10*float64(after.Mallocs-before.Mallocs)/float64(calls)) / 10
	}
	return r
}

// A histogram counts durations in buckets whose width is a 32nd of the power of two below them.
type histogram struct {
	counts [(64 - subBits) << subBits]uint32
}

const subBits = 5

func (h *histogram) add(d time.Duration) { h.counts[bucket(d)]++ }

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
}

func (h *histogram) count() int64 {
	var sum int64
	for _, n := range h.counts {
		sum += int64(n)
	}
	return sum
}

// quantile returns the middle of the bucket of the duration that the share q does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q * float64(h.count()))
	for i, n := range h.counts {
		if rank -= int64(n); rank < 0 {
			return middle(i)
		}
	}
	return 0
}

// bucket: durations below 64 ns have a bucket each; above, the five bits after the first one count.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

func middle(bucket int) time.Duration {
	shift := max(bucket>>subBits-1, 0)
	least := uint64(bucket-shift<<subBits) << shift
	return time.Duration(least + (1<<shift)/2)
}
