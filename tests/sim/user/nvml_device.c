// SPDX-License-Identifier: Apache-2.0
/* NVML: what a device is and does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

#define MEMORY_V2 0x02000028u
#define NO_INSTANCE 0xffffffffu /* not a MIG device */

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

/* v2 and v3 are the same. */
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

nvmlReturn_t nvml_state(struct nvml_device *device, struct nvsim_gpu_state *state)
{
	return nvml_error(rm_control(&nvml.rm, device->gpu.subdevice, NVSIM_CTRL_GPU_STATE, state,
				     sizeof(*state)));
}

/* Every call on a device asks the driver, so that a lost or blocked GPU shows. */
static nvmlReturn_t ask(struct nvml_device *device, const void *out, struct nvsim_gpu_state *state)
{
	nvmlReturn_t result = nvml_check(device, out);

	return result == NVML_SUCCESS ? nvml_state(device, state) : result;
}

static nvmlReturn_t answer(struct nvml_device *device, unsigned int *out, unsigned int value)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, out, &state);

	if (result == NVML_SUCCESS)
		*out = value;
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetName(struct nvml_device *device, char *name, unsigned int length)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, name, &state);

	return result == NVML_SUCCESS ? nvml_text(name, length, device->gpu.info.name) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(struct nvml_device *device, char *uuid, unsigned int length)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, uuid, &state);
	char text[RM_UUID_TEXT];

	if (result != NVML_SUCCESS)
		return result;
	rm_uuid_text(device->gpu.info.uuid, text);
	return nvml_text(uuid, length, text);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(struct nvml_device *device, unsigned int *index)
{
	nvmlReturn_t result = nvml_check(device, index);

	if (result == NVML_SUCCESS)
		*index = device->index;
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(struct nvml_device *device, unsigned int *minor)
{
	nvmlReturn_t result = nvml_check(device, minor);

	if (result == NVML_SUCCESS)
		*minor = device->gpu.info.minor;
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(struct nvml_device *device, nvmlPciInfo_t *pci)
{
	nvmlReturn_t result = nvml_check(device, pci);
	const struct nvsim_gpu_info *info;

	if (result != NVML_SUCCESS)
		return result;
	info = &device->gpu.info;
	*pci = (nvmlPciInfo_t){
		.domain = info->pci_domain,
		.bus = info->pci_bus,
		.device = info->pci_device,
		.pciDeviceId = info->pci_id,
		.pciSubSystemId = info->pci_subsystem_id,
	};
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		 info->pci_domain & 0xffff, info->pci_bus & 0xff, info->pci_device & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", info->pci_domain,
		 info->pci_bus, info->pci_device);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(struct nvml_device *device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(struct nvml_device *device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

/* v1 counts what is reserved as used; v2 shows it apart. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(struct nvml_device *device, nvmlMemory_t *memory)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, memory, &state);

	if (result != NVML_SUCCESS)
		return result;
	memory->total = state.total_bytes;
	memory->used = state.used_bytes + state.reserved_bytes;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(struct nvml_device *device, nvmlMemory_v2_t *memory)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, memory, &state);

	if (result != NVML_SUCCESS)
		return result;
	if (memory->version != MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = state.total_bytes;
	memory->reserved = state.reserved_bytes;
	memory->used = state.used_bytes;
	memory->free = memory->total - memory->used - memory->reserved;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(struct nvml_device *device,
						    nvmlUtilization_t *utilization)
{
	struct nvsim_gpu_state state;
	nvmlReturn_t result = ask(device, utilization, &state);

	if (result != NVML_SUCCESS)
		return result;
	utilization->gpu = state.utilisation_percent;
	utilization->memory = state.utilisation_percent / 2;
	return NVML_SUCCESS;
}

/* The processes of one kind; the caller frees the list. */
static nvmlReturn_t processes(struct nvml_device *device, const unsigned int *count, bool compute,
			      struct nvsim_gpu_processes **found)
{
	nvmlReturn_t result = nvml_check(device, count);
	struct nvsim_gpu_processes *all;
	unsigned int i, kept = 0;

	if (result != NVML_SUCCESS)
		return result;
	all = calloc(1, sizeof(*all));
	if (!all)
		return NVML_ERROR_MEMORY;
	result = nvml_error(rm_control(&nvml.rm, device->gpu.subdevice, NVSIM_CTRL_GPU_PROCESSES,
				       all, sizeof(*all)));
	if (result != NVML_SUCCESS) {
		free(all);
		return result;
	}
	for (i = 0; i < all->count; i++)
		if (compute && all->list[i].compute)
			all->list[kept++] = all->list[i];
	all->count = kept;
	*found = all;
	return NVML_SUCCESS;
}

/* Whether the caller's list is long enough; tells how many there are in any case. */
static nvmlReturn_t fits(const struct nvsim_gpu_processes *found, unsigned int *count, const void *out)
{
	unsigned int room = out ? *count : 0;

	*count = found->count;
	return found->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list(struct nvml_device *device, unsigned int *count, nvmlProcessInfo_t *out,
			 bool compute)
{
	struct nvsim_gpu_processes *found;
	nvmlReturn_t result = processes(device, count, compute, &found);
	unsigned int i;

	if (result != NVML_SUCCESS)
		return result;
	result = fits(found, count, out);
	for (i = 0; result == NVML_SUCCESS && i < found->count; i++)
		out[i] = (nvmlProcessInfo_t){
			.pid = found->list[i].pid,
			.usedGpuMemory = found->list[i].bytes,
			.gpuInstanceId = NO_INSTANCE,
			.computeInstanceId = NO_INSTANCE,
		};
	free(found);
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(struct nvml_device *device,
							      unsigned int *count,
							      nvmlProcessInfo_t *out)
{
	return list(device, count, out, true);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(struct nvml_device *device,
							      unsigned int *count,
							      nvmlProcessInfo_t *out)
{
	return list(device, count, out, true);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(struct nvml_device *device,
							   unsigned int *count,
							   nvmlProcessInfo_v1_t *out)
{
	struct nvsim_gpu_processes *found;
	nvmlReturn_t result = processes(device, count, true, &found);
	unsigned int i;

	if (result != NVML_SUCCESS)
		return result;
	result = fits(found, count, out);
	for (i = 0; result == NVML_SUCCESS && i < found->count; i++)
		out[i] = (nvmlProcessInfo_v1_t){ found->list[i].pid, found->list[i].bytes };
	free(found);
	return result;
}

/* There is neither graphics nor MPS here. */
NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(struct nvml_device *device,
							       unsigned int *count,
							       nvmlProcessInfo_t *out)
{
	return list(device, count, out, false);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(struct nvml_device *device,
							       unsigned int *count,
							       nvmlProcessInfo_t *out)
{
	return list(device, count, out, false);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(struct nvml_device *device,
								 unsigned int *count,
								 nvmlProcessInfo_t *out)
{
	return list(device, count, out, false);
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(struct nvml_device *device, unsigned int *current,
					   unsigned int *pending)
{
	nvmlReturn_t result = answer(device, current, 0);

	if (result != NVML_SUCCESS)
		return result;
	return answer(device, pending, 0);
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(struct nvml_device *device, unsigned int *is_mig)
{
	return answer(device, is_mig, 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(struct nvml_device *device, unsigned int *count)
{
	return answer(device, count, 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(struct nvml_device *device, int sensor,
					       unsigned int *celsius)
{
	return sensor ? NVML_ERROR_INVALID_ARGUMENT : answer(device, celsius, 35);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(struct nvml_device *device, unsigned int *milliwatts)
{
	return answer(device, milliwatts, 70000);
}

NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(struct nvml_device *device,
						      unsigned int *milliwatts)
{
	return answer(device, milliwatts, 700000);
}

NVML_API nvmlReturn_t nvmlDeviceGetPersistenceMode(struct nvml_device *device, unsigned int *mode)
{
	return answer(device, mode, 1);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(struct nvml_device *device, unsigned int *mode)
{
	return answer(device, mode, 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(struct nvml_device *device, int *major,
							 int *minor)
{
	nvmlReturn_t result = nvml_check(device, major);

	if (result == NVML_SUCCESS)
		result = nvml_check(device, minor);
	if (result == NVML_SUCCESS) {
		*major = 9;
		*minor = 0;
	}
	return result;
}
