// SPDX-License-Identifier: Apache-2.0
#include "rm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_HANDLE 0x5c000001u

static int call(int fd, unsigned long request, void *args)
{
	int result;

	do {
		result = ioctl(fd, request, args);
	} while (result < 0 && errno == EINTR);
	return result < 0 ? -errno : 0;
}

static int check_version(struct rm *rm)
{
	struct nv_check_version args = { .cmd = '2' };
	int err = call(rm->ctl, NV_IOCTL(NV_ESC_CHECK_VERSION_STR, args), &args);

	memcpy(rm->driver_version, args.version, sizeof(rm->driver_version));
	return err;
}

int rm_open(struct rm *rm)
{
	struct nv_sys_params system;
	int err;

	memset(rm, 0, sizeof(*rm));
	rm->next_handle = FIRST_HANDLE;
	rm->ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (rm->ctl < 0)
		return -errno;
	err = check_version(rm);
	if (!err)
		err = call(rm->ctl, NV_IOCTL(NV_ESC_SYS_PARAMS, system), &system);
	if (!err)
		err = rm_alloc(rm, 0, NV01_ROOT_CLIENT, NULL, 0, &rm->client);
	if (err)
		rm_close(rm);
	return err;
}

void rm_close(struct rm *rm)
{
	if (rm->ctl >= 0)
		close(rm->ctl);
	rm->ctl = -1;
}

int rm_alloc(struct rm *rm, uint32_t parent, uint32_t class, void *params, size_t size,
	     uint32_t *handle)
{
	bool root = class == NV01_ROOT_CLIENT;
	struct nv_rm_alloc args = {
		.root = rm->client,
		.parent = parent,
		.object = root ? 0 : __atomic_fetch_add(&rm->next_handle, 1, __ATOMIC_RELAXED),
		.class = class,
		.params = (uintptr_t)params,
		.params_size = size,
	};
	int err = call(rm->ctl, NV_IOCTL(NV_ESC_RM_ALLOC, args), &args);

	*handle = args.object;
	return err ? err : (int)args.status;
}

int rm_free(struct rm *rm, uint32_t handle)
{
	struct nv_rm_free args = { .root = rm->client, .object = handle };
	int err = call(rm->ctl, NV_IOCTL(NV_ESC_RM_FREE, args), &args);

	return err ? err : (int)args.status;
}

int rm_control(const struct rm *rm, uint32_t object, uint32_t cmd, void *params, size_t size)
{
	struct nv_rm_control args = {
		.client = rm->client,
		.object = object,
		.cmd = cmd,
		.params = (uintptr_t)params,
		.params_size = size,
	};
	int err = call(rm->ctl, NV_IOCTL(NV_ESC_RM_CONTROL, args), &args);

	return err ? err : (int)args.status;
}

int rm_map(const struct rm *rm, const struct rm_gpu *gpu, uint32_t memory, size_t size, void **address)
{
	struct nv_rm_map_memory args = {
		.client = rm->client,
		.device = gpu->device,
		.memory = memory,
		.length = size,
		.fd = gpu->fd,
	};
	int err = call(rm->ctl, NV_IOCTL(NV_ESC_RM_MAP_MEMORY, args), &args);

	if (err || args.status)
		return err ? err : (int)args.status;
	*address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, gpu->fd, args.linear_address);
	return *address == MAP_FAILED ? -errno : 0;
}

static void node_path(const struct nv_card_info *card, char path[32])
{
	snprintf(path, 32, "/dev/nvidia%u", card->minor_number);
}

int rm_cards(const struct rm *rm, struct nv_card_info cards[RM_MAX_CARDS])
{
	struct nv_card_info all[RM_MAX_CARDS];
	struct stat node;
	char path[32];
	int err, i, count = 0;

	err = call(rm->ctl, NV_IOCTL(NV_ESC_CARD_INFO, all), all);
	if (err)
		return err;
	for (i = 0; i < RM_MAX_CARDS; i++) {
		node_path(&all[i], path);
		if (all[i].valid && !stat(path, &node) && S_ISCHR(node.st_mode))
			cards[count++] = all[i];
	}
	return count;
}

static int gpu_objects(struct rm *rm, const struct nv_card_info *card, struct rm_gpu *gpu)
{
	struct nv_alloc_device params = { .device_id = card->minor_number };
	uint32_t subdevice_id = 0;
	int err = rm_alloc(rm, rm->client, NV01_DEVICE_0, &params, sizeof(params), &gpu->device);

	if (err)
		return err;
	err = rm_alloc(rm, gpu->device, NV20_SUBDEVICE_0, &subdevice_id, sizeof(subdevice_id),
		       &gpu->subdevice);
	if (!err)
		err = rm_control(rm, gpu->subdevice, NVSIM_CTRL_GPU_INFO, &gpu->info,
				 sizeof(gpu->info));
	if (err)
		rm_free(rm, gpu->device);
	return err;
}

int rm_gpu_open(struct rm *rm, const struct nv_card_info *card, struct rm_gpu *gpu)
{
	struct nv_register_fd args = { .ctl_fd = rm->ctl };
	char path[32];
	int err;

	node_path(card, path);
	gpu->fd = open(path, O_RDWR | O_CLOEXEC);
	if (gpu->fd < 0)
		return -errno;
	err = call(gpu->fd, NV_IOCTL(NV_ESC_REGISTER_FD, args), &args);
	if (!err)
		err = gpu_objects(rm, card, gpu);
	if (err) {
		close(gpu->fd);
		gpu->fd = -1;
	}
	return err;
}

void rm_gpu_close(struct rm *rm, struct rm_gpu *gpu)
{
	rm_free(rm, gpu->device);
	close(gpu->fd);
	gpu->fd = -1;
}

void rm_uuid_text(const uint8_t uuid[16], char text[RM_UUID_TEXT])
{
	int at = snprintf(text, RM_UUID_TEXT, "GPU-");
	int i;

	for (i = 0; i < 16; i++)
		at += snprintf(text + at, RM_UUID_TEXT - at, "%s%02x",
			       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}
