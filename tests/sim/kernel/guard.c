// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guards: a GPU that must be one cgroup's alone whenever that cgroup computes.
 *
 * The check is made by the driver at the moment an operation executes, so that
 * a hand-back is judged by what the hardware would have seen and not by what
 * the agent believes.
 */
#include <linux/ktime.h>
#include <linux/slab.h>

#include "nvsim.h"

#define MAX_GUARDS 64
#define MAX_ALLOWED 64

struct guard {
	struct nvsim_gpu *gpu;
	struct cgroup *owner;
};

/* All of this is under nvsim_state. */
static struct guard guards[MAX_GUARDS];
static unsigned int guard_count;
static u64 allowed[MAX_ALLOWED];
static unsigned int allowed_count;
static u64 checks;
static u64 violations;
static char last_violation[256];

struct foreign {
	u32 handles;
	u64 bytes;
	const struct nvsim_owner *who;
};

/* Somebody else than `owner` and what is below it, and not allowed to be there. */
static bool is_foreign(const struct nvsim_owner *who, struct cgroup *owner)
{
	unsigned int i;

	if (cgroup_is_descendant(who->cgroup, owner))
		return false;
	for (i = 0; i < allowed_count; i++)
		if (allowed[i] == cgroup_id(who->cgroup))
			return false;
	return true;
}

static struct foreign foreign_count(struct nvsim_gpu *gpu, struct cgroup *owner)
{
	struct foreign found = {};
	struct nvsim_charge *charge;
	struct nvsim_file *nvfile;

	lockdep_assert_held(&nvsim_state);
	list_for_each_entry(nvfile, &nvsim_files, list) {
		if (nvfile->devices[gpu->index] && is_foreign(&nvfile->owner, owner)) {
			found.handles++;
			found.who = &nvfile->owner;
		}
	}
	list_for_each_entry(charge, &gpu->charges, list) {
		if (charge->bytes && is_foreign(&charge->owner, owner)) {
			found.bytes += charge->bytes;
			found.who = &charge->owner;
		}
	}
	return found;
}

static void guard_judge(const struct guard *guard, struct nvsim_audit *record)
{
	struct foreign found = foreign_count(guard->gpu, guard->owner);

	lockdep_assert_held(&nvsim_state);
	checks++;
	record->foreign_handles += found.handles;
	record->foreign_bytes += found.bytes;
	if (!found.handles && !found.bytes)
		return;
	violations++;
	snprintf(last_violation, sizeof(last_violation),
		 "gpu %d at %llu ns: pid %d (%s) ran cmd 0x%x class 0x%x with %u foreign handles and %llu foreign bytes, of pid %d (%s) in cgroup %llu",
		 guard->gpu->index, record->at_ns, record->tgid, current->comm, record->cmd,
		 record->class, found.handles, found.bytes, pid_nr(found.who->pid), found.who->comm,
		 cgroup_id(found.who->cgroup));
}

/*
 * Start the record of a compute-class operation and judge it by each guard that
 * concerns it: those of the caller's cgroup, on `gpu` if the operation names
 * one. An operation that no guard concerns is only described.
 */
void nvsim_guard_check(struct nvsim_gpu *gpu, u32 cmd, u32 class, struct nvsim_audit *record)
{
	struct nvsim_owner caller;
	struct foreign found;
	bool judged = false;
	unsigned int i;

	nvsim_owner_get(&caller);
	*record = (struct nvsim_audit){
		.at_ns = ktime_get_ns(),
		.cgroup = cgroup_id(caller.cgroup),
		.cmd = cmd,
		.class = class,
		.gpu = gpu ? gpu->index : -1,
		.tgid = task_tgid_nr(current),
		.tid = task_pid_nr(current),
	};
	mutex_lock(&nvsim_state);
	for (i = 0; i < guard_count; i++) {
		if ((gpu && guards[i].gpu != gpu) ||
		    !cgroup_is_descendant(caller.cgroup, guards[i].owner))
			continue;
		guard_judge(&guards[i], record);
		judged = true;
	}
	if (gpu && !judged) {
		found = foreign_count(gpu, caller.cgroup);
		record->foreign_handles = found.handles;
		record->foreign_bytes = found.bytes;
	}
	mutex_unlock(&nvsim_state);
	nvsim_owner_put(&caller);
}

static int guard_add(unsigned int index, u64 id)
{
	struct nvsim_gpu *gpu = nvsim_gpu_get(index);
	struct cgroup *owner;
	int err = 0;

	if (!gpu)
		return -ENODEV;
	owner = cgroup_get_from_id(id);
	if (IS_ERR_OR_NULL(owner))
		return -ENOENT;
	mutex_lock(&nvsim_state);
	if (guard_count < MAX_GUARDS)
		guards[guard_count++] = (struct guard){ gpu, owner };
	else
		err = -ENOSPC;
	mutex_unlock(&nvsim_state);
	if (err)
		css_put(&owner->self);
	return err;
}

static int guard_allow(u64 id)
{
	int err = 0;

	mutex_lock(&nvsim_state);
	if (allowed_count < MAX_ALLOWED)
		allowed[allowed_count++] = id;
	else
		err = -ENOSPC;
	mutex_unlock(&nvsim_state);
	return err;
}

static void guard_clear(void)
{
	mutex_lock(&nvsim_state);
	while (guard_count)
		css_put(&guards[--guard_count].owner->self);
	allowed_count = 0;
	checks = 0;
	violations = 0;
	last_violation[0] = 0;
	mutex_unlock(&nvsim_state);
}

/* "add GPU CGROUP", "allow CGROUP" or "clear" */
int nvsim_guard_command(char *text)
{
	unsigned int index;
	char end;
	u64 id;

	if (sscanf(text, "add %u %llu%c", &index, &id, &end) == 2)
		return guard_add(index, id);
	if (sscanf(text, "allow %llu%c", &id, &end) == 1)
		return guard_allow(id);
	if (strcmp(text, "clear"))
		return -EINVAL;
	guard_clear();
	return 0;
}

void nvsim_guard_show(struct seq_file *out)
{
	mutex_lock(&nvsim_state);
	seq_printf(out, "checks %llu\nviolations %llu\nlast %s\n", checks, violations,
		   last_violation[0] ? last_violation : "-");
	mutex_unlock(&nvsim_state);
}

void nvsim_guard_exit(void)
{
	guard_clear();
}
