// SPDX-License-Identifier: Apache-2.0
/* NVML: start, stop, versions, and finding a device. */
#include "nvml.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define CUDA_VERSION 12080

struct nvml nvml = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What a driver's error is called here. */
nvmlReturn_t nvml_error(int err)
{
	switch (err) {
	case 0:
		return NVML_SUCCESS;
	case -ENOENT:
	case -ENXIO:
	case -ENODEV:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	case -EACCES:
	case -EPERM:
		return NVML_ERROR_NO_PERMISSION;
	case -ENOMEM:
	case NV_ERR_NO_MEMORY:
		return NVML_ERROR_MEMORY;
	case NV_ERR_GPU_IS_LOST:
		return NVML_ERROR_GPU_IS_LOST;
	case NV_ERR_INSUFFICIENT_RESOURCES:
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	case NV_ERR_INVALID_ARGUMENT:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return err < 0 ? NVML_ERROR_OPERATING_SYSTEM : NVML_ERROR_UNKNOWN;
}

static bool is_device(const struct nvml_device *device)
{
	return device >= nvml.devices && device < nvml.devices + nvml.count;
}

/* Whether a call on a device, with an answer, may go on at all. */
nvmlReturn_t nvml_check(const struct nvml_device *device, const void *out)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!is_device(device) || !device->attached || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	return NVML_SUCCESS;
}

/* Open a device at its first use: a GPU that blocks must not block the others. */
nvmlReturn_t nvml_attach(struct nvml_device *device)
{
	int err = 0;

	pthread_mutex_lock(&device->lock);
	if (!device->attached) {
		err = rm_gpu_open(&nvml.rm, &device->card, &device->gpu);
		device->attached = !err;
	}
	pthread_mutex_unlock(&device->lock);
	return nvml_error(err);
}

nvmlReturn_t nvml_text(char *out, unsigned int length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static int start(void)
{
	struct nv_card_info cards[RM_MAX_CARDS];
	int i, count;
	int err = rm_open(&nvml.rm);

	if (err)
		return err;
	count = rm_cards(&nvml.rm, cards);
	if (count < 0) {
		rm_close(&nvml.rm);
		return count;
	}
	for (i = 0; i < count; i++) {
		nvml.devices[i] = (struct nvml_device){ .index = i, .card = cards[i] };
		pthread_mutex_init(&nvml.devices[i].lock, NULL);
	}
	nvml.count = count;
	return 0;
}

static void stop(void)
{
	unsigned int i;

	for (i = 0; i < nvml.count; i++) {
		if (nvml.devices[i].attached)
			rm_gpu_close(&nvml.rm, &nvml.devices[i].gpu);
		nvml.devices[i].attached = false;
		pthread_mutex_destroy(&nvml.devices[i].lock);
	}
	nvml.count = 0;
	rm_close(&nvml.rm);
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	int err = 0;

	(void)flags;
	pthread_mutex_lock(&nvml.lock);
	if (!nvml.users)
		err = start();
	if (!err)
		nvml.users++;
	pthread_mutex_unlock(&nvml.lock);
	return nvml_error(err);
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&nvml.lock);
	if (!nvml.users)
		result = NVML_ERROR_UNINITIALIZED;
	else if (!--nvml.users)
		stop();
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_OPERATING_SYSTEM:
		return "Operating System Error";
	case NVML_ERROR_MEMORY:
		return "Insufficient Memory";
	case NVML_ERROR_INSUFFICIENT_RESOURCES:
		return "Insufficient Resources";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
		return "Argument version mismatch";
	default:
		return "Unknown Error";
	}
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return nvml.users ? nvml_text(version, length, nvml.rm.driver_version) :
			    NVML_ERROR_UNINITIALIZED;
}

/* NVML's own version: the CUDA major, then the driver's. */
NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[sizeof(nvml.rm.driver_version) + 16];

	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	snprintf(text, sizeof(text), "%d.%s", CUDA_VERSION / 1000, nvml.rm.driver_version);
	return nvml_text(version, length, text);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = CUDA_VERSION;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[4096] = "";
	FILE *file;

	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	file = fopen(path, "r");
	if (!file)
		return NVML_ERROR_NOT_FOUND;
	fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml.count;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t take(struct nvml_device *found, struct nvml_device **device)
{
	nvmlReturn_t result = nvml_attach(found);

	if (result == NVML_SUCCESS)
		*device = found;
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct nvml_device **device)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (index >= nvml.count || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	return take(&nvml.devices[index], device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, struct nvml_device **device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* A device that cannot be attached cannot be the one: nobody can ask it for its UUID. */
NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, struct nvml_device **device)
{
	char text[RM_UUID_TEXT];
	unsigned int i;

	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < nvml.count; i++) {
		if (nvml_attach(&nvml.devices[i]) != NVML_SUCCESS)
			continue;
		rm_uuid_text(nvml.devices[i].gpu.info.uuid, text);
		if (!strcasecmp(text, uuid)) {
			*device = &nvml.devices[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct nvml_device **device)
{
	unsigned int domain, bus, slot, i;
	const struct nv_pci_info *pci;

	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < nvml.count; i++) {
		pci = &nvml.devices[i].card.pci_info;
		if (pci->domain == domain && pci->bus == bus && pci->slot == slot)
			return take(&nvml.devices[i], device);
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, struct nvml_device **device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
