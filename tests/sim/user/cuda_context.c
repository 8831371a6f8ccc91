// SPDX-License-Identifier: Apache-2.0
/* CUDA: contexts. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

__thread CUcontext cuda_current;

static int uvm_register_gpu(struct cuda_gpu *gpu)
{
	struct uvm_register_gpu args = { .ctl_fd = cuda.rm.ctl, .client = cuda.rm.client };
	int err = 0;

	memcpy(args.uuid, gpu->rm.info.uuid, sizeof(args.uuid));
	if (!gpu->registered)
		err = cuda_uvm(UVM_REGISTER_GPU, &args, &args.status);
	gpu->registered = gpu->registered || !err;
	return err;
}

static int uvm_register_vaspace(const struct cuda_context *context)
{
	struct uvm_register_gpu_vaspace args = {
		.ctl_fd = cuda.rm.ctl,
		.client = cuda.rm.client,
		.vaspace = context->vaspace,
	};

	memcpy(args.uuid, context->gpu->rm.info.uuid, sizeof(args.uuid));
	return cuda_uvm(UVM_REGISTER_GPU_VASPACE, &args, &args.status);
}

static int uvm_register_channel(const struct cuda_context *context)
{
	struct uvm_register_channel args = {
		.ctl_fd = cuda.rm.ctl,
		.client = cuda.rm.client,
		.channel = context->channel,
	};

	memcpy(args.uuid, context->gpu->rm.info.uuid, sizeof(args.uuid));
	return cuda_uvm(UVM_REGISTER_CHANNEL, &args, &args.status);
}

static int channel_make(struct cuda_context *context)
{
	struct nv_alloc_channel_group group = { .vaspace = context->vaspace, .engine_type = 1 };
	uint32_t device = context->gpu->rm.device;
	void *bell;
	int err;

	err = rm_alloc(&cuda.rm, device, KEPLER_CHANNEL_GROUP_A, &group, sizeof(group),
		       &context->group);
	if (err)
		return err;
	err = rm_alloc(&cuda.rm, context->group, AMPERE_CHANNEL_GPFIFO_A, NULL, 0, &context->channel);
	if (!err)
		err = rm_alloc(&cuda.rm, context->channel, AMPERE_COMPUTE_A, NULL, 0,
			       &context->compute);
	if (!err)
		err = uvm_register_channel(context);
	if (!err)
		err = rm_map(&cuda.rm, &context->gpu->rm, context->channel, sysconf(_SC_PAGESIZE),
			     &bell);
	if (err)
		rm_free(&cuda.rm, context->group);
	else
		context->bell = bell;
	return err;
}

static int context_make(struct cuda_context *context)
{
	int err = uvm_register_gpu(context->gpu);

	if (err)
		return err;
	err = rm_alloc(&cuda.rm, context->gpu->rm.device, FERMI_VASPACE_A, NULL, 0,
		       &context->vaspace);
	if (err)
		return err;
	err = uvm_register_vaspace(context);
	if (!err)
		err = channel_make(context);
	if (err)
		rm_free(&cuda.rm, context->vaspace);
	return err;
}

static CUresult context_new(CUcontext *out, struct cuda_gpu *gpu)
{
	struct cuda_context *context = calloc(1, sizeof(*context));
	int err;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->gpu = gpu;
	err = context_make(context);
	if (err) {
		free(context);
		return cuda_error(err);
	}
	*out = context;
	return CUDA_SUCCESS;
}

static CUresult context_free(CUcontext context)
{
	int err;

	cuda_memory_drop(context);
	munmap(context->bell, sysconf(_SC_PAGESIZE));
	err = rm_free(&cuda.rm, context->group);
	if (!err)
		err = rm_free(&cuda.rm, context->vaspace);
	if (cuda_current == context)
		cuda_current = NULL;
	free(context);
	return cuda_error(err);
}

static CUresult check(CUdevice device)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	return cuda_gpu(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	CUresult result = check(device);

	(void)flags;
	if (result != CUDA_SUCCESS)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cuda.lock);
	result = context_new(context, cuda_gpu(device));
	pthread_mutex_unlock(&cuda.lock);
	if (result == CUDA_SUCCESS)
		cuda_current = *context;
	return result;
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult result;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&cuda.lock);
	result = context_free(context);
	pthread_mutex_unlock(&cuda.lock);
	return result;
}

CUDA_API CUresult cuCtxSetCurrent(CUcontext context)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	cuda_current = context;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result = check(device);
	struct cuda_gpu *gpu;

	if (result != CUDA_SUCCESS)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cuda.lock);
	gpu = cuda_gpu(device);
	if (!gpu->primary_users)
		result = context_new(&gpu->primary, gpu);
	if (result == CUDA_SUCCESS) {
		gpu->primary_users++;
		*context = gpu->primary;
	}
	pthread_mutex_unlock(&cuda.lock);
	return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult result = check(device);
	struct cuda_gpu *gpu;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda.lock);
	gpu = cuda_gpu(device);
	if (!gpu->primary_users) {
		result = CUDA_ERROR_INVALID_CONTEXT;
	} else if (!--gpu->primary_users) {
		result = context_free(gpu->primary);
		gpu->primary = NULL;
	}
	pthread_mutex_unlock(&cuda.lock);
	return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}
