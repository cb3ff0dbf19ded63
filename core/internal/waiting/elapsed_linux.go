package waiting

import (
	"syscall"
	"time"
	"unsafe"
)

// Elapsed returns the µs since the machine started. They include the time for which it was
// suspended, unlike Go's own monotonic clock.
func Elapsed() int64 {
	const boottime = 7
	var t syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&t)), 0) // cannot fail
	return t.Nano() / int64(time.Microsecond)
}
