// SPDX-License-Identifier: Apache-2.0
/*
 * CUDA: launching work and waiting for it. A launch is written to the channel's
 * doorbell page, without a system call; the simulated GPU computes it.
 */
#include <string.h>
#include <time.h>

#include "cuda.h"

#define POLL_NS 500000
#define POLLS_PER_CHECK 1000

struct cuda_kernel {
	const char *name;
	uint32_t op;
};

/* c[i] = a[i] + b[i] for i < n, of 32-bit unsigned integers: parameters a, b, c, n. */
static const struct cuda_kernel kernels[] = {
	{ "vector_add", NVSIM_OP_ADD_U32 },
	{ "vectorAdd", NVSIM_OP_ADD_U32 },
};

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	if (!cuda_current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	*module = cuda_current;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	size_t i;

	if (!function || !module || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (!strcmp(kernels[i].name, name)) {
			*function = &kernels[i];
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}

/* Whether the GPU is still there; asked now and then while waiting for it. */
static CUresult still_there(CUcontext context)
{
	struct nvsim_gpu_state state;

	return cuda_error(rm_control(&cuda.rm, context->gpu->rm.subdevice, NVSIM_CTRL_GPU_STATE,
				     &state, sizeof(state)));
}

/* Wait until all but `left` launches are done. */
static CUresult wait_done(CUcontext context, uint64_t left)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };
	struct nvsim_doorbell *bell = context->bell;
	CUresult result;
	unsigned int n;

	for (n = 1; bell->put - __atomic_load_n(&bell->get, __ATOMIC_ACQUIRE) > left; n++) {
		nanosleep(&pause, NULL);
		if (n % POLLS_PER_CHECK)
			continue;
		result = still_there(context);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return __atomic_load_n(&bell->status, __ATOMIC_ACQUIRE) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuda_wait(CUcontext context)
{
	return context ? wait_done(context, 0) : CUDA_ERROR_INVALID_CONTEXT;
}

CUDA_API CUresult cuCtxSynchronize(void)
{
	return cuda_wait(cuda_current);
}

static bool operand(struct nvsim_launch *launch, int which, CUdeviceptr address, size_t size)
{
	struct cuda_memory *memory = cuda_memory_find(address, size);

	if (!memory)
		return false;
	launch->memory[which] = memory->handle;
	launch->offset[which] = address - memory->address;
	return true;
}

/* The threads there are, so that a grid too small computes only part, as on hardware. */
static uint32_t elements(uint32_t wanted, uint64_t grid, uint64_t block)
{
	return wanted < grid * block ? wanted : grid * block;
}

static CUresult describe(struct nvsim_launch *launch, void **params)
{
	CUresult result = CUDA_SUCCESS;
	int i;

	pthread_mutex_lock(&cuda.lock);
	for (i = 0; i < 3; i++)
		if (!operand(launch, i, *(CUdeviceptr *)params[i], 4ull * launch->count))
			result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&cuda.lock);
	return result;
}

static void ring(struct nvsim_doorbell *bell, const struct nvsim_launch *launch)
{
	bell->ring[bell->put % NVSIM_RING] = *launch;
	__atomic_store_n(&bell->put, bell->put + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&bell->submitted, bell->submitted + 1, __ATOMIC_RELEASE);
}

/* Launches of one context must come from one thread at a time. */
CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
				 void **params, void **extra)
{
	struct nvsim_launch launch = { 0 };
	CUresult result;

	(void)shared_bytes;
	(void)stream;
	if (!cuda_current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!function || !params || extra)
		return CUDA_ERROR_INVALID_VALUE;
	launch.op = function->op;
	launch.count = elements(*(uint32_t *)params[3], (uint64_t)grid_x * grid_y * grid_z,
				(uint64_t)block_x * block_y * block_z);
	result = describe(&launch, params);
	if (result == CUDA_SUCCESS)
		result = wait_done(cuda_current, NVSIM_RING - 1);
	if (result == CUDA_SUCCESS)
		ring(cuda_current->bell, &launch);
	return result;
}
