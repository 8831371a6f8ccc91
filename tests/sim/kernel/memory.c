// SPDX-License-Identifier: GPL-2.0-only
/*
 * Device memory: what is taken, by whom, and when it comes back.
 *
 * A released charge may stay for a while (async_free_ms) or until told (the
 * leak fault): then its process is gone and its memory is not yet back.
 */
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

unsigned int nvsim_ctx_mib = 300;
module_param_named(ctx_mib, nvsim_ctx_mib, uint, 0644);
MODULE_PARM_DESC(ctx_mib, "memory of a context in MiB, taken by its vaspace");

static unsigned int async_free_ms;
module_param(async_free_ms, uint, 0644);
MODULE_PARM_DESC(async_free_ms,
		 "delay after a finished teardown until the memory figure drops, in ms");

static void reap(struct work_struct *work);
static DECLARE_DELAYED_WORK(reaper, reap);

/* Take memory; NULL if the GPU has not enough left (or the kernel has none). */
struct nvsim_charge *nvsim_charge_take(struct nvsim_gpu *gpu, const struct nvsim_owner *owner,
				       u64 bytes, bool context)
{
	u64 reserved = (u64)nvsim_reserved_mib * SZ_1M;
	struct nvsim_charge *charge = kzalloc(sizeof(*charge), GFP_KERNEL);
	bool fits;

	if (!charge)
		return NULL;
	charge->gpu = gpu;
	charge->bytes = bytes;
	charge->context = context;

	mutex_lock(&nvsim_state);
	fits = bytes <= gpu->memory_bytes - reserved - gpu->used_bytes;
	if (fits) {
		nvsim_owner_copy(&charge->owner, owner);
		gpu->used_bytes += bytes;
		gpu->contexts += context;
		list_add_tail(&charge->list, &gpu->charges);
	}
	mutex_unlock(&nvsim_state);
	if (!fits) {
		kfree(charge);
		return NULL;
	}
	return charge;
}

static void charge_drop(struct nvsim_charge *charge)
{
	lockdep_assert_held(&nvsim_state);
	charge->gpu->used_bytes -= charge->bytes;
	list_del(&charge->list);
	nvsim_owner_put(&charge->owner);
	kfree(charge);
}

/* Keep what the leak fault wants kept; true if the charge stays for it. */
static bool charge_leak(struct nvsim_charge *charge)
{
	struct nvsim_gpu *gpu = charge->gpu;
	u64 kept;

	lockdep_assert_held(&nvsim_state);
	if (gpu->leaked_bytes >= gpu->leak_limit_bytes || !charge->bytes)
		return false;
	kept = min(charge->bytes, gpu->leak_limit_bytes - gpu->leaked_bytes);
	gpu->used_bytes -= charge->bytes - kept;
	gpu->leaked_bytes += kept;
	charge->bytes = kept;
	charge->state = NVSIM_CHARGE_LEAKED;
	return true;
}

void nvsim_charge_release(struct nvsim_charge *charge)
{
	unsigned int delay_ms = READ_ONCE(async_free_ms);

	mutex_lock(&nvsim_state);
	charge->gpu->contexts -= charge->context;
	charge->context = false;
	if (charge_leak(charge))
		goto out;
	if (!delay_ms) {
		charge_drop(charge);
		goto out;
	}
	charge->state = NVSIM_CHARGE_LATE;
	charge->due = jiffies + msecs_to_jiffies(delay_ms);
	mod_delayed_work(nvsim_wq, &reaper, 0);
out:
	mutex_unlock(&nvsim_state);
}

/* Drop the late charges whose time has come; jiffies until the next, or 0. */
static unsigned long reap_gpu(struct nvsim_gpu *gpu, unsigned long next)
{
	struct nvsim_charge *charge, *tmp;
	long left;

	lockdep_assert_held(&nvsim_state);
	list_for_each_entry_safe(charge, tmp, &gpu->charges, list) {
		if (charge->state != NVSIM_CHARGE_LATE)
			continue;
		left = charge->due - jiffies;
		if (left <= 0)
			charge_drop(charge);
		else if (!next || left < next)
			next = left;
	}
	return next;
}

static void reap(struct work_struct *work)
{
	unsigned long next = 0;
	int i;

	mutex_lock(&nvsim_state);
	for (i = 0; i < nvsim_gpu_count; i++)
		next = reap_gpu(&nvsim_gpus[i], next);
	if (next)
		mod_delayed_work(nvsim_wq, &reaper, next);
	mutex_unlock(&nvsim_state);
}

/* Up to `bytes` of what is released from now on stay; 0 gives back what stayed. */
void nvsim_leak_set(struct nvsim_gpu *gpu, u64 bytes)
{
	struct nvsim_charge *charge, *tmp;

	mutex_lock(&nvsim_state);
	gpu->leak_limit_bytes = bytes;
	if (!bytes) {
		gpu->leaked_bytes = 0;
		list_for_each_entry_safe(charge, tmp, &gpu->charges, list)
			if (charge->state == NVSIM_CHARGE_LEAKED)
				charge_drop(charge);
	}
	mutex_unlock(&nvsim_state);
}

static struct nvsim_process *process_slot(struct nvsim_gpu_processes *out, u32 pid)
{
	u32 i;

	for (i = 0; i < out->count; i++)
		if (out->list[i].pid == pid)
			return &out->list[i];
	if (out->count == NVSIM_MAX_PROCESSES)
		return NULL;
	out->list[out->count].pid = pid;
	return &out->list[out->count++];
}

/* The processes that hold memory, as numbered in `ns`; those it cannot see are left out. */
void nvsim_processes(struct nvsim_gpu *gpu, struct nvsim_gpu_processes *out,
		     struct pid_namespace *ns)
{
	struct nvsim_process *process;
	struct nvsim_charge *charge;
	pid_t pid;

	out->count = 0;
	mutex_lock(&nvsim_state);
	list_for_each_entry(charge, &gpu->charges, list) {
		pid = pid_nr_ns(charge->owner.pid, ns);
		if (charge->state != NVSIM_CHARGE_LIVE || !pid)
			continue;
		process = process_slot(out, pid);
		if (!process)
			break;
		process->bytes += charge->bytes;
		process->compute |= charge->context;
	}
	mutex_unlock(&nvsim_state);
}

/* No file is open any more, so that only late and leaked charges are left. */
void nvsim_memory_exit(void)
{
	struct nvsim_charge *charge, *tmp;
	int i;

	cancel_delayed_work_sync(&reaper);
	mutex_lock(&nvsim_state);
	for (i = 0; i < nvsim_gpu_count; i++)
		list_for_each_entry_safe(charge, tmp, &nvsim_gpus[i].charges, list)
			charge_drop(charge);
	mutex_unlock(&nvsim_state);
}
