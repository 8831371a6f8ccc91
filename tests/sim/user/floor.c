// SPDX-License-Identifier: Apache-2.0
/*
 * floor: empty a cgroup the shortest way there is, and say how long until its GPU memory is back.
 *
 *   floor CGROUP_FOLDER GPU
 *
 * One write to cgroup.kill; then poll() on cgroup.events until it says populated 0, that is until
 * the last process has closed its files; then the driver's own figure of used memory, once a
 * millisecond, until it is zero. What a hand-back is compared with: nothing that proves less than
 * this could be sooner. Prints one JSON object; times are CLOCK_MONOTONIC in nanoseconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 120000
#define GPUS "/sys/kernel/debug/nvsim/gpus"

static void fail(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

static int open_in(const char *folder, const char *name, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		fail(path);
	return fd;
}

static int is_populated(int events)
{
	char text[256];
	ssize_t size = pread(events, text, sizeof(text) - 1, 0);

	if (size < 0)
		fail("cgroup.events");
	text[size] = '\0';
	return strstr(text, "populated 1") != NULL;
}

static void wait_empty(int events)
{
	struct pollfd change = { .fd = events, .events = POLLPRI };

	while (is_populated(events)) {
		if (poll(&change, 1, LIMIT_MS) == 0) {
			errno = ETIMEDOUT;
			fail("the cgroup is still populated");
		}
	}
}

/* Columns of the driver's table: index, UUID, PCI address, NUMA node, total, used, ... */
static uint64_t memory_used(long gpu)
{
	FILE *file = fopen(GPUS, "re");
	char line[512];
	uint64_t used;
	long index;

	if (!file || !fgets(line, sizeof(line), file))
		fail(GPUS);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%ld %*s %*s %*d %*u %" SCNu64, &index, &used) == 2 &&
		    index == gpu) {
			fclose(file);
			return used;
		}
	}
	errno = ENODEV;
	fail("no such GPU");
	return 0;
}

int main(int argc, char **argv)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	uint64_t start_ns, empty_ns;
	int kill_fd, events;
	long gpu;

	if (argc != 3) {
		fprintf(stderr, "usage: floor CGROUP_FOLDER GPU\n");
		return 2;
	}
	kill_fd = open_in(argv[1], "cgroup.kill", O_WRONLY);
	events = open_in(argv[1], "cgroup.events", O_RDONLY);
	gpu = strtol(argv[2], NULL, 10);

	start_ns = now_ns();
	if (write(kill_fd, "1", 1) != 1)
		fail("cgroup.kill");
	wait_empty(events);
	empty_ns = now_ns();
	while (memory_used(gpu))
		nanosleep(&pause, NULL);
	printf("{\"start_ns\": %" PRIu64 ", \"empty_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 "}\n",
	       start_ns, empty_ns, now_ns());
	return 0;
}
