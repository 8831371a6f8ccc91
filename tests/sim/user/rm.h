/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls, as both libraries make them. */
#ifndef NVSIM_RM_H
#define NVSIM_RM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvsim_uapi.h"

#define RM_MAX_CARDS 32
#define RM_UUID_TEXT 41 /* GPU-, 36, NUL */

/* An open /dev/nvidiactl and the root client on it. */
struct rm {
	int ctl;
	uint32_t client;
	uint32_t next_handle;
	char driver_version[64];
};

/* A card with its node open, and the device and subdevice made on it. */
struct rm_gpu {
	int fd;
	uint32_t device;
	uint32_t subdevice;
	struct nvsim_gpu_info info;
};

/*
 * All return 0, a positive NV_ERR_* status, or a negative errno. A call about
 * a GPU may block for as long as the driver does.
 */
int rm_open(struct rm *rm);
void rm_close(struct rm *rm);
int rm_alloc(struct rm *rm, uint32_t parent, uint32_t class, void *params, size_t size,
	     uint32_t *handle);
int rm_free(struct rm *rm, uint32_t handle);
int rm_control(const struct rm *rm, uint32_t object, uint32_t cmd, void *params, size_t size);
int rm_map(const struct rm *rm, const struct rm_gpu *gpu, uint32_t memory, size_t size, void **address);

/* The cards that the driver lists and that have a node here, by minor; how many, or an error. */
int rm_cards(const struct rm *rm, struct nv_card_info cards[RM_MAX_CARDS]);
int rm_gpu_open(struct rm *rm, const struct nv_card_info *card, struct rm_gpu *gpu);
void rm_gpu_close(struct rm *rm, struct rm_gpu *gpu);

void rm_uuid_text(const uint8_t uuid[16], char text[RM_UUID_TEXT]);

#endif
