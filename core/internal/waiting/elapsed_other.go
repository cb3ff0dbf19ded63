//go:build !linux

package waiting

import "time"

var started = time.Now()

// Elapsed returns the µs since the process started.
func Elapsed() int64 { return time.Since(started).Microseconds() }
