package testproc

import "syscall"

// roomFor is how much memory there must be: the data of a PostgreSQL server take 40 MB, and its log
// up to 256 MB.
const roomFor = 2 << 30

// memory returns a directory in memory, or "" if there is none with room.
func memory() string {
	const dir = "/dev/shm"
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil || s.Bavail*uint64(s.Bsize) < roomFor { //nolint:gosec // no size is negative
		return ""
	}
	return dir
}
