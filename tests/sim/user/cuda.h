/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA driver API that is offered, and what its files share. */
#ifndef NVSIM_CUDA_H
#define NVSIM_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rm.h"

#define CUDA_API __attribute__((visibility("default")))

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct cuda_context *CUcontext;
typedef struct cuda_context *CUmodule; /* a module is its context: the kernels are built in */
typedef const struct cuda_kernel *CUfunction;
typedef struct cuda_stream *CUstream;

struct cuda_gpu {
	struct rm_gpu rm;
	bool registered; /* with uvm */
	CUcontext primary;
	unsigned int primary_users;
};

struct cuda_memory {
	struct cuda_memory *next;
	CUcontext context;
	CUdeviceptr address;
	size_t size;
	uint32_t handle;
	void *mapped; /* NULL until first touched */
};

struct cuda_context {
	struct cuda_gpu *gpu;
	uint32_t vaspace;
	uint32_t group;
	uint32_t channel;
	uint32_t compute;
	struct nvsim_doorbell *bell;
};

struct cuda {
	pthread_mutex_t lock;
	bool initialised;
	struct rm rm;
	int uvm;
	int uvm_mm;
	unsigned int count;
	struct cuda_gpu gpus[RM_MAX_CARDS];
	struct cuda_memory *memory;
	CUdeviceptr next_address;
};

extern struct cuda cuda;
extern __thread CUcontext cuda_current;

CUresult cuda_error(int err);
int cuda_uvm(unsigned int cmd, void *args, const uint32_t *status);
struct cuda_gpu *cuda_gpu(CUdevice device);

/* visible.c: which of the opened GPUs the environment lets this process see, in its order */
unsigned int cuda_visible(struct cuda_gpu *gpus, unsigned int count);

/* cuda_memory.c */
struct cuda_memory *cuda_memory_find(CUdeviceptr address, size_t size);
void cuda_memory_drop(CUcontext context);

/* cuda_launch.c */
CUresult cuda_wait(CUcontext context);

/* Declared for the clients as well. */
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid(uint8_t uuid[16], CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **params, void **extra);
CUresult cuGetErrorString(CUresult error, const char **text);

#endif
