// Package ewma keeps a moving average of durations.
package ewma

import (
	"sync/atomic"
	"time"
)

// Duration is a moving average: each new value moves it by an eighth of the difference. The zero
// value has no values. All methods may be called concurrently; of concurrent values, one may be
// lost.
type Duration struct{ nanos atomic.Int64 }

// Add adds a value.
func (a *Duration) Add(d time.Duration) {
	old := a.nanos.Load()
	next := old + (int64(d)-old)/8
	if old == 0 {
		next = int64(d)
	}
	a.nanos.CompareAndSwap(old, next)
}

// Get returns the average, or 0 without any value.
func (a *Duration) Get() time.Duration { return time.Duration(a.nanos.Load()) }
