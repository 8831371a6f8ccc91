// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bitops.h>
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/netlink.h>
#include <linux/slab.h>

#include "event.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "key.h"
#include "stat.h"
#include "tracepoints.h"
#include "watch.h"

/* Writers hold khook_fence_mutex; callers look a fence up under RCU. */
static DEFINE_HASHTABLE(khook_fence_hash, 8);
DEFINE_MUTEX(khook_fence_mutex);
LIST_HEAD(khook_fence_list);
u32 khook_fence_count;
static u64 khook_fence_last_seq;

static struct khook_fence *khook_fence_lookup(const struct cgroup *cgrp)
{
	struct khook_fence *f;

	hash_for_each_possible_rcu(khook_fence_hash, f, by_cgroup, (unsigned long)cgrp,
				   lockdep_is_held(&khook_fence_mutex))
		if (f->cgroup == cgrp)
			return f;
	return NULL;
}

static int khook_fence_check(struct cgroup *cgrp, struct netlink_ext_ack *extack)
{
	lockdep_assert_held(&khook_watch_mutex);
	lockdep_assert_held(&khook_fence_mutex);
	if (khook_cgroup_has_current(cgrp)) {
		NL_SET_ERR_MSG_MOD(extack, "the sender is in this cgroup and would be shut out");
		return -EINVAL;
	}
	if (khook_watch_overlaps(cgrp)) {
		NL_SET_ERR_MSG_MOD(extack, "the cgroup is a watched owner's, or above or below it");
		return -EINVAL;
	}
	if (khook_fence_lookup(cgrp)) {
		NL_SET_ERR_MSG_MOD(extack, "the cgroup is fenced already");
		return -EEXIST;
	}
	if (khook_fence_count >= KHOOK_MAX_FENCES) {
		NL_SET_ERR_MSG_MOD(extack, "there are as many fences as there can be");
		return -ENOSPC;
	}
	return 0;
}

static void khook_fence_link(struct khook_fence *f)
{
	lockdep_assert_held(&khook_fence_mutex);
	f->id = cgroup_id(f->cgroup);
	f->seq = ++khook_fence_last_seq;
	list_add_tail(&f->by_seq, &khook_fence_list);
	hash_add_rcu(khook_fence_hash, &f->by_cgroup, (unsigned long)f->cgroup);
	khook_set_add(khook_set_cgroup_kind(f->cgroup), f->cgroup);
	khook_fence_count++;
}

static void khook_fence_unlink(struct khook_fence *f)
{
	lockdep_assert_held(&khook_fence_mutex);
	khook_set_del(khook_set_cgroup_kind(f->cgroup), f->cgroup);
	hash_del_rcu(&f->by_cgroup);
	list_del(&f->by_seq);
	khook_fence_count--;
	cgroup_put(f->cgroup);
	kfree_rcu(f, rcu);
}

/* Owner first: a watch and a fence never meet in one cgroup. */
int khook_fence_add(u64 cgroup, struct netlink_ext_ack *extack)
{
	struct khook_fence *f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);
	int err;

	if (!f)
		return -ENOMEM;
	err = khook_cgroup_get(cgroup, &f->cgroup, extack);
	if (err) {
		kfree(f);
		return err;
	}
	mutex_lock(&khook_watch_mutex);
	mutex_lock(&khook_fence_mutex);
	err = khook_fence_check(f->cgroup, extack);
	if (!err)
		khook_fence_link(f);
	mutex_unlock(&khook_fence_mutex);
	mutex_unlock(&khook_watch_mutex);
	if (err) {
		cgroup_put(f->cgroup);
		kfree(f);
	}
	return err;
}

/* By id, not by look-up of the cgroup: it may have been removed since. */
int khook_fence_del(u64 cgroup)
{
	struct khook_fence *f;
	int err = -ENOENT;

	mutex_lock(&khook_fence_mutex);
	khook_for_each_fence(f) {
		if (f->id == cgroup) {
			khook_fence_unlink(f);
			err = 0;
			break;
		}
	}
	mutex_unlock(&khook_fence_mutex);
	khook_gates_settle();
	return err;
}

void khook_fence_drop_all(void)
{
	struct khook_fence *f, *next;

	mutex_lock(&khook_fence_mutex);
	list_for_each_entry_safe(f, next, &khook_fence_list, by_seq)
		khook_fence_unlink(f);
	mutex_unlock(&khook_fence_mutex);
}

bool khook_fence_overlaps(struct cgroup *cgrp)
{
	struct khook_fence *f;
	bool overlaps = false;

	mutex_lock(&khook_fence_mutex);
	khook_for_each_fence(f)
		overlaps |= khook_cgroups_overlap(f->cgroup, cgrp);
	mutex_unlock(&khook_fence_mutex);
	return overlaps;
}

/* The id of the fence that current is behind, or 0. */
static u64 khook_fence_hit(bool *first)
{
	struct khook_fence *f = NULL;
	struct cgroup *cgrp;
	u64 id = 0;
	int level;

	rcu_read_lock();
	cgrp = task_dfl_cgroup(current);
	for (level = 1; level <= cgrp->level && !f; level++)
		f = khook_fence_lookup(cgrp->ancestors[level]);
	if (f) {
		id = f->id;
		atomic64_inc(&f->calls);
		*first = !test_and_set_bit(0, &f->told);
	}
	rcu_read_unlock();
	return id;
}

bool khook_fence_refuses(void)
{
	struct khook_caller caller;
	bool first = false;
	u64 id;

	if (!READ_ONCE(khook_fence_count))
		return false;
	id = khook_fence_hit(&first);
	if (!id)
		return false;
	khook_stat_inc(KHOOK_STAT_FENCED);
	khook_caller_init(&caller);
	trace_fence(id, &caller);
	if (first)
		khook_event_fenced(id, &caller);
	return true;
}
