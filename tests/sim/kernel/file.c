// SPDX-License-Identifier: GPL-2.0-only
/* Open files: who opened what, and which GPUs it uses. */
#include <linux/file.h>
#include <linux/slab.h>

#include "nvsim.h"

DEFINE_MUTEX(nvsim_state);
LIST_HEAD(nvsim_files);
static unsigned int file_count;

static struct cgroup *current_cgroup_get(void)
{
	struct cgroup *cgroup;

	rcu_read_lock();
	do {
		cgroup = task_dfl_cgroup(current);
	} while (!css_tryget(&cgroup->self));
	rcu_read_unlock();
	return cgroup;
}

void nvsim_owner_get(struct nvsim_owner *owner)
{
	owner->cgroup = current_cgroup_get();
	owner->pid = get_pid(task_tgid(current));
	get_task_comm(owner->comm, current);
}

void nvsim_owner_copy(struct nvsim_owner *to, const struct nvsim_owner *from)
{
	*to = *from;
	css_get(&to->cgroup->self);
	get_pid(to->pid);
}

void nvsim_owner_put(struct nvsim_owner *owner)
{
	css_put(&owner->cgroup->self);
	put_pid(owner->pid);
}

/* A file counts as a use of each GPU it is a node of, made a device on, or registered. */
void nvsim_file_use(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, int uses)
{
	mutex_lock(&nvsim_state);
	nvfile->devices[gpu->index] += uses;
	mutex_unlock(&nvsim_state);
}

struct nvsim_file *nvsim_file_open(enum nvsim_node node, struct nvsim_gpu *gpu)
{
	struct nvsim_file *nvfile = kzalloc(sizeof(*nvfile), GFP_KERNEL);
	bool full;

	if (!nvfile)
		return ERR_PTR(-ENOMEM);
	nvfile->node = node;
	nvfile->gpu = gpu;
	mutex_init(&nvfile->lock);
	INIT_LIST_HEAD(&nvfile->clients);
	xa_init_flags(&nvfile->mappings, XA_FLAGS_ALLOC1);
	spin_lock_init(&nvfile->event_lock);
	init_waitqueue_head(&nvfile->event_wait);
	nvsim_owner_get(&nvfile->owner);
	if (gpu)
		nvfile->devices[gpu->index] = 1;

	mutex_lock(&nvsim_state);
	full = file_count >= NVSIM_MAX_FILES;
	if (!full) {
		file_count++;
		list_add_tail(&nvfile->list, &nvsim_files);
	}
	mutex_unlock(&nvsim_state);
	if (full) {
		nvsim_owner_put(&nvfile->owner);
		kfree(nvfile);
		return ERR_PTR(-EMFILE);
	}
	nvsim_counter_add(NVSIM_OPEN);
	return nvfile;
}

void nvsim_file_close(struct nvsim_file *nvfile)
{
	mutex_lock(&nvsim_state);
	file_count--;
	list_del(&nvfile->list);
	mutex_unlock(&nvsim_state);

	nvsim_mapping_destroy_all(nvfile);
	if (nvfile->ctl)
		fput(nvfile->ctl);
	nvsim_owner_put(&nvfile->owner);
	mutex_destroy(&nvfile->lock);
	kfree(nvfile);
	nvsim_counter_add(NVSIM_CLOSE);
}
