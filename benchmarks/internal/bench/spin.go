package bench

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// SpinResult is the cost of a call that takes less time than reading the clock.
type SpinResult struct {
	Calls       int64
	NsPerCall   float64 // of the wall clock: half as much if twice as many calls run at the same time
	AllocsPerOp float64
	Err         error // the first error of some worker: it ends that worker
}

// spinBatch is the number of calls between two readings of the clock.
const spinBatch = 128

// Spin runs fn on g goroutines for the time d, as [Load] does, but counts only the calls.
func Spin(ctx context.Context, g int, d time.Duration, fn func(worker, i int) error) SpinResult {
	type worker struct {
		calls int64
		err   error
		_     [64]byte // workers write at the same time
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
			calls, err := 0, error(nil)
			for err == nil && time.Since(began) < d && ctx.Err() == nil {
				for range spinBatch {
					if err = fn(w, calls); err != nil {
						break
					}
					calls++
				}
			}
			me.calls, me.err = int64(calls), err
		})
	}
	runtime.ReadMemStats(&before)
	began = time.Now()
	close(start)
	running.Wait()
	elapsed := time.Since(began)
	runtime.ReadMemStats(&after)

	var r SpinResult
	for i := range workers {
		r.Calls += workers[i].calls
		if r.Err == nil {
			r.Err = workers[i].err
		}
	}
	if r.Calls > 0 {
		r.NsPerCall = float64(elapsed) / float64(r.Calls)
		r.AllocsPerOp = float64(after.Mallocs-before.Mallocs) / float64(r.Calls)
	}
	return r
}

// Pick returns a number below n for a worker's call i: random, and the same in every run (the
// finaliser of SplitMix64).
func Pick(worker, i, n int) int {
	x := uint64(worker)<<32 + uint64(i) + 1
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}
