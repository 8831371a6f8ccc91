// SPDX-License-Identifier: Apache-2.0
/* NVML: waiting for an Xid. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "nvml.h"

#define EVENT_XID_CRITICAL 8ull

typedef struct {
	struct nvml_device *device;
	unsigned long long eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

/* A set is a control descriptor of its own: the driver queues events on it. */
struct nvml_event_set {
	struct rm rm;
};

NVML_API nvmlReturn_t nvmlEventSetCreate(struct nvml_event_set **set)
{
	struct nvml_event_set *made;
	int err;

	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	made = calloc(1, sizeof(*made));
	if (!made)
		return NVML_ERROR_MEMORY;
	err = rm_open(&made->rm);
	if (err) {
		free(made);
		return nvml_error(err);
	}
	*set = made;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetFree(struct nvml_event_set *set)
{
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	rm_close(&set->rm);
	free(set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(struct nvml_device *device,
						       unsigned long long *types)
{
	nvmlReturn_t result = nvml_check(device, types);

	if (result == NVML_SUCCESS)
		*types = EVENT_XID_CRITICAL;
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(struct nvml_device *device, unsigned long long types,
					       struct nvml_event_set *set)
{
	nvmlReturn_t result = nvml_check(device, set);
	struct nvsim_event_register args;

	if (result != NVML_SUCCESS)
		return result;
	if (types & ~EVENT_XID_CRITICAL)
		return NVML_ERROR_NOT_SUPPORTED;
	args = (struct nvsim_event_register){ .gpu = device->gpu.info.index, .types = types };
	return nvml_error(rm_control(&set->rm, set->rm.client, NVSIM_CTRL_EVENT_REGISTER, &args,
				     sizeof(args)));
}

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* The device of an event; a GPU without a node here has none. */
static struct nvml_device *device_of(unsigned int gpu)
{
	unsigned int i;

	for (i = 0; i < nvml.count; i++)
		if (nvml.devices[i].card.minor_number == gpu)
			return &nvml.devices[i];
	return NULL;
}

static nvmlReturn_t read_event(struct nvml_event_set *set, nvmlEventData_t *data, bool *found)
{
	struct nvsim_event_read event = { 0 };
	int err = rm_control(&set->rm, set->rm.client, NVSIM_CTRL_EVENT_READ, &event, sizeof(event));

	*found = !err && event.valid;
	if (*found)
		*data = (nvmlEventData_t){
			.device = device_of(event.gpu),
			.eventType = event.type,
			.eventData = event.data,
			.gpuInstanceId = 0xffffffffu,
			.computeInstanceId = 0xffffffffu,
		};
	return nvml_error(err);
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(struct nvml_event_set *set, nvmlEventData_t *data,
					  unsigned int timeout_ms)
{
	long long deadline = now_ms() + timeout_ms;
	nvmlReturn_t result;
	struct pollfd poller;
	long long left;
	bool found;

	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	poller = (struct pollfd){ .fd = set->rm.ctl, .events = POLLIN };
	for (;;) {
		result = read_event(set, data, &found);
		if (result != NVML_SUCCESS || found)
			return result;
		left = deadline - now_ms();
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		if (poll(&poller, 1, left > 1000000 ? 1000000 : left) < 0 && errno != EINTR)
			return NVML_ERROR_OPERATING_SYSTEM;
	}
}

NVML_API nvmlReturn_t nvmlEventSetWait(struct nvml_event_set *set, nvmlEventData_t *data,
				       unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
