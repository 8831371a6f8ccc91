// SPDX-License-Identifier: GPL-2.0-only
/* /dev/nvidia-uvm: every command on it is compute. */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

/* Whether `handle` of the client behind `ctl_fd` is an object of `class` on the GPU; 0 = any class. */
static u32 check_object(int ctl_fd, u32 client_handle, u32 handle, u32 class,
			const struct nvsim_gpu *gpu)
{
	struct file *ctl = nvsim_ctl_get(ctl_fd);
	struct nvsim_object *object = NULL;
	struct nvsim_client *client;
	u32 status = NV_OK;

	if (!ctl)
		return NV_ERR_INVALID_ARGUMENT;
	client = nvsim_client_find(ctl->private_data, client_handle);
	if (client) {
		object = nvsim_object_find(client, handle);
		nvsim_client_put(client);
	}
	if (!client)
		status = NV_ERR_INVALID_CLIENT;
	else if (!object || object->gpu != gpu || (class && object->class != class))
		status = NV_ERR_INVALID_OBJECT_HANDLE;
	if (object)
		nvsim_object_put(object);
	fput(ctl);
	return status;
}

static u32 run_initialize(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	mutex_lock(&nvfile->lock);
	nvfile->initialised = true;
	mutex_unlock(&nvfile->lock);
	return NV_OK;
}

static u32 run_deinitialize(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	return NV_OK; /* The driver does it at the last close, too. */
}

static u32 run_mm_initialize(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	struct uvm_mm_initialize *args = params;
	struct file *file = fget(args->uvm_fd);
	u32 status;

	if (!file)
		return NV_ERR_INVALID_ARGUMENT;
	status = file->f_op == &uvm_fops ? NV_OK : NV_ERR_INVALID_ARGUMENT;
	fput(file);
	return status;
}

static u32 run_register_gpu(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	struct uvm_register_gpu *args = params;

	args->numa_enabled = 0;
	args->numa_node = -1;
	mutex_lock(&nvsim_state);
	nvfile->devices[gpu->index] = 1;
	mutex_unlock(&nvsim_state);
	return NV_OK;
}

static u32 run_register_vaspace(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	struct uvm_register_gpu_vaspace *args = params;

	return check_object(args->ctl_fd, args->client, args->vaspace, FERMI_VASPACE_A, gpu);
}

static u32 run_register_channel(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	struct uvm_register_channel *args = params;

	return check_object(args->ctl_fd, args->client, args->channel, 0, gpu);
}

static u32 run_map_external(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params)
{
	struct uvm_map_external *args = params;

	if (!args->length || args->gpus_count > UVM_MAX_GPUS)
		return NV_ERR_INVALID_ARGUMENT;
	return check_object(args->ctl_fd, args->client, args->memory, NV01_MEMORY_LOCAL_USER, gpu);
}

#define NO_UUID -1

struct uvm_command {
	u32 (*run)(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, void *params);
	u32 cmd;
	u32 size;
	u32 status_at;
	int uuid_at;
	enum nvsim_counter counter;
	bool first; /* allowed before UVM_INITIALIZE */
};

#define COMMAND(number, type, function, uuid, count, early)                                        \
	{                                                                                          \
		.cmd = (number), .size = sizeof(struct type), .run = (function),                   \
		.status_at = offsetof(struct type, status), .uuid_at = (uuid), .counter = (count), \
		.first = (early)                                                                   \
	}

static const struct uvm_command commands[] = {
	COMMAND(UVM_INITIALIZE, uvm_initialize, run_initialize, NO_UUID, NVSIM_UVM_INITIALIZE,
		true),
	COMMAND(UVM_DEINITIALIZE, uvm_deinitialize, run_deinitialize, NO_UUID,
		NVSIM_UVM_DEINITIALIZE, true),
	COMMAND(UVM_MM_INITIALIZE, uvm_mm_initialize, run_mm_initialize, NO_UUID,
		NVSIM_UVM_MM_INITIALIZE, true),
	COMMAND(UVM_REGISTER_GPU, uvm_register_gpu, run_register_gpu,
		offsetof(struct uvm_register_gpu, uuid), NVSIM_UVM_REGISTER_GPU, false),
	COMMAND(UVM_REGISTER_GPU_VASPACE, uvm_register_gpu_vaspace, run_register_vaspace,
		offsetof(struct uvm_register_gpu_vaspace, uuid), NVSIM_UVM_REGISTER_GPU_VASPACE,
		false),
	COMMAND(UVM_REGISTER_CHANNEL, uvm_register_channel, run_register_channel,
		offsetof(struct uvm_register_channel, uuid), NVSIM_UVM_REGISTER_CHANNEL, false),
	COMMAND(UVM_MAP_EXTERNAL_ALLOCATION, uvm_map_external, run_map_external,
		offsetof(struct uvm_map_external, gpus[0].uuid), NVSIM_UVM_MAP_EXTERNAL, false),
};

static const struct uvm_command *command_find(unsigned int cmd)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(commands); i++)
		if (commands[i].cmd == cmd)
			return &commands[i];
	return NULL;
}

static u32 command_run(const struct uvm_command *command, struct nvsim_file *nvfile,
		       struct nvsim_gpu *gpu, void *params)
{
	bool initialised;

	mutex_lock(&nvfile->lock);
	initialised = nvfile->initialised;
	mutex_unlock(&nvfile->lock);
	if (!command->first && !initialised)
		return NV_ERR_ILLEGAL_ACTION;
	if (command->uuid_at != NO_UUID && !gpu)
		return NV_ERR_INVALID_DEVICE;
	if (gpu && READ_ONCE(gpu->lost))
		return NV_ERR_GPU_IS_LOST;
	return command->run(nvfile, gpu, params);
}

/* The moment of execution: guarded, run, counted and written down. */
static long command_execute(const struct uvm_command *command, struct nvsim_file *nvfile,
			    void __user *user, void *params)
{
	struct nvsim_gpu *gpu = NULL;
	struct nvsim_audit record;
	u32 status;

	if (command->uuid_at != NO_UUID)
		gpu = nvsim_gpu_by_uuid(params + command->uuid_at);
	if (gpu)
		nvsim_fault_wait_blocked(gpu);
	nvsim_guard_check(gpu, command->cmd, 0, &record);
	nvsim_counter_add(command->counter);
	status = command_run(command, nvfile, gpu, params);
	if (status != NV_OK)
		nvsim_counter_add(NVSIM_UVM_FAILED);
	record.result = status;
	nvsim_audit_add(&record);
	*(u32 *)(params + command->status_at) = status;
	return copy_to_user(user, params, command->size) ? -EFAULT : 0;
}

static long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg)
{
	const struct uvm_command *command = command_find(cmd);
	struct nvsim_file *nvfile = file->private_data;
	void __user *user = (void __user *)arg;
	void *params;
	long err;

	if (nvfile->node != NVSIM_NODE_UVM || !command) {
		nvsim_counter_add(NVSIM_UVM_UNKNOWN);
		return -EINVAL;
	}
	params = memdup_user(user, command->size);
	if (IS_ERR(params))
		return PTR_ERR(params);
	err = command_execute(command, nvfile, user, params);
	kfree(params);
	return err;
}

static int uvm_open_entry(struct inode *inode, struct file *file)
{
	enum nvsim_node node = iminor(inode) ? NVSIM_NODE_UVM_TOOLS : NVSIM_NODE_UVM;
	struct nvsim_file *nvfile = nvsim_file_open(node, NULL);

	if (IS_ERR(nvfile))
		return PTR_ERR(nvfile);
	file->private_data = nvfile;
	return stream_open(inode, file);
}

static int uvm_release_entry(struct inode *inode, struct file *file)
{
	nvsim_file_close(file->private_data);
	return 0;
}

static vm_fault_t uvm_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS; /* There is no managed memory: only addresses can be reserved. */
}

static const struct vm_operations_struct uvm_vm_ops = {
	.fault = uvm_fault,
};

static int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma)
{
	struct nvsim_file *nvfile = file->private_data;
	bool initialised;

	mutex_lock(&nvfile->lock);
	initialised = nvfile->initialised;
	mutex_unlock(&nvfile->lock);
	if (!initialised)
		return -EBADFD;
	vma->vm_ops = &uvm_vm_ops;
	return 0;
}

const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = uvm_unlocked_ioctl_entry,
	.compat_ioctl = uvm_unlocked_ioctl_entry,
	.open = uvm_open_entry,
	.release = uvm_release_entry,
	.mmap = uvm_mmap_entry,
};
