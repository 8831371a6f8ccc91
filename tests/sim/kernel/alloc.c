// SPDX-License-Identifier: GPL-2.0-only
/* RM_ALLOC: what each class makes. */
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/uaccess.h>

#include "nvsim.h"

enum class_kind {
	KIND_UNKNOWN,
	KIND_ROOT,
	KIND_DEVICE,
	KIND_SUBDEVICE,
	KIND_VASPACE,
	KIND_CHANNEL_GROUP,
	KIND_GPFIFO,
	KIND_COMPUTE,
	KIND_MEMORY,
};

static enum class_kind class_kind(u32 class)
{
	switch (class) {
	case NV01_ROOT:
	case NV01_ROOT_CLIENT:
		return KIND_ROOT;
	case NV01_DEVICE_0:
		return KIND_DEVICE;
	case NV20_SUBDEVICE_0:
		return KIND_SUBDEVICE;
	case NV01_MEMORY_LOCAL_USER:
		return KIND_MEMORY;
	case FERMI_VASPACE_A:
		return KIND_VASPACE;
	case KEPLER_CHANNEL_GROUP_A:
		return KIND_CHANNEL_GROUP;
	}
	/* Every architecture has its own FIFO and compute class: c36f, c56f, …, c3c0, c6c0, … */
	if (class >= 0xa000 && class <= 0xffff && (class & 0xff) == 0x6f)
		return KIND_GPFIFO;
	if (class >= 0xa000 && class <= 0xffff && (class & 0xff) == 0xc0)
		return KIND_COMPUTE;
	return KIND_UNKNOWN;
}

bool nvsim_class_is_compute(u32 class)
{
	switch (class_kind(class)) {
	case KIND_VASPACE:
	case KIND_CHANNEL_GROUP:
	case KIND_GPFIFO:
	case KIND_COMPUTE:
		return true;
	default:
		return false;
	}
}

/* Which class may be made below which. */
static bool parent_fits(enum class_kind kind, const struct nvsim_object *parent)
{
	enum class_kind above = parent ? class_kind(parent->class) : KIND_ROOT;

	switch (kind) {
	case KIND_DEVICE:
		return above == KIND_ROOT;
	case KIND_SUBDEVICE:
	case KIND_VASPACE:
	case KIND_CHANNEL_GROUP:
	case KIND_MEMORY:
		return above == KIND_DEVICE;
	case KIND_GPFIFO:
		return above == KIND_DEVICE || above == KIND_CHANNEL_GROUP;
	case KIND_COMPUTE:
		return above == KIND_GPFIFO;
	default:
		return false;
	}
}

static int params_read(const struct nv_rm_alloc *args, void *params, size_t need)
{
	size_t size = args->params_size ? min_t(size_t, args->params_size, need) : need;

	memset(params, 0, need);
	if (!args->params)
		return 0;
	return copy_from_user(params, u64_to_user_ptr(args->params), size) ? -EFAULT : 0;
}

static u32 alloc_device(const struct nv_rm_alloc *args, struct nvsim_object *object)
{
	struct nv_alloc_device params;

	if (params_read(args, &params, sizeof(params)))
		return NV_ERR_INVALID_ARGUMENT;
	object->gpu = nvsim_gpu_get(params.device_id);
	if (!object->gpu)
		return NV_ERR_INVALID_DEVICE;
	return NV_OK;
}

static u32 alloc_memory(const struct nv_rm_alloc *args, struct nvsim_object *object)
{
	struct nv_alloc_memory params;

	if (params_read(args, &params, sizeof(params)) || !params.size)
		return NV_ERR_INVALID_ARGUMENT;
	if (params.size > object->gpu->memory_bytes)
		return NV_ERR_NO_MEMORY;
	object->size = PAGE_ALIGN(params.size);
	object->charge = nvsim_charge_take(object->gpu, &object->client->file->owner, object->size,
					   false);
	return object->charge ? NV_OK : NV_ERR_NO_MEMORY;
}

static u32 alloc_vaspace(struct nvsim_object *object)
{
	u64 bytes = (u64)READ_ONCE(nvsim_ctx_mib) * SZ_1M;

	object->charge = nvsim_charge_take(object->gpu, &object->client->file->owner, bytes, true);
	return object->charge ? NV_OK : NV_ERR_NO_MEMORY;
}

static bool has_vaspace(struct nvsim_client *client, const struct nvsim_gpu *gpu)
{
	struct nvsim_object *object;
	unsigned long index;

	lockdep_assert_held(&client->lock);
	xa_for_each(&client->objects, index, object)
		if (object->class == FERMI_VASPACE_A && object->gpu == gpu)
			return true;
	return false;
}

static u32 alloc_channel(struct nvsim_object *object)
{
	if (!has_vaspace(object->client, object->gpu))
		return NV_ERR_INVALID_STATE;
	object->size = PAGE_SIZE;
	/* The doorbell is there from the start: the engine must not fail to find it. */
	return nvsim_object_page(object, 0) ? NV_OK : NV_ERR_NO_MEMORY;
}

static u32 object_fill(enum class_kind kind, const struct nv_rm_alloc *args,
		       struct nvsim_object *object)
{
	switch (kind) {
	case KIND_DEVICE:
		return alloc_device(args, object);
	case KIND_MEMORY:
		return alloc_memory(args, object);
	case KIND_VASPACE:
		return alloc_vaspace(object);
	case KIND_GPFIFO:
		return alloc_channel(object);
	default:
		return NV_OK;
	}
}

static void object_abort(struct nvsim_object *object)
{
	if (object->charge)
		nvsim_charge_release(object->charge);
	nvsim_object_put(object);
}

/* Make the object; what it needs beyond itself is done once it is in the table. */
static u32 object_make(enum class_kind kind, const struct nv_rm_alloc *args,
		       struct nvsim_client *client, struct nvsim_gpu *gpu)
{
	struct nvsim_object *object;
	u32 status;

	object = nvsim_object_new(client, gpu, args->object, args->parent, args->class);
	if (!object)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	status = object_fill(kind, args, object);
	if (status == NV_OK)
		status = nvsim_object_add(object);
	if (status != NV_OK) {
		object_abort(object);
		return status;
	}
	if (kind == KIND_DEVICE)
		nvsim_file_use(client->file, object->gpu, 1);
	if (kind == KIND_GPFIFO)
		nvsim_engine_add(object);
	return NV_OK;
}

static u32 alloc_below(enum class_kind kind, const struct nv_rm_alloc *args,
		       struct nvsim_client *client)
{
	struct nvsim_object *parent = NULL;
	struct nvsim_gpu *gpu = NULL;
	u32 status;

	lockdep_assert_held(&client->lock);
	if (client->dead)
		return NV_ERR_INVALID_CLIENT;
	if (!args->object || args->object == client->handle)
		return NV_ERR_INVALID_OBJECT_HANDLE;
	if (args->parent != client->handle) {
		parent = nvsim_object_find(client, args->parent);
		if (!parent)
			return NV_ERR_INVALID_OBJECT_PARENT;
		gpu = parent->gpu;
	}
	if (!parent_fits(kind, parent))
		status = NV_ERR_INVALID_OBJECT_PARENT;
	else if (gpu && READ_ONCE(gpu->lost))
		status = NV_ERR_GPU_IS_LOST;
	else
		status = object_make(kind, args, client, gpu);
	if (parent)
		nvsim_object_put(parent);
	return status;
}

static void count_class(enum class_kind kind)
{
	static const enum nvsim_counter counters[] = {
		[KIND_UNKNOWN] = NVSIM_ALLOC_UNKNOWN,
		[KIND_ROOT] = NVSIM_ALLOC_ROOT,
		[KIND_DEVICE] = NVSIM_ALLOC_DEVICE,
		[KIND_SUBDEVICE] = NVSIM_ALLOC_SUBDEVICE,
		[KIND_VASPACE] = NVSIM_ALLOC_VASPACE,
		[KIND_CHANNEL_GROUP] = NVSIM_ALLOC_CHANNEL_GROUP,
		[KIND_GPFIFO] = NVSIM_ALLOC_GPFIFO,
		[KIND_COMPUTE] = NVSIM_ALLOC_COMPUTE,
		[KIND_MEMORY] = NVSIM_ALLOC_MEMORY,
	};

	nvsim_counter_add(counters[kind]);
}

/* The GPU an allocation is about, or NULL: the parent's, or the device asked for. */
static struct nvsim_gpu *alloc_gpu(enum class_kind kind, const struct nv_rm_alloc *args,
				   struct nvsim_client *client)
{
	struct nvsim_gpu *gpu = NULL;
	struct nvsim_object *parent;
	struct nv_alloc_device params;

	if (kind == KIND_DEVICE)
		return params_read(args, &params, sizeof(params)) ? NULL :
								    nvsim_gpu_get(params.device_id);
	parent = nvsim_object_find(client, args->parent);
	if (parent) {
		gpu = parent->gpu;
		nvsim_object_put(parent);
	}
	return gpu;
}

static u32 alloc_in_client(enum class_kind kind, const struct nv_rm_alloc *args,
			   struct nvsim_client *client)
{
	struct nvsim_gpu *gpu = alloc_gpu(kind, args, client);
	bool compute = nvsim_class_is_compute(args->class);
	struct nvsim_audit record;
	u32 status;

	if (gpu)
		nvsim_fault_wait_blocked(gpu);
	if (compute)
		nvsim_guard_check(gpu, NV_ESC_RM_ALLOC, args->class, &record);
	mutex_lock(&client->lock);
	status = alloc_below(kind, args, client);
	mutex_unlock(&client->lock);
	if (compute) {
		record.result = status;
		nvsim_audit_add(&record);
	}
	return status;
}

u32 nvsim_alloc(struct nvsim_file *nvfile, struct nv_rm_alloc *args)
{
	enum class_kind kind = class_kind(args->class);
	struct nvsim_client *client;
	u32 status;

	count_class(kind);
	if (kind == KIND_UNKNOWN) {
		status = NV_ERR_INVALID_CLASS;
	} else if (kind == KIND_ROOT) {
		status = nvsim_client_create(nvfile, &args->object);
	} else {
		client = nvsim_client_find(nvfile, args->root);
		if (client) {
			status = alloc_in_client(kind, args, client);
			nvsim_client_put(client);
		} else {
			status = NV_ERR_INVALID_CLIENT;
		}
	}
	if (status != NV_OK)
		nvsim_counter_add(NVSIM_ALLOC_FAILED);
	return status;
}
