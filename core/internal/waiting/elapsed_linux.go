package waiting

import (
	"syscall"
	"time"
	"unsafe"
)

// Elapsed returns µs that have passed since the machine started. The time for which it was suspended
// counts, which it does not by Go's own monotonic clock.
func Elapsed() int64 {
	const boottime = 7
	var t syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&t)), 0) // cannot fail
	return t.Nano() / int64(time.Microsecond)
}
