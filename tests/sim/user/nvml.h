/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML's ABI that is offered, and what its files share. */
#ifndef NVSIM_NVML_H
#define NVSIM_NVML_H

#include <pthread.h>
#include <stdbool.h>

#include "rm.h"

#define NVML_API __attribute__((visibility("default")))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

struct nvml_device {
	pthread_mutex_t lock; /* of the attaching */
	bool attached;
	unsigned int index;
	struct nv_card_info card;
	struct rm_gpu gpu;
};

struct nvml {
	pthread_mutex_t lock;
	unsigned int users;
	struct rm rm;
	unsigned int count;
	struct nvml_device devices[RM_MAX_CARDS];
};

extern struct nvml nvml;

nvmlReturn_t nvml_error(int err);
nvmlReturn_t nvml_check(const struct nvml_device *device, const void *out);
nvmlReturn_t nvml_attach(struct nvml_device *device);
nvmlReturn_t nvml_text(char *out, unsigned int length, const char *text);
nvmlReturn_t nvml_state(struct nvml_device *device, struct nvsim_gpu_state *state);

#endif
