// SPDX-License-Identifier: GPL-2.0-only
/* /dev/nvidiaN and /dev/nvidiactl: one set of file operations, as in the driver. */
#include <linux/file.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

#define MAX_CARDS 32

/* What a gate relies on: the driver's sizes, and the class at byte 12. */
static_assert(sizeof(struct nv_rm_free) == 16);
static_assert(sizeof(struct nv_rm_alloc) == 32);
static_assert(sizeof(struct nv_rm_alloc_rights) == 48);
static_assert(sizeof(struct nv_rm_control) == 32);
static_assert(sizeof(struct nv_rm_map_memory) == 56);
static_assert(sizeof(struct nv_xfer) == 16);
static_assert(offsetof(struct nv_rm_alloc, class) == 12);
static_assert(offsetof(struct nv_rm_alloc_rights, class) == 12);

/* The open /dev/nvidiactl behind a descriptor; the caller does fput(). */
struct file *nvsim_ctl_get(int fd)
{
	struct file *file = fget(fd);
	struct nvsim_file *nvfile;

	if (!file)
		return NULL;
	nvfile = file->private_data;
	if (file->f_op == &nvidia_fops && nvfile->node == NVSIM_NODE_CTL)
		return file;
	fput(file);
	return NULL;
}

static int esc_card_info(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_card_info *cards = params;
	size_t count = size / sizeof(*cards);
	struct nvsim_gpu *gpu;
	size_t i;

	if (count > MAX_CARDS)
		return -EINVAL;
	memset(cards, 0, size);
	for (i = 0; i < count && i < nvsim_gpu_count; i++) {
		gpu = &nvsim_gpus[i];
		cards[i].valid = 1;
		cards[i].pci_info.domain = gpu->domain;
		cards[i].pci_info.bus = gpu->bus;
		cards[i].pci_info.slot = gpu->slot;
		cards[i].pci_info.vendor_id = 0x10de;
		cards[i].pci_info.device_id = 0x2330;
		cards[i].gpu_id = nvsim_gpu_id(gpu);
		cards[i].fb_size = gpu->memory_bytes;
		cards[i].minor_number = i;
	}
	return 0;
}

static int esc_register_fd(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_register_fd *args = params;
	struct file *ctl;
	int err = 0;

	if (nvfile->node != NVSIM_NODE_GPU)
		return -EINVAL;
	ctl = nvsim_ctl_get(args->ctl_fd);
	if (!ctl)
		return -EINVAL;
	mutex_lock(&nvfile->lock);
	if (nvfile->ctl)
		err = -EBUSY;
	else
		nvfile->ctl = ctl;
	mutex_unlock(&nvfile->lock);
	if (err)
		fput(ctl);
	return err;
}

static int esc_check_version(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_check_version *args = params;
	bool same;

	args->version[sizeof(args->version) - 1] = 0;
	same = !strcmp(args->version, nvsim_driver_version);
	args->reply = same;
	if (args->cmd == '2' || same) {
		args->reply = 1;
		strscpy(args->version, nvsim_driver_version, sizeof(args->version));
		return 0;
	}
	return -EINVAL;
}

static int esc_sys_params(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_sys_params *args = params;

	args->memblock_size = SZ_128M;
	return 0;
}

static int esc_wait_open(struct nvsim_file *nvfile, void *params, size_t size)
{
	memset(params, 0, size);
	return 0;
}

/* Holding GPUs by a control descriptor counts as using them. */
static int esc_attach_gpus(struct nvsim_file *nvfile, void *params, size_t size)
{
	u32 *ids = params;
	unsigned int i;
	int g;

	if (nvfile->node != NVSIM_NODE_CTL)
		return -EINVAL;
	for (i = 0; i < size / sizeof(*ids); i++) {
		for (g = 0; g < nvsim_gpu_count; g++)
			if (nvsim_gpu_id(&nvsim_gpus[g]) == ids[i])
				break;
		if (g == nvsim_gpu_count)
			return -EINVAL;
		nvsim_file_use(nvfile, &nvsim_gpus[g], 1);
	}
	return 0;
}

static int esc_alloc(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_rm_alloc_rights *wide = params;
	struct nv_rm_alloc *args = params;
	struct nv_rm_alloc copy;

	if (nvfile->node != NVSIM_NODE_CTL)
		return -EINVAL;
	if (size == sizeof(*args)) {
		args->status = nvsim_alloc(nvfile, args);
		return 0;
	}
	if (size != sizeof(*wide))
		return -EINVAL;
	copy = (struct nv_rm_alloc){
		.root = wide->root,
		.parent = wide->parent,
		.object = wide->object,
		.class = wide->class,
		.params = wide->params,
		.params_size = wide->params_size,
	};
	wide->status = nvsim_alloc(nvfile, &copy);
	wide->object = copy.object;
	return 0;
}

static u32 free_object(struct nvsim_client *client, u32 handle)
{
	struct nvsim_object *object = nvsim_object_find(client, handle);

	if (!object)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (object->gpu)
		nvsim_fault_wait_blocked(object->gpu);
	mutex_lock(&client->lock);
	nvsim_object_teardown(client, handle, false);
	mutex_unlock(&client->lock);
	nvsim_object_put(object);
	return NV_OK;
}

static int esc_free(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_rm_free *args = params;
	struct nvsim_client *client;

	if (nvfile->node != NVSIM_NODE_CTL)
		return -EINVAL;
	if (args->object == args->root) {
		args->status = nvsim_client_destroy(nvfile, args->root);
		return 0;
	}
	client = nvsim_client_find(nvfile, args->root);
	if (!client) {
		args->status = NV_ERR_INVALID_CLIENT;
		return 0;
	}
	args->status = free_object(client, args->object);
	nvsim_client_put(client);
	return 0;
}

static int esc_control(struct nvsim_file *nvfile, void *params, size_t size)
{
	if (nvfile->node != NVSIM_NODE_CTL)
		return -EINVAL;
	return nvsim_control(nvfile, params);
}

static int esc_map_memory(struct nvsim_file *nvfile, void *params, size_t size)
{
	struct nv_rm_map_memory *args = params;

	if (nvfile->node != NVSIM_NODE_CTL)
		return -EINVAL;
	args->status = nvsim_mapping_create(nvfile, args);
	return 0;
}

struct escape {
	int (*run)(struct nvsim_file *nvfile, void *params, size_t size);
	u16 number;
	u16 size; /* 0: the handler checks it */
	u8 counter;
};

static const struct escape escapes[] = {
	{ esc_free, NV_ESC_RM_FREE, sizeof(struct nv_rm_free), NVSIM_RM_FREE },
	{ esc_control, NV_ESC_RM_CONTROL, sizeof(struct nv_rm_control), NVSIM_RM_CONTROL },
	{ esc_alloc, NV_ESC_RM_ALLOC, 0, NVSIM_COUNTERS },
	{ esc_map_memory, NV_ESC_RM_MAP_MEMORY, sizeof(struct nv_rm_map_memory), NVSIM_RM_MAP },
	{ esc_card_info, NV_ESC_CARD_INFO, 0, NVSIM_FRONTEND },
	{ esc_register_fd, NV_ESC_REGISTER_FD, sizeof(struct nv_register_fd), NVSIM_FRONTEND },
	{ esc_check_version, NV_ESC_CHECK_VERSION_STR, sizeof(struct nv_check_version),
	  NVSIM_FRONTEND },
	{ esc_attach_gpus, NV_ESC_ATTACH_GPUS_TO_FD, 0, NVSIM_FRONTEND },
	{ esc_sys_params, NV_ESC_SYS_PARAMS, sizeof(struct nv_sys_params), NVSIM_FRONTEND },
	{ esc_wait_open, NV_ESC_WAIT_OPEN_COMPLETE, sizeof(struct nv_wait_open_complete),
	  NVSIM_FRONTEND },
};

static const struct escape *escape_find(unsigned int number)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(escapes); i++)
		if (escapes[i].number == number)
			return &escapes[i];
	return NULL;
}

static long escape_run(struct nvsim_file *nvfile, unsigned int number, void __user *user,
		       size_t size)
{
	const struct escape *escape = escape_find(number);
	u64 small[32];
	void *params;
	int err;

	if (!escape || !size || (escape->size && escape->size != size))
		return -EINVAL;
	params = size <= sizeof(small) ? small : kmalloc(size, GFP_KERNEL);
	if (!params)
		return -ENOMEM;
	err = copy_from_user(params, user, size) ? -EFAULT : 0;
	if (!err) {
		if (escape->counter < NVSIM_COUNTERS)
			nvsim_counter_add(escape->counter);
		err = escape->run(nvfile, params, size);
	}
	if (!err && copy_to_user(user, params, size))
		err = -EFAULT;
	if (params != small)
		kfree(params);
	return err;
}

static long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct nvsim_file *nvfile = file->private_data;
	void __user *user = (void __user *)arg;
	size_t size = _IOC_SIZE(cmd);
	unsigned int number = _IOC_NR(cmd);
	struct nv_xfer xfer;

	if (_IOC_TYPE(cmd) != NV_IOCTL_MAGIC)
		return -EINVAL;
	if (nvfile->gpu)
		nvsim_fault_wait_blocked(nvfile->gpu);
	if (number == NV_ESC_XFER_CMD) {
		if (size != sizeof(xfer))
			return -EINVAL;
		if (copy_from_user(&xfer, user, sizeof(xfer)))
			return -EFAULT;
		if (xfer.size > SZ_16K || xfer.cmd == NV_ESC_XFER_CMD)
			return -EINVAL;
		number = xfer.cmd;
		size = xfer.size;
		user = u64_to_user_ptr(xfer.ptr);
	}
	return escape_run(nvfile, number, user, size);
}

static int nvidia_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	struct nvsim_gpu *gpu = NULL;
	struct nvsim_file *nvfile;

	if (minor != NV_MINOR_CTL) {
		gpu = nvsim_gpu_get(minor);
		if (!gpu)
			return -ENODEV;
	}
	nvfile = nvsim_file_open(gpu ? NVSIM_NODE_GPU : NVSIM_NODE_CTL, gpu);
	if (IS_ERR(nvfile))
		return PTR_ERR(nvfile);
	file->private_data = nvfile;
	return stream_open(inode, file);
}

static int nvidia_close(struct inode *inode, struct file *file)
{
	struct nvsim_file *nvfile = file->private_data;

	nvsim_client_destroy_all(nvfile);
	nvsim_file_close(nvfile);
	return 0;
}

static int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	return nvsim_mapping_mmap(file->private_data, vma);
}

static __poll_t nvidia_poll(struct file *file, poll_table *wait)
{
	struct nvsim_file *nvfile = file->private_data;

	poll_wait(file, &nvfile->event_wait, wait);
	return nvsim_event_pending(nvfile) ? EPOLLIN | EPOLLPRI : 0;
}

const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nvidia_unlocked_ioctl,
	.compat_ioctl = nvidia_unlocked_ioctl,
	.open = nvidia_open,
	.release = nvidia_close,
	.mmap = nvidia_mmap,
	.poll = nvidia_poll,
};
