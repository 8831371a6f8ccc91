// SPDX-License-Identifier: GPL-2.0-only
/* RM_CONTROL: questions about the system and its GPUs. None makes a context. */
#include <linux/pid_namespace.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static void fill_system(struct nvsim_system *out)
{
	out->gpus = nvsim_gpu_count;
	strscpy(out->driver_version, nvsim_driver_version, sizeof(out->driver_version));
}

static void fill_gpu_info(struct nvsim_gpu *gpu, struct nvsim_gpu_info *out)
{
	out->index = gpu->index;
	out->minor = gpu->index;
	out->pci_domain = gpu->domain;
	out->pci_bus = gpu->bus;
	out->pci_device = gpu->slot;
	out->pci_id = 0x233010de; /* H100 SXM5 */
	out->pci_subsystem_id = 0x16c110de;
	out->numa_node = gpu->numa_node;
	out->memory_bytes = gpu->memory_bytes;
	memcpy(out->uuid, gpu->uuid.b, sizeof(out->uuid));
	strscpy(out->name, nvsim_gpu_name, sizeof(out->name));
}

static void fill_gpu_state(struct nvsim_gpu *gpu, struct nvsim_gpu_state *out)
{
	mutex_lock(&nvsim_state);
	out->used_bytes = gpu->used_bytes;
	out->contexts = gpu->contexts;
	mutex_unlock(&nvsim_state);
	out->total_bytes = gpu->memory_bytes;
	out->reserved_bytes = (u64)nvsim_reserved_mib * SZ_1M;
	out->utilisation_percent = nvsim_engine_utilisation(gpu);
	out->lost = READ_ONCE(gpu->lost);
}

static u32 control_client(struct nvsim_file *nvfile, u32 cmd, void *params)
{
	switch (cmd) {
	case NVSIM_CTRL_SYSTEM:
		fill_system(params);
		return NV_OK;
	case NVSIM_CTRL_EVENT_REGISTER:
		return nvsim_event_register(nvfile, params);
	case NVSIM_CTRL_EVENT_READ:
		nvsim_event_read(nvfile, params);
		return NV_OK;
	}
	return NV_ERR_INVALID_COMMAND;
}

static u32 control_gpu(struct nvsim_gpu *gpu, u32 cmd, void *params)
{
	nvsim_fault_wait_blocked(gpu);
	if (READ_ONCE(gpu->lost))
		return NV_ERR_GPU_IS_LOST;
	switch (cmd) {
	case NVSIM_CTRL_GPU_INFO:
		fill_gpu_info(gpu, params);
		return NV_OK;
	case NVSIM_CTRL_GPU_STATE:
		fill_gpu_state(gpu, params);
		return NV_OK;
	case NVSIM_CTRL_GPU_PROCESSES:
		nvsim_processes(gpu, params, task_active_pid_ns(current));
		return NV_OK;
	}
	return NV_ERR_INVALID_COMMAND;
}

static size_t params_size(u32 cmd)
{
	switch (cmd) {
	case NVSIM_CTRL_SYSTEM:
		return sizeof(struct nvsim_system);
	case NVSIM_CTRL_EVENT_REGISTER:
		return sizeof(struct nvsim_event_register);
	case NVSIM_CTRL_EVENT_READ:
		return sizeof(struct nvsim_event_read);
	case NVSIM_CTRL_GPU_INFO:
		return sizeof(struct nvsim_gpu_info);
	case NVSIM_CTRL_GPU_STATE:
		return sizeof(struct nvsim_gpu_state);
	case NVSIM_CTRL_GPU_PROCESSES:
		return sizeof(struct nvsim_gpu_processes);
	}
	return 0;
}

static u32 control_object(struct nvsim_file *nvfile, struct nvsim_client *client,
			  const struct nv_rm_control *args, void *params)
{
	struct nvsim_object *object;
	u32 status;

	if (args->object == client->handle)
		return control_client(nvfile, args->cmd, params);
	object = nvsim_object_find(client, args->object);
	if (!object)
		return NV_ERR_INVALID_OBJECT_HANDLE;
	if (object->class == NV20_SUBDEVICE_0)
		status = control_gpu(object->gpu, args->cmd, params);
	else
		status = NV_ERR_INVALID_COMMAND;
	nvsim_object_put(object);
	return status;
}

int nvsim_control(struct nvsim_file *nvfile, struct nv_rm_control *args)
{
	void __user *user = u64_to_user_ptr(args->params);
	size_t size = params_size(args->cmd);
	struct nvsim_client *client;
	void *params;
	int err = 0;

	if (!size || size != args->params_size) {
		args->status = size ? NV_ERR_INVALID_ARGUMENT : NV_ERR_INVALID_COMMAND;
		return 0;
	}
	client = nvsim_client_find(nvfile, args->client);
	if (!client) {
		args->status = NV_ERR_INVALID_CLIENT;
		return 0;
	}
	params = memdup_user(user, size);
	if (IS_ERR(params)) {
		err = PTR_ERR(params);
		goto out;
	}
	args->status = control_object(nvfile, client, args, params);
	if (args->status == NV_OK && copy_to_user(user, params, size))
		err = -EFAULT;
	kfree(params);
out:
	nvsim_client_put(client);
	return err;
}
