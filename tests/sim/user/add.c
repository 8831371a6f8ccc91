// SPDX-License-Identifier: Apache-2.0
/*
 * cuda-add [ELEMENTS [DEVICE]]: add two vectors on a GPU and check every sum.
 * Prints "ok N elements, first call waited M ms"; M is the longest of the calls
 * up to the context, as one of them is the first that touches the GPU.
 */
#include "client.h"

#define MUST(call) must(call, "cuda-add", #call)

static double start_context(CUdevice ordinal)
{
	double begin = now_ms(), init_ms, context_ms;
	CUcontext context;
	CUdevice device;

	MUST(cuInit(0));
	init_ms = now_ms() - begin;
	MUST(cuDeviceGet(&device, ordinal));
	begin = now_ms();
	MUST(cuCtxCreate_v2(&context, 0, device));
	context_ms = now_ms() - begin;
	return init_ms > context_ms ? init_ms : context_ms;
}

static void launch_add(CUdeviceptr vectors[3], uint32_t count)
{
	void *params[] = { &vectors[0], &vectors[1], &vectors[2], &count };
	CUfunction function;
	CUmodule module;

	MUST(cuModuleLoadData(&module, "vector_add"));
	MUST(cuModuleGetFunction(&function, module, "vector_add"));
	MUST(cuLaunchKernel(function, (count + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
	MUST(cuCtxSynchronize());
}

static uint32_t operand(int which, uint32_t i)
{
	return which ? 0x80000000u + 7 * i : 3 * i + 1;
}

static uint32_t *fill(int which, uint32_t count)
{
	uint32_t *values = calloc(count, sizeof(*values));
	uint32_t i;

	for (i = 0; values && i < count; i++)
		values[i] = operand(which, i);
	return values;
}

static uint32_t wrong(const uint32_t *sums, uint32_t count)
{
	uint32_t i, bad = 0;

	for (i = 0; i < count; i++)
		bad += sums[i] != operand(0, i) + operand(1, i);
	return bad;
}

int main(int argc, char **argv)
{
	uint32_t count = argc > 1 ? strtoul(argv[1], NULL, 0) : 4096;
	double waited_ms = start_context(argc > 2 ? atoi(argv[2]) : 0);
	size_t size = count * sizeof(uint32_t);
	CUdeviceptr vectors[3];
	uint32_t *values;
	uint32_t bad;
	int i;

	for (i = 0; i < 3; i++) {
		MUST(cuMemAlloc_v2(&vectors[i], size));
		values = fill(i, count);
		if (!values)
			return 1;
		if (i < 2)
			MUST(cuMemcpyHtoD_v2(vectors[i], values, size));
		if (i < 2)
			free(values);
	}
	launch_add(vectors, count);
	MUST(cuMemcpyDtoH_v2(values, vectors[2], size));
	bad = wrong(values, count);
	free(values);
	if (bad) {
		fprintf(stderr, "cuda-add: %u of %u sums are wrong\n", bad, count);
		return 1;
	}
	printf("ok %u elements, first call waited %.1f ms\n", count, waited_ms);
	return 0;
}
