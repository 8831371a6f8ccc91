// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mappings of doorbells and device memory.
 *
 * RM_MAP_MEMORY on /dev/nvidiactl leaves a token on an open /dev/nvidiaN; one
 * mmap() at that offset uses it up. The mapping keeps its object's pages, not
 * the object: what is mapped stays readable after the client died, and the
 * engine no longer looks at it.
 */
#include <linux/file.h>
#include <linux/mm.h>

#include "nvsim.h"

/* A token is an offset: its number above the pages of the largest object. */
#define TOKEN_SHIFT 28

static struct nvsim_object *mappable_find(struct nvsim_file *ctl,
					  const struct nv_rm_map_memory *args)
{
	struct nvsim_client *client = nvsim_client_find(ctl, args->client);
	struct nvsim_object *object;

	if (!client)
		return NULL;
	object = nvsim_object_find(client, args->memory);
	nvsim_client_put(client);
	if (!object || object->size)
		return object;
	nvsim_object_put(object);
	return NULL;
}

static u32 token_put(struct nvsim_file *nvfile, struct nvsim_object *object, u64 *offset)
{
	u32 token;

	if (xa_alloc(&nvfile->mappings, &token, object, XA_LIMIT(1, NVSIM_MAX_MAPPINGS),
		     GFP_KERNEL))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	*offset = (u64)token << (TOKEN_SHIFT + PAGE_SHIFT);
	return NV_OK;
}

static u32 mapping_on(struct file *file, struct nvsim_object *object, struct nv_rm_map_memory *args)
{
	struct nvsim_file *nvfile = file->private_data;

	if (file->f_op != &nvidia_fops || nvfile->gpu != object->gpu)
		return NV_ERR_INVALID_ARGUMENT;
	if (args->offset || args->length > object->size)
		return NV_ERR_INVALID_ARGUMENT;
	return token_put(nvfile, object, &args->linear_address);
}

u32 nvsim_mapping_create(struct nvsim_file *ctl, struct nv_rm_map_memory *args)
{
	struct nvsim_object *object = mappable_find(ctl, args);
	struct file *file;
	u32 status = NV_ERR_INVALID_ARGUMENT;

	if (!object)
		return NV_ERR_INVALID_OBJECT_HANDLE;
	nvsim_fault_wait_blocked(object->gpu);
	file = fget(args->fd);
	if (file) {
		status = mapping_on(file, object, args);
		fput(file);
	}
	if (status != NV_OK)
		nvsim_object_put(object);
	return status;
}

void nvsim_mapping_destroy_all(struct nvsim_file *nvfile)
{
	struct nvsim_object *object;
	unsigned long token;

	xa_for_each(&nvfile->mappings, token, object)
		nvsim_object_put(object);
	xa_destroy(&nvfile->mappings);
}

static void mapping_vm_open(struct vm_area_struct *vma)
{
	struct nvsim_object *object = vma->vm_private_data;

	kref_get(&object->ref);
}

static void mapping_vm_close(struct vm_area_struct *vma)
{
	nvsim_object_put(vma->vm_private_data);
}

static vm_fault_t mapping_vm_fault(struct vm_fault *vmf)
{
	struct nvsim_object *object = vmf->vma->vm_private_data;
	unsigned long index = vmf->pgoff & (BIT(TOKEN_SHIFT) - 1);
	struct page *page;

	if (index >= object->size >> PAGE_SHIFT)
		return VM_FAULT_SIGBUS;
	page = nvsim_object_page(object, index);
	if (!page)
		return VM_FAULT_SIGBUS; /* not OOM: that would be tried again for ever at the limit */
	get_page(page);
	vmf->page = page;
	return 0;
}

static const struct vm_operations_struct mapping_vm_ops = {
	.open = mapping_vm_open,
	.close = mapping_vm_close,
	.fault = mapping_vm_fault,
};

int nvsim_mapping_mmap(struct nvsim_file *nvfile, struct vm_area_struct *vma)
{
	struct nvsim_object *object;

	/* A private mapping would copy the page that is written to. */
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff & (BIT(TOKEN_SHIFT) - 1))
		return -EINVAL;
	object = xa_erase(&nvfile->mappings, vma->vm_pgoff >> TOKEN_SHIFT);
	if (!object)
		return -EINVAL;
	if (vma->vm_end - vma->vm_start > object->size) {
		nvsim_object_put(object);
		return -EINVAL;
	}
	vma->vm_private_data = object;
	vma->vm_ops = &mapping_vm_ops;
	return 0;
}
