// SPDX-License-Identifier: GPL-2.0-only
#include <linux/pid_namespace.h>
#include <linux/spinlock.h>

#include "set.h"

struct khook_set khook_set ____cacheline_aligned;

/* The task that is calling a gate to see whether its hook works. */
struct task_struct *khook_selftest_task;

/* Writers of the set. Everything is counted, for two pointers may share a place. */
static DEFINE_SPINLOCK(khook_set_lock);
static u16 khook_set_kind_refs[64];
static unsigned int khook_set_total;

void khook_set_add(enum khook_set_kind kind, const void *ptr)
{
	u32 hash = hash_ptr(ptr, KHOOK_SET_ORDER);

	spin_lock(&khook_set_lock);
	WRITE_ONCE(khook_set.refs[hash], khook_set.refs[hash] + 1);
	if (!khook_set_kind_refs[kind]++)
		WRITE_ONCE(khook_set.kinds, khook_set.kinds | BIT_ULL(kind));
	WRITE_ONCE(khook_set_total, khook_set_total + 1);
	spin_unlock(&khook_set_lock);
}

void khook_set_del(enum khook_set_kind kind, const void *ptr)
{
	u32 hash = hash_ptr(ptr, KHOOK_SET_ORDER);

	spin_lock(&khook_set_lock);
	WRITE_ONCE(khook_set.refs[hash], khook_set.refs[hash] - 1);
	if (!--khook_set_kind_refs[kind])
		WRITE_ONCE(khook_set.kinds, khook_set.kinds & ~BIT_ULL(kind));
	WRITE_ONCE(khook_set_total, khook_set_total - 1);
	spin_unlock(&khook_set_lock);
}

bool khook_set_is_empty(void)
{
	return !READ_ONCE(khook_set_total);
}

static bool khook_set_has_cgroup(void)
{
	struct cgroup *cgrp = task_dfl_cgroup(current);
	int level;

	for (level = 1; level <= cgrp->level; level++)
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

/* The whole answer, for those of whom the short one was yes. */
bool khook_set_has_current(void)
{
	u64 kinds = READ_ONCE(khook_set.kinds);
	bool has;

	rcu_read_lock();
	has = khook_set_has_cgroup();
	if (!has && kinds & BIT_ULL(KHOOK_SET_PIDNS))
		has = khook_set_has_pidns();
	if (!has && kinds & BIT_ULL(KHOOK_SET_PROCESS))
		has = khook_set_may_have(task_tgid(current));
	if (!has && kinds & BIT_ULL(KHOOK_SET_SELFTEST))
		has = READ_ONCE(khook_selftest_task) == current;
	rcu_read_unlock();
	return has;
}
