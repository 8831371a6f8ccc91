// SPDX-License-Identifier: GPL-2.0-only
#include <linux/pid_namespace.h>
#include <linux/spinlock.h>

#include "set.h"

struct khook_set khook_set ____cacheline_aligned;

/* The task that is calling a gate to see whether its hook works. */
struct task_struct *khook_selftest_task;

/* Counts, so that two pointers may share a bit and one may leave. */
static DEFINE_SPINLOCK(khook_set_lock);
static u16 khook_set_refs[KHOOK_SET_SIZE];
static u16 khook_set_kind_refs[64];
static unsigned int khook_set_total;

void khook_set_add(enum khook_set_kind kind, const void *ptr)
{
	u32 hash = hash_ptr(ptr, KHOOK_SET_ORDER);

	spin_lock(&khook_set_lock);
	if (!khook_set_refs[hash]++)
		set_bit(hash, khook_set.bloom);
	if (!khook_set_kind_refs[kind]++)
		WRITE_ONCE(khook_set.kinds, khook_set.kinds | BIT_ULL(kind));
	WRITE_ONCE(khook_set_total, khook_set_total + 1);
	spin_unlock(&khook_set_lock);
}

void khook_set_del(enum khook_set_kind kind, const void *ptr)
{
	u32 hash = hash_ptr(ptr, KHOOK_SET_ORDER);

	spin_lock(&khook_set_lock);
	if (!--khook_set_refs[hash])
		clear_bit(hash, khook_set.bloom);
	if (!--khook_set_kind_refs[kind])
		WRITE_ONCE(khook_set.kinds, khook_set.kinds & ~BIT_ULL(kind));
	WRITE_ONCE(khook_set_total, khook_set_total - 1);
	spin_unlock(&khook_set_lock);
}

bool khook_set_is_empty(void)
{
	return !READ_ONCE(khook_set_total);
}

static bool khook_set_has_deep(void)
{
	struct cgroup *cgrp = task_dfl_cgroup(current);
	int level;

	for (level = KHOOK_SET_DEEP; level <= cgrp->level; level++)
		if (khook_set_may_have(cgrp->ancestors[level]))
			return true;
	return false;
}

static bool khook_set_has_pidns(void)
{
	struct pid_namespace *ns;

	for (ns = task_active_pid_ns(current); ns && ns->level; ns = ns->parent)
		if (khook_set_may_have(ns))
			return true;
	return false;
}

/* The kinds that are rare: out of line, to keep the common answer short. */
bool khook_set_has_current_slow(u64 kinds)
{
	if (kinds & BIT_ULL(KHOOK_SET_SELFTEST) &&
	    READ_ONCE(khook_selftest_task) == current)
		return true;
	if (kinds & BIT_ULL(KHOOK_SET_DEEP) && khook_set_has_deep())
		return true;
	if (kinds & BIT_ULL(KHOOK_SET_PIDNS) && khook_set_has_pidns())
		return true;
	return kinds & BIT_ULL(KHOOK_SET_PROCESS) &&
	       khook_set_may_have(task_tgid(current));
}
