// SPDX-License-Identifier: GPL-2.0-only
/* Objects of a root client: a tree by handle, and its teardown. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "nvsim.h"

static unsigned int backing_mib = 256;
module_param(backing_mib, uint, 0644);
MODULE_PARM_DESC(backing_mib, "host memory that may stand in for touched device memory, in MiB");

static atomic_long_t backing_pages = ATOMIC_LONG_INIT(0);

/* The caller gives the GPU and, if any, the charge and size. */
struct nvsim_object *nvsim_object_new(struct nvsim_client *client, struct nvsim_gpu *gpu,
				      u32 handle, u32 parent, u32 class)
{
	struct nvsim_object *object = kzalloc(sizeof(*object), GFP_KERNEL);

	if (!object)
		return NULL;
	kref_init(&object->ref);
	xa_init(&object->pages);
	INIT_LIST_HEAD(&object->channel);
	object->client = client;
	object->gpu = gpu;
	object->handle = handle;
	object->parent = parent;
	object->class = class;
	return object;
}

static void object_free(struct kref *ref)
{
	struct nvsim_object *object = container_of(ref, struct nvsim_object, ref);
	unsigned long index;
	struct page *page;

	xa_for_each(&object->pages, index, page) {
		put_page(page);
		atomic_long_dec(&backing_pages);
	}
	xa_destroy(&object->pages);
	kfree(object);
}

void nvsim_object_put(struct nvsim_object *object)
{
	kref_put(&object->ref, object_free);
}

/* Put an object into its client's table, which takes over the reference. */
u32 nvsim_object_add(struct nvsim_object *object)
{
	struct nvsim_client *client = object->client;
	int err;

	lockdep_assert_held(&client->lock);
	if (client->count >= NVSIM_MAX_OBJECTS)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	err = xa_insert(&client->objects, object->handle, object, GFP_KERNEL);
	if (err)
		return err == -EBUSY ? NV_ERR_INSERT_DUPLICATE_NAME : NV_ERR_INSUFFICIENT_RESOURCES;
	client->count++;
	return NV_OK;
}

struct nvsim_object *nvsim_object_find(struct nvsim_client *client, u32 handle)
{
	struct nvsim_object *object;

	xa_lock(&client->objects);
	object = xa_load(&client->objects, handle);
	if (object)
		kref_get(&object->ref);
	xa_unlock(&client->objects);
	return object;
}

static struct page *page_new(void)
{
	unsigned long limit = (unsigned long)READ_ONCE(backing_mib) << (20 - PAGE_SHIFT);
	struct page *page;

	if (atomic_long_inc_return(&backing_pages) > limit)
		goto err;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (page)
		return page;
err:
	atomic_long_dec(&backing_pages);
	return NULL;
}

/* The page behind page `index` of a mappable object, made when first touched. */
struct page *nvsim_object_page(struct nvsim_object *object, unsigned long index)
{
	struct page *page = xa_load(&object->pages, index);
	struct page *old;

	if (page)
		return page;
	page = page_new();
	if (!page)
		return NULL;
	old = xa_cmpxchg(&object->pages, index, NULL, page, GFP_KERNEL);
	if (!old)
		return page;
	put_page(page);
	atomic_long_dec(&backing_pages);
	return xa_is_err(old) ? NULL : old;
}

static bool is_below(struct nvsim_client *client, struct nvsim_object *object, u32 root)
{
	u32 handle = object->handle;

	/* Parents are made before their children, so that this chain ends. */
	while (handle != root) {
		if (handle == client->handle)
			return false;
		object = xa_load(&client->objects, handle);
		if (!object)
			return false;
		handle = object->parent;
	}
	return true;
}

static void object_unlink(struct nvsim_object *object)
{
	struct nvsim_client *client = object->client;

	xa_erase(&client->objects, object->handle);
	client->count--;
	if (object->charge)
		nvsim_charge_release(object->charge);
	if (object->class == NV01_DEVICE_0)
		nvsim_file_use(client->file, object->gpu, -1);
	nvsim_object_put(object);
}

/*
 * Free the object `root` and all below it: stop its channels, take the time a
 * teardown takes, then give the memory back. The parent link of an object is
 * needed to tell what is below it, so none is unlinked before all are known.
 */
void nvsim_object_teardown(struct nvsim_client *client, u32 root, bool closing)
{
	unsigned int contexts = 0;
	struct nvsim_object *object;
	unsigned long gpus = 0;
	unsigned long index;
	u64 bytes = 0;

	lockdep_assert_held(&client->lock);
	xa_for_each(&client->objects, index, object) {
		if (!is_below(client, object, root))
			continue;
		xa_set_mark(&client->objects, index, XA_MARK_1);
		nvsim_engine_remove(object);
		if (object->gpu)
			gpus |= BIT(object->gpu->index);
		if (object->charge) {
			contexts += object->charge->context;
			bytes += object->charge->bytes;
		}
	}
	nvsim_fault_wait_teardown(gpus, contexts, bytes, closing);
	xa_for_each_marked(&client->objects, index, object, XA_MARK_1) object_unlink(object);
}
