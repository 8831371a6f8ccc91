// SPDX-License-Identifier: Apache-2.0
/*
 * gpu-burn: hold GPU memory and keep the GPU busy until killed.
 *
 *   gpu-burn [--mib N] [--device I]... [--procs P] [--interval-ms MS] [--idle]
 *
 * Each of P processes makes a context on each device (default: all that are
 * visible), takes N MiB there, prints one line "ready pid=… devices=… mib=…"
 * and launches a small kernel every MS ms (10). --idle holds and never launches.
 * Ends with status 1 when the GPU fails it.
 */
#include <getopt.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "client.h"

#define MUST(call) must(call, "gpu-burn", #call)
#define ELEMENTS 256u

struct options {
	size_t mib;
	long procs;
	long interval_ms;
	bool idle;
	int devices[RM_MAX_CARDS];
	int count;
};

static void usage(void)
{
	fprintf(stderr, "usage: gpu-burn [--mib N] [--device I]... [--procs P] [--interval-ms MS] "
			"[--idle]\n");
	exit(2);
}

static long number(const char *text, long least)
{
	char *end;
	long value = strtol(text, &end, 0);

	if (!*text || *end || value < least)
		usage();
	return value;
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "mib", required_argument, NULL, 'm' },
		{ "device", required_argument, NULL, 'd' },
		{ "procs", required_argument, NULL, 'p' },
		{ "interval-ms", required_argument, NULL, 'i' },
		{ "idle", no_argument, NULL, 'I' },
		{ 0 },
	};
	struct options options = { .mib = 1024, .procs = 1, .interval_ms = 10 };
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
		if (option == 'm')
			options.mib = number(optarg, 1);
		else if (option == 'd' && options.count < RM_MAX_CARDS)
			options.devices[options.count++] = number(optarg, 0);
		else if (option == 'p')
			options.procs = number(optarg, 1);
		else if (option == 'i')
			options.interval_ms = number(optarg, 1);
		else if (option == 'I')
			options.idle = true;
		else
			usage();
	}
	if (optind != argc)
		usage();
	return options;
}

struct burner {
	CUcontext context;
	CUfunction function;
	CUdeviceptr memory;
};

static struct burner burner_start(CUdevice device, size_t mib)
{
	struct burner burner;
	CUmodule module;

	MUST(cuCtxCreate_v2(&burner.context, 0, device));
	MUST(cuMemAlloc_v2(&burner.memory, mib << 20));
	MUST(cuModuleLoadData(&module, "vector_add"));
	MUST(cuModuleGetFunction(&burner.function, module, "vector_add"));
	return burner;
}

static void burner_launch(struct burner *burner)
{
	CUdeviceptr a = burner->memory, b = a + 4 * ELEMENTS, c = b + 4 * ELEMENTS;
	uint32_t count = ELEMENTS;
	void *params[] = { &a, &b, &c, &count };

	MUST(cuCtxSetCurrent(burner->context));
	MUST(cuLaunchKernel(burner->function, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, params, NULL));
}

static void burn(const struct options *options)
{
	struct burner burners[RM_MAX_CARDS];
	int i, count = options->count;

	MUST(cuInit(0));
	if (!count)
		MUST(cuDeviceGetCount(&count));
	for (i = 0; i < count; i++)
		burners[i] = burner_start(options->count ? options->devices[i] : i, options->mib);
	printf("ready pid=%d devices=%d mib=%zu\n", (int)getpid(), count, options->mib);
	fflush(stdout);
	for (;;) {
		if (options->idle)
			pause();
		for (i = 0; !options->idle && i < count; i++)
			burner_launch(&burners[i]);
		usleep(options->interval_ms * 1000);
	}
}

/* Fork before CUDA starts: a context does not survive a fork. */
static int burn_many(const struct options *options)
{
	int status;
	long i;

	for (i = 0; i < options->procs; i++) {
		switch (fork()) {
		case -1:
			perror("gpu-burn: fork");
			return 1;
		case 0:
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			burn(options);
		}
	}
	while (wait(&status) > 0)
		if (!WIFSIGNALED(status))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);

	if (options.procs > 1)
		return burn_many(&options);
	burn(&options);
	return 1;
}
