// A clock that a test can step: preloaded into a server, it adds the nanoseconds in the file
// TORTURE_CLOCK, which may change at any time, to the time of day. The monotonic clock is the machine's.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("TORTURE_CLOCK");
	int fd = path ? open(path, O_RDONLY) : -1;
	if (fd < 0)
		return;
	void *page = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (page != MAP_FAILED)
		offset = page;
	close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int failed = syscall(SYS_clock_gettime, id, ts);
	if (failed || !offset || id != CLOCK_REALTIME)
		return failed;
	long long ns = ts->tv_nsec + *offset;
	ts->tv_sec += ns / 1000000000;
	ts->tv_nsec = ns % 1000000000;
	if (ts->tv_nsec < 0) {
		ts->tv_nsec += 1000000000;
		ts->tv_sec--;
	}
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec ts;
	(void)zone;
	int failed = clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return failed;
}
