// A clock that steps, for LD_PRELOAD. The file CLOCK_STEPS has three numbers: how far the clock is ahead
// in us, and by how many thousandths it is faster since a time in us.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *steps;

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec t;
	(void)zone;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
	long long us = t.tv_sec * 1000000LL + t.tv_nsec / 1000;
	if (!steps) {
		const char *path = getenv("CLOCK_STEPS");
		int file = path ? open(path, O_RDONLY) : -1;
		void *all = file < 0 ? MAP_FAILED : mmap(0, 24, PROT_READ, MAP_SHARED, file, 0);
		if (file >= 0)
			close(file);
		if (all != MAP_FAILED)
			steps = all;
	}
	if (steps)
		us += steps[0] + (us - steps[2]) * steps[1] / 1000;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}
