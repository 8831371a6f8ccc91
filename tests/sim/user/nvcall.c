// SPDX-License-Identifier: Apache-2.0
/*
 * nvcall: one raw driver call, made often and by many threads, told as JSON.
 *
 *   nvcall OP [-n CALLS] [-t THREADS] [-d DEVICE] [-p PATH] [--wait] [--handler]
 *             [--hold SECONDS] [--summary] [--tight]
 *
 * OP
 *   query    RM_CONTROL on a root client: makes nothing
 *   compute  RM_ALLOC of a vaspace on DEVICE (a context), freed again by the next call
 *   uvm      UVM_INITIALIZE
 *   count    any ioctl on /dev/nvsim-count (or PATH): returns how many there were
 *   plain    the same on /dev/nvsim-plain
 *
 * --wait     everything is open: print "ready" and start on the first line of stdin
 * --handler  handle SIGUSR1 without SA_RESTART, and count it
 * --hold     stay alive, with everything open, for so long after the last call
 * --summary  totals alone, for many calls
 * --tight    read the clock before the first call and after the last, not around each
 *
 * Times are CLOCK_MONOTONIC in nanoseconds. Exit status 0: every call returned
 * without an errno and with status 0; 1: some did not; 2: it could not start.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvsim_uapi.h"

#define HANDLE_DEVICE 0xcaf10001u
#define HANDLE_VASPACE 0xcaf20000u

struct call {
	uint64_t start_ns;
	uint64_t end_ns;
	int result;
	int error;
	uint32_t status;
};

struct worker {
	pthread_t thread;
	pid_t tid;
	int fd;
	uint32_t client;
	uint32_t vaspace; /* of the last compute call, 0: none */
	struct call *calls;
};

struct operation {
	const char *name;
	const char *path;
	void (*prepare)(struct worker *worker);
	int (*call)(struct worker *worker, uint32_t *status);
	void (*after)(struct worker *worker);
};

static const struct operation *operation;
static const char *path;
static unsigned int device;
static long calls_each = 1;
static bool tight;
static pthread_barrier_t start_line;
static volatile sig_atomic_t signals;

static void fail(const char *what)
{
	fprintf(stderr, "nvcall: %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}

static int rm_alloc(int fd, struct nv_rm_alloc *args)
{
	return ioctl(fd, NV_IOCTL(NV_ESC_RM_ALLOC, *args), args);
}

static void prepare_client(struct worker *worker)
{
	struct nv_rm_alloc args = { .class = NV01_ROOT_CLIENT };

	if (rm_alloc(worker->fd, &args) || args.status)
		fail("RM_ALLOC of a root client");
	worker->client = args.object;
}

static void prepare_device(struct worker *worker)
{
	struct nv_alloc_device params = { .device_id = device };
	struct nv_rm_alloc args = {
		.object = HANDLE_DEVICE,
		.class = NV01_DEVICE_0,
		.params = (uintptr_t)&params,
		.params_size = sizeof(params),
	};

	prepare_client(worker);
	args.root = worker->client;
	args.parent = worker->client;
	if (rm_alloc(worker->fd, &args) || args.status)
		fail("RM_ALLOC of the device");
}

static int call_query(struct worker *worker, uint32_t *status)
{
	struct nvsim_system params;
	struct nv_rm_control args = {
		.client = worker->client,
		.object = worker->client,
		.cmd = NVSIM_CTRL_SYSTEM,
		.params = (uintptr_t)&params,
		.params_size = sizeof(params),
	};
	int result = ioctl(worker->fd, NV_IOCTL(NV_ESC_RM_CONTROL, args), &args);

	*status = args.status;
	return result;
}

static int call_compute(struct worker *worker, uint32_t *status)
{
	struct nv_rm_alloc args = {
		.root = worker->client,
		.parent = HANDLE_DEVICE,
		.object = HANDLE_VASPACE,
		.class = FERMI_VASPACE_A,
	};
	int result = rm_alloc(worker->fd, &args);

	worker->vaspace = result || args.status ? 0 : HANDLE_VASPACE;
	*status = args.status;
	return result;
}

static void after_compute(struct worker *worker)
{
	struct nv_rm_free args = {
		.root = worker->client,
		.parent = HANDLE_DEVICE,
		.object = worker->vaspace,
	};

	if (!worker->vaspace)
		return;
	if (ioctl(worker->fd, NV_IOCTL(NV_ESC_RM_FREE, args), &args) || args.status)
		fail("RM_FREE of the vaspace");
	worker->vaspace = 0;
}

static int call_uvm(struct worker *worker, uint32_t *status)
{
	struct uvm_initialize args = { 0 };
	int result = ioctl(worker->fd, UVM_INITIALIZE, &args);

	*status = args.status;
	return result;
}

static int call_count(struct worker *worker, uint32_t *status)
{
	*status = 0;
	return ioctl(worker->fd, 1, 0);
}

static const struct operation operations[] = {
	{ "query", "/dev/nvidiactl", prepare_client, call_query, NULL },
	{ "compute", "/dev/nvidiactl", prepare_device, call_compute, after_compute },
	{ "uvm", "/dev/nvidia-uvm", NULL, call_uvm, NULL },
	{ "count", "/dev/nvsim-count", NULL, call_count, NULL },
	{ "plain", "/dev/nvsim-plain", NULL, call_count, NULL },
};

static void call_once(struct worker *worker, struct call *call)
{
	errno = 0;
	call->start_ns = now_ns();
	call->result = operation->call(worker, &call->status);
	call->error = call->result < 0 ? errno : 0;
	call->end_ns = now_ns();
}

/* Nothing but the calls between two readings of the clock, which every call is said to span. */
static void work_tight(struct worker *worker)
{
	uint64_t start_ns = now_ns(), end_ns;
	long i;

	for (i = 0; i < calls_each; i++) {
		worker->calls[i].result = operation->call(worker, &worker->calls[i].status);
		worker->calls[i].error = worker->calls[i].result < 0 ? errno : 0;
	}
	end_ns = now_ns();
	for (i = 0; i < calls_each; i++) {
		worker->calls[i].start_ns = start_ns;
		worker->calls[i].end_ns = end_ns;
	}
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	long i;

	worker->tid = syscall(SYS_gettid);
	pthread_barrier_wait(&start_line);
	if (tight) {
		work_tight(worker);
		return NULL;
	}
	for (i = 0; i < calls_each; i++) {
		if (i && operation->after)
			operation->after(worker);
		call_once(worker, &worker->calls[i]);
	}
	return NULL;
}

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void handle_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal };

	if (sigaction(SIGUSR1, &action, NULL))
		fail("sigaction");
}

static void worker_open(struct worker *worker)
{
	worker->fd = open(path, O_RDWR | O_CLOEXEC);
	if (worker->fd < 0)
		fail(path);
	worker->calls = calloc(calls_each, sizeof(*worker->calls));
	if (!worker->calls)
		fail("calloc");
	if (operation->prepare)
		operation->prepare(worker);
}

static void print_call(const struct worker *worker, const struct call *call, bool first)
{
	printf("%s{\"tid\": %d, \"result\": %d, \"errno\": %d, \"status\": %" PRIu32
	       ", \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 "}",
	       first ? "" : ", ", (int)worker->tid, call->result, call->error, call->status,
	       call->start_ns, call->end_ns);
}

static void print_calls(const struct worker *workers, int threads)
{
	int t;
	long i;

	printf(", \"calls\": [");
	for (t = 0; t < threads; t++)
		for (i = 0; i < calls_each; i++)
			print_call(&workers[t], &workers[t].calls[i], !t && !i);
	printf("]");
}

struct totals {
	uint64_t start_ns;
	uint64_t end_ns;
	uint64_t longest_ns;
	long errors;
};

static struct totals sum_up(const struct worker *workers, int threads)
{
	struct totals totals = { .start_ns = UINT64_MAX };
	const struct call *call;
	long i;
	int t;

	for (t = 0; t < threads; t++) {
		for (i = 0; i < calls_each; i++) {
			call = &workers[t].calls[i];
			totals.errors += call->error || call->status;
			if (call->start_ns < totals.start_ns)
				totals.start_ns = call->start_ns;
			if (call->end_ns > totals.end_ns)
				totals.end_ns = call->end_ns;
			if (call->end_ns - call->start_ns > totals.longest_ns)
				totals.longest_ns = call->end_ns - call->start_ns;
		}
	}
	return totals;
}

static void run(struct worker *workers, int threads)
{
	int t;

	errno = pthread_barrier_init(&start_line, NULL, threads);
	if (errno)
		fail("pthread_barrier_init");
	for (t = 0; t < threads; t++) {
		errno = pthread_create(&workers[t].thread, NULL, work, &workers[t]);
		if (errno)
			fail("pthread_create");
	}
	for (t = 0; t < threads; t++)
		pthread_join(workers[t].thread, NULL);
}

static void usage(void)
{
	fprintf(stderr,
		"usage: nvcall query|compute|uvm|count|plain [-n CALLS] [-t THREADS] [-d DEVICE]\n"
		"              [-p PATH] [--wait] [--handler] [--hold SECONDS] [--summary]\n"
		"              [--tight]\n");
	exit(2);
}

static const struct operation *operation_find(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
		if (!strcmp(operations[i].name, name))
			return &operations[i];
	usage();
	return NULL;
}

static long number(const char *text, long least)
{
	char *end;
	long value = strtol(text, &end, 0);

	if (!*text || *end || value < least)
		usage();
	return value;
}

struct options {
	int threads;
	long hold;
	bool wait;
	bool summary;
};

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "wait", no_argument, NULL, 'w' },
		{ "handler", no_argument, NULL, 'h' },
		{ "hold", required_argument, NULL, 'H' },
		{ "summary", no_argument, NULL, 's' },
		{ "tight", no_argument, NULL, 'T' },
		{ 0 },
	};
	struct options options = { .threads = 1 };
	int option;

	while ((option = getopt_long(argc, argv, "n:t:d:p:", longs, NULL)) >= 0) {
		switch (option) {
		case 'n': calls_each = number(optarg, 1); break;
		case 't': options.threads = number(optarg, 1); break;
		case 'd': device = number(optarg, 0); break;
		case 'p': path = optarg; break;
		case 'w': options.wait = true; break;
		case 'h': handle_signals(); break;
		case 'H': options.hold = number(optarg, 0); break;
		case 's': options.summary = true; break;
		case 'T': tight = true; break;
		default: usage();
		}
	}
	if (optind != argc - 1)
		usage();
	operation = operation_find(argv[optind]);
	if (!path)
		path = operation->path;
	return options;
}

static void wait_line(void)
{
	char line[16];

	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		fail("stdin ended before the start");
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct worker *workers = calloc(options.threads, sizeof(*workers));
	struct totals totals;
	int t;

	if (!workers)
		fail("calloc");
	for (t = 0; t < options.threads; t++)
		worker_open(&workers[t]);
	if (options.wait)
		wait_line();
	run(workers, options.threads);

	totals = sum_up(workers, options.threads);
	printf("{\"op\": \"%s\", \"pid\": %d, \"count\": %ld, \"errors\": %ld, \"signals\": %d, "
	       "\"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"longest_ns\": %" PRIu64,
	       operation->name, (int)getpid(), calls_each * options.threads, totals.errors,
	       (int)signals, totals.start_ns, totals.end_ns, totals.longest_ns);
	if (!options.summary)
		print_calls(workers, options.threads);
	printf("}\n");
	fflush(stdout);
	if (options.hold)
		sleep(options.hold);
	return totals.errors ? 1 : 0;
}
