// SPDX-License-Identifier: Apache-2.0
/* CUDA: start, errors, devices. */
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CUDA_VERSION 12080

struct cuda cuda = { .lock = PTHREAD_MUTEX_INITIALIZER, .uvm = -1, .uvm_mm = -1 };

CUresult cuda_error(int err)
{
	switch (err) {
	case 0:
		return CUDA_SUCCESS;
	case -ENOENT:
	case -ENXIO:
	case -ENODEV:
		return CUDA_ERROR_NO_DEVICE;
	case -ENOMEM:
	case NV_ERR_NO_MEMORY:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case NV_ERR_INVALID_ARGUMENT:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return err < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_UNKNOWN;
}

/* One uvm command; its status is a member of its arguments. */
int cuda_uvm(unsigned int cmd, void *args, const uint32_t *status)
{
	int result;

	do {
		result = ioctl(cuda.uvm, cmd, args);
	} while (result < 0 && errno == EINTR);
	return result < 0 ? -errno : (int)*status;
}

static int uvm_start(void)
{
	struct uvm_mm_initialize mm = { 0 };
	struct uvm_initialize init = { 0 };
	int err;

	cuda.uvm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	if (cuda.uvm < 0)
		return -errno;
	err = cuda_uvm(UVM_INITIALIZE, &init, &init.status);
	if (err)
		return err;
	cuda.uvm_mm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	if (cuda.uvm_mm < 0)
		return -errno;
	mm.uvm_fd = cuda.uvm_mm;
	return cuda_uvm(UVM_MM_INITIALIZE, &mm, &mm.status);
}

/* Open every GPU whose node is here and may be opened, then keep those to be seen. */
static int gpus_start(void)
{
	struct nv_card_info cards[RM_MAX_CARDS];
	int count = rm_cards(&cuda.rm, cards);
	int i, err;

	if (count < 0)
		return count;
	for (i = 0; i < count; i++) {
		err = rm_gpu_open(&cuda.rm, &cards[i], &cuda.gpus[cuda.count].rm);
		if (!err)
			cuda.count++;
		else if (err != -EPERM && err != -EACCES && err != NV_ERR_GPU_IS_LOST)
			return err;
	}
	count = cuda_visible(cuda.gpus, cuda.count);
	for (i = count; i < (int)cuda.count; i++)
		rm_gpu_close(&cuda.rm, &cuda.gpus[i].rm);
	cuda.count = count;
	return count ? 0 : -ENODEV;
}

static void stop(void)
{
	while (cuda.count)
		rm_gpu_close(&cuda.rm, &cuda.gpus[--cuda.count].rm);
	if (cuda.uvm >= 0)
		close(cuda.uvm);
	if (cuda.uvm_mm >= 0)
		close(cuda.uvm_mm);
	cuda.uvm = cuda.uvm_mm = -1;
	rm_close(&cuda.rm);
}

static int start(void)
{
	int err = rm_open(&cuda.rm);

	if (err)
		return err;
	err = uvm_start();
	if (!err)
		err = gpus_start();
	if (err)
		stop();
	return err;
}

CUDA_API CUresult cuInit(unsigned int flags)
{
	int err = 0;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cuda.lock);
	if (!cuda.initialised) {
		err = start();
		cuda.initialised = !err;
	}
	pthread_mutex_unlock(&cuda.lock);
	return cuda_error(err);
}

CUDA_API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

struct cuda_gpu *cuda_gpu(CUdevice device)
{
	return device >= 0 && (unsigned int)device < cuda.count ? &cuda.gpus[device] : NULL;
}

static CUresult check(CUdevice device, const void *out)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!cuda_gpu(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuDeviceGetCount(int *count)
{
	if (!cuda.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = cuda.count;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult result = check(ordinal, device);

	if (result == CUDA_SUCCESS)
		*device = ordinal;
	return result;
}

CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUresult result = check(device, name);

	if (result == CUDA_SUCCESS)
		snprintf(name, length, "%s", cuda_gpu(device)->rm.info.name);
	return result;
}

CUDA_API CUresult cuDeviceGetUuid(uint8_t uuid[16], CUdevice device)
{
	CUresult result = check(device, uuid);

	if (result == CUDA_SUCCESS)
		memcpy(uuid, cuda_gpu(device)->rm.info.uuid, 16);
	return result;
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = check(device, bytes);

	if (result == CUDA_SUCCESS)
		*bytes = cuda_gpu(device)->rm.info.memory_bytes;
	return result;
}

CUDA_API CUresult cuGetErrorString(CUresult error, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	switch (error) {
	case CUDA_SUCCESS:
		*text = "no error";
		break;
	case CUDA_ERROR_INVALID_VALUE:
		*text = "invalid argument";
		break;
	case CUDA_ERROR_OUT_OF_MEMORY:
		*text = "out of memory";
		break;
	case CUDA_ERROR_NOT_INITIALIZED:
		*text = "initialization error";
		break;
	case CUDA_ERROR_NO_DEVICE:
		*text = "no CUDA-capable device is detected";
		break;
	case CUDA_ERROR_INVALID_DEVICE:
		*text = "invalid device ordinal";
		break;
	case CUDA_ERROR_INVALID_CONTEXT:
		*text = "invalid device context";
		break;
	case CUDA_ERROR_OPERATING_SYSTEM:
		*text = "OS call failed or operation not supported on this OS";
		break;
	case CUDA_ERROR_INVALID_HANDLE:
		*text = "invalid resource handle";
		break;
	case CUDA_ERROR_NOT_FOUND:
		*text = "named symbol not found";
		break;
	case CUDA_ERROR_LAUNCH_FAILED:
		*text = "unspecified launch failure";
		break;
	case CUDA_ERROR_UNKNOWN:
		*text = "unknown error";
		break;
	default:
		*text = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}
