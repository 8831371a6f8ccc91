// SPDX-License-Identifier: Apache-2.0
/* CUDA: device memory. Mapped when first copied to or from, so that what is only held costs nothing. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"

#define FIRST_ADDRESS 0x7e0000000000ull
#define ADDRESS_STEP 0x200000ull /* allocations are 2 MiB apart, as CUDA's are */

static int uvm_map(const struct cuda_memory *memory)
{
	struct uvm_map_external *args = calloc(1, sizeof(*args));
	int err;

	if (!args)
		return NV_ERR_NO_MEMORY;
	args->base = memory->address;
	args->length = memory->size;
	args->gpus_count = 1;
	args->ctl_fd = cuda.rm.ctl;
	args->client = cuda.rm.client;
	args->memory = memory->handle;
	memcpy(args->gpus[0].uuid, memory->context->gpu->rm.info.uuid, 16);
	err = cuda_uvm(UVM_MAP_EXTERNAL_ALLOCATION, args, &args->status);
	free(args);
	return err;
}

static CUdeviceptr address_take(size_t size)
{
	CUdeviceptr address = cuda.next_address ? cuda.next_address : FIRST_ADDRESS;

	cuda.next_address = address + (size + ADDRESS_STEP - 1) / ADDRESS_STEP * ADDRESS_STEP;
	return address;
}

static int memory_make(struct cuda_memory *memory)
{
	struct nv_alloc_memory params = { .size = memory->size };
	int err = rm_alloc(&cuda.rm, memory->context->gpu->rm.device, NV01_MEMORY_LOCAL_USER, &params,
			   sizeof(params), &memory->handle);

	if (err)
		return err;
	memory->address = address_take(memory->size);
	err = uvm_map(memory);
	if (err)
		rm_free(&cuda.rm, memory->handle);
	return err;
}

static int memory_free(struct cuda_memory *memory)
{
	int err;

	if (memory->mapped)
		munmap(memory->mapped, memory->size);
	err = rm_free(&cuda.rm, memory->handle);
	free(memory);
	return err;
}

/* The allocation that holds all of a range; the caller holds the lock. */
struct cuda_memory *cuda_memory_find(CUdeviceptr address, size_t size)
{
	struct cuda_memory *memory;

	for (memory = cuda.memory; memory; memory = memory->next)
		if (address >= memory->address && address - memory->address <= memory->size &&
		    size <= memory->size - (address - memory->address))
			return memory;
	return NULL;
}

void cuda_memory_drop(CUcontext context)
{
	struct cuda_memory **at = &cuda.memory;
	struct cuda_memory *memory;

	while ((memory = *at)) {
		if (memory->context == context) {
			*at = memory->next;
			memory_free(memory);
		} else {
			at = &memory->next;
		}
	}
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	struct cuda_memory *memory;
	int err;

	if (!cuda_current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!address || !size)
		return CUDA_ERROR_INVALID_VALUE;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->context = cuda_current;
	memory->size = size;
	pthread_mutex_lock(&cuda.lock);
	err = memory_make(memory);
	if (!err) {
		memory->next = cuda.memory;
		cuda.memory = memory;
		*address = memory->address;
	}
	pthread_mutex_unlock(&cuda.lock);
	if (err)
		free(memory);
	return cuda_error(err);
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr address)
{
	struct cuda_memory **at;
	struct cuda_memory *memory;
	int err = 0;

	pthread_mutex_lock(&cuda.lock);
	for (at = &cuda.memory; *at && (*at)->address != address; at = &(*at)->next)
		;
	memory = *at;
	if (memory) {
		*at = memory->next;
		err = memory_free(memory);
	}
	pthread_mutex_unlock(&cuda.lock);
	return memory ? cuda_error(err) : CUDA_ERROR_INVALID_VALUE;
}

/* Where this process sees a range of device memory. */
static CUresult memory_touch(CUdeviceptr address, size_t size, void **here)
{
	struct cuda_memory *memory;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&cuda.lock);
	memory = cuda_memory_find(address, size);
	if (!memory)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!memory->mapped)
		result = cuda_error(rm_map(&cuda.rm, &memory->context->gpu->rm, memory->handle,
					   memory->size, &memory->mapped));
	if (result == CUDA_SUCCESS)
		*here = (char *)memory->mapped + (address - memory->address);
	pthread_mutex_unlock(&cuda.lock);
	return result;
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	CUresult result = cuda_wait(cuda_current);
	void *here;

	if (result == CUDA_SUCCESS)
		result = memory_touch(to, size, &here);
	if (result == CUDA_SUCCESS)
		memcpy(here, from, size);
	return result;
}

CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	CUresult result = cuda_wait(cuda_current);
	void *here;

	if (result == CUDA_SUCCESS)
		result = memory_touch(from, size, &here);
	if (result == CUDA_SUCCESS)
		memcpy(to, here, size);
	return result;
}

CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct nvsim_gpu_state state;
	int err;

	if (!cuda_current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	err = rm_control(&cuda.rm, cuda_current->gpu->rm.subdevice, NVSIM_CTRL_GPU_STATE, &state,
			 sizeof(state));
	if (!err) {
		*total = state.total_bytes;
		*free_bytes = state.total_bytes - state.reserved_bytes - state.used_bytes;
	}
	return cuda_error(err);
}
