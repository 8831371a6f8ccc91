// SPDX-License-Identifier: GPL-2.0-only
#include <linux/cgroup.h>
#include <linux/math64.h>
#include <linux/netlink.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/signal.h>
#include <linux/time_namespace.h>

#include "key.h"

/* The cgroup of an id, never the root: what is said of it would hold for all. */
int khook_cgroup_get(u64 id, struct cgroup **cgrp, struct netlink_ext_ack *extack)
{
	struct cgroup *found = cgroup_get_from_id(id);

	if (IS_ERR(found)) {
		NL_SET_ERR_MSG_MOD(extack,
				   "no such cgroup below the sender's cgroup namespace root");
		return -ENOENT;
	}
	if (!found->level) {
		cgroup_put(found);
		NL_SET_ERR_MSG_MOD(extack, "the root cgroup holds the whole node");
		return -EINVAL;
	}
	*cgrp = found;
	return 0;
}

bool khook_cgroups_overlap(struct cgroup *a, struct cgroup *b)
{
	return cgroup_is_descendant(a, b) || cgroup_is_descendant(b, a);
}

bool khook_cgroup_has_current(struct cgroup *cgrp)
{
	bool has;

	rcu_read_lock();
	has = cgroup_is_descendant(task_dfl_cgroup(current), cgrp);
	rcu_read_unlock();
	return has;
}

int khook_key_cgroup(struct khook_key *key, u64 id, struct netlink_ext_ack *extack)
{
	struct cgroup *cgrp;
	int err = khook_cgroup_get(id, &cgrp, extack);

	if (err)
		return err;
	if (khook_cgroup_has_current(cgrp)) {
		cgroup_put(cgrp);
		NL_SET_ERR_MSG_MOD(extack, "the sender is in this cgroup and would hold itself");
		return -EPERM;
	}
	*key = (struct khook_key){ .kind = KHOOK_KEY_CGROUP, .cgroup = cgrp };
	return 0;
}

static struct pid_namespace *khook_pid_find_ns(struct pid *pid, u32 inum)
{
	unsigned int level;

	for (level = 0; level <= pid->level; level++)
		if (pid->numbers[level].ns->ns.inum == inum)
			return get_pid_ns(pid->numbers[level].ns);
	return NULL;
}

/* A pid namespace can only be found through a process that lives in it. */
static struct pid_namespace *khook_pidns_get(u32 inum)
{
	struct pid_namespace *ns = NULL;
	struct task_struct *p;
	struct pid *pid;

	rcu_read_lock();
	for_each_process(p) {
		pid = get_task_pid(p, PIDTYPE_PID);
		if (!pid)
			continue;
		ns = khook_pid_find_ns(pid, inum);
		put_pid(pid);
		if (ns)
			break;
	}
	rcu_read_unlock();
	return ns;
}

int khook_key_pidns(struct khook_key *key, u32 inum, struct netlink_ext_ack *extack)
{
	struct pid_namespace *ns;

	if (inum == init_pid_ns.ns.inum) {
		NL_SET_ERR_MSG_MOD(extack, "the initial pid namespace holds the whole node");
		return -EINVAL;
	}
	ns = khook_pidns_get(inum);
	if (!ns) {
		NL_SET_ERR_MSG_MOD(extack, "no process lives in such a pid namespace");
		return -ENOENT;
	}
	*key = (struct khook_key){ .kind = KHOOK_KEY_PIDNS, .pidns = ns };
	if (khook_key_has_task(key, current)) {
		khook_key_put(key);
		NL_SET_ERR_MSG_MOD(extack,
				   "the sender is in this pid namespace and would hold itself");
		return -EPERM;
	}
	return 0;
}

/* Field 22 of /proc/PID/stat as the sender reads it. */
static u64 khook_start_ticks(struct task_struct *leader)
{
	return div_u64(timens_add_boottime_ns(leader->start_boottime), NSEC_PER_SEC / USER_HZ);
}

int khook_key_process(struct khook_key *key, u32 nr, u64 start_ticks,
		      struct netlink_ext_ack *extack)
{
	struct task_struct *leader;
	u64 ticks = 0;
	struct pid *pid;

	rcu_read_lock();
	pid = get_pid(find_pid_ns(nr, &init_pid_ns));
	leader = pid_task(pid, PIDTYPE_TGID);
	if (leader)
		ticks = khook_start_ticks(leader);
	rcu_read_unlock();

	if (!leader) {
		put_pid(pid);
		NL_SET_ERR_MSG_MOD(extack, "no process has this pid in the initial pid namespace");
		return -ESRCH;
	}
	if (ticks != start_ticks) {
		put_pid(pid);
		NL_SET_ERR_MSG_MOD(
			extack,
			"the process with this pid started at another time: the pid was reused");
		return -ESRCH;
	}
	if (pid == task_tgid(current)) {
		put_pid(pid);
		NL_SET_ERR_MSG_MOD(extack, "the sender would hold itself");
		return -EPERM;
	}
	*key = (struct khook_key){
		.kind = KHOOK_KEY_PROCESS,
		.pid = pid,
		.start_ticks = start_ticks,
	};
	return 0;
}

void khook_key_put(struct khook_key *key)
{
	switch (key->kind) {
	case KHOOK_KEY_CGROUP:
		cgroup_put(key->cgroup);
		break;
	case KHOOK_KEY_PIDNS:
		put_pid_ns(key->pidns);
		break;
	case KHOOK_KEY_PROCESS:
		put_pid(key->pid);
		break;
	}
}

static bool khook_pidns_has_task(const struct pid_namespace *ns, struct task_struct *p)
{
	struct pid_namespace *at = task_active_pid_ns(p);

	for (; at; at = at->parent)
		if (at == ns)
			return true;
	return false;
}

bool khook_key_has_task(const struct khook_key *key, struct task_struct *p)
{
	bool has = false;

	rcu_read_lock();
	switch (key->kind) {
	case KHOOK_KEY_CGROUP:
		has = cgroup_is_descendant(task_dfl_cgroup(p), key->cgroup);
		break;
	case KHOOK_KEY_PIDNS:
		has = khook_pidns_has_task(key->pidns, p);
		break;
	case KHOOK_KEY_PROCESS:
		has = task_tgid(p) == key->pid;
		break;
	}
	rcu_read_unlock();
	return has;
}

enum khook_set_kind khook_key_set_kind(const struct khook_key *key)
{
	switch (key->kind) {
	case KHOOK_KEY_PIDNS:
		return KHOOK_SET_PIDNS;
	case KHOOK_KEY_PROCESS:
		return KHOOK_SET_PROCESS;
	case KHOOK_KEY_CGROUP:
		break;
	}
	return khook_set_cgroup_kind(key->cgroup);
}
