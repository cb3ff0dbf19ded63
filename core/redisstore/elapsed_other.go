//go:build !linux

package redisstore

import "time"

var started = time.Now()

// elapsed returns µs that have passed since the process started.
func elapsed() int64 { return time.Since(started).Microseconds() }
