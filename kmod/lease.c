// SPDX-License-Identifier: GPL-2.0-only
#include <linux/cgroup.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/netlink.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "agent.h"
#include "event.h"
#include "hold.h"
#include "lease.h"
#include "main.h"
#include "stat.h"

/*
 * How long to look away from a lease that is still populated: a sixteenth of
 * what it has taken so far, so that looking adds 3 % to the wait on average.
 */
#define KHOOK_EVICT_SHARE 16
#define KHOOK_EVICT_MIN_US 250U
#define KHOOK_EVICT_MAX_US 10000U

/* Passes that found nobody to signal are repeated less and less often. */
#define KHOOK_EVICT_QUIET_MIN (1 * NSEC_PER_MSEC)
#define KHOOK_EVICT_QUIET_MAX (50 * NSEC_PER_MSEC)

/* ---- the list ---- */

static int khook_lease_find(struct khook_watch *w, u64 id)
{
	u32 i;

	lockdep_assert_held(&w->lease_lock);
	for (i = 0; i < w->nr_leases; i++)
		if (cgroup_id(w->leases[i]) == id)
			return i;
	return -ENOENT;
}

static int khook_lease_check(struct khook_watch *w, struct cgroup *cgrp,
			     struct netlink_ext_ack *extack)
{
	struct task_struct *owner;
	bool has_owner;

	if (khook_cgroup_has_current(cgrp)) {
		NL_SET_ERR_MSG_MOD(extack, "the sender is in this cgroup and would be killed");
		return -EINVAL;
	}
	if (w->key.kind == KHOOK_KEY_CGROUP && khook_cgroups_overlap(w->key.cgroup, cgrp)) {
		NL_SET_ERR_MSG_MOD(extack, "the cgroup is the watch's own, or above or below it");
		return -EINVAL;
	}
	if (w->key.kind != KHOOK_KEY_PROCESS)
		return 0;
	rcu_read_lock();
	owner = pid_task(w->key.pid, PIDTYPE_TGID);
	has_owner = owner && cgroup_is_descendant(task_dfl_cgroup(owner), cgrp);
	rcu_read_unlock();
	if (has_owner) {
		NL_SET_ERR_MSG_MOD(extack, "the watched process is in this cgroup");
		return -EINVAL;
	}
	return 0;
}

static int khook_lease_put_in(struct khook_watch *w, struct cgroup *cgrp,
			      struct netlink_ext_ack *extack)
{
	lockdep_assert_held(&w->lease_lock);
	if (khook_lease_find(w, cgroup_id(cgrp)) >= 0) {
		NL_SET_ERR_MSG_MOD(extack, "the watch has this lease already");
		return -EEXIST;
	}
	if (w->nr_leases == KHOOK_MAX_LEASES) {
		NL_SET_ERR_MSG_MOD(extack, "the watch has as many leases as it can");
		return -ENOSPC;
	}
	w->leases[w->nr_leases++] = cgrp;
	return 0;
}

int khook_lease_add(struct khook_watch *w, u64 cgroup, struct netlink_ext_ack *extack)
{
	struct cgroup *cgrp;
	int err = khook_cgroup_get(cgroup, &cgrp, extack);

	if (err)
		return err;
	err = khook_lease_check(w, cgrp, extack);
	if (!err) {
		mutex_lock(&w->lease_lock);
		err = khook_lease_put_in(w, cgrp, extack);
		mutex_unlock(&w->lease_lock);
	}
	if (err) {
		cgroup_put(cgrp);
		return err;
	}

	/* Named while the owner waits: the lease is not empty any more. */
	spin_lock(&w->lock);
	if (w->state == KHOOK_WATCH_HOLDING)
		w->ret.empty_ns = 0;
	spin_unlock(&w->lock);
	khook_evict_queue(w);
	return 0;
}

int khook_lease_del(struct khook_watch *w, u64 cgroup, struct netlink_ext_ack *extack)
{
	struct cgroup *cgrp;
	int i;

	mutex_lock(&w->lease_lock);
	i = khook_lease_find(w, cgroup);
	if (i < 0) {
		mutex_unlock(&w->lease_lock);
		NL_SET_ERR_MSG_MOD(extack, "the watch has no such lease");
		return -ENOENT;
	}
	cgrp = w->leases[i];
	w->leases[i] = w->leases[--w->nr_leases];
	mutex_unlock(&w->lease_lock);
	cgroup_put(cgrp);
	return 0;
}

void khook_lease_drop_all(struct khook_watch *w)
{
	while (w->nr_leases)
		cgroup_put(w->leases[--w->nr_leases]);
}

enum khook_lease_state {
	KHOOK_LEASE_NONE,
	KHOOK_LEASE_EMPTY,
	KHOOK_LEASE_POPULATED,
};

static enum khook_lease_state khook_lease_state(struct khook_watch *w)
{
	enum khook_lease_state state = KHOOK_LEASE_NONE;
	u32 i;

	mutex_lock(&w->lease_lock);
	for (i = 0; i < w->nr_leases && state != KHOOK_LEASE_POPULATED; i++)
		state = cgroup_is_populated(w->leases[i]) ? KHOOK_LEASE_POPULATED :
							    KHOOK_LEASE_EMPTY;
	mutex_unlock(&w->lease_lock);
	return state;
}

/* ---- one pass ---- */

static bool khook_lease_has_task(struct khook_watch *w, struct task_struct *p)
{
	struct cgroup *cgrp = task_dfl_cgroup(p);
	u32 i;

	for (i = 0; i < w->nr_leases; i++)
		if (cgroup_is_descendant(cgrp, w->leases[i]))
			return true;
	return false;
}

/* A process that dumps core is dying too, but only a SIGKILL makes it hurry. */
static bool khook_is_dying(const struct signal_struct *signal)
{
	return signal->flags & SIGNAL_GROUP_EXIT && !signal->core_state;
}

/*
 * The leader stands for the process, also when it has exited before its threads:
 * so it is the group that is asked whether anybody lives.
 */
static bool khook_is_victim(struct khook_watch *w, struct task_struct *leader)
{
	if (leader->flags & PF_KTHREAD || is_global_init(leader))
		return false;
	if (!atomic_read(&leader->signal->live) || khook_is_dying(leader->signal))
		return false;
	return khook_lease_has_task(w, leader) && !khook_key_has_task(&w->key, leader) &&
	       !khook_agent_is_task(leader);
}

/* Kernel-sent (priv), so the init of a container's pid namespace dies of it too. */
static unsigned int khook_lease_signal(struct khook_watch *w, u64 *first_ns)
{
	struct task_struct *leader;
	unsigned int sent = 0;

	lockdep_assert_held(&w->lease_lock);
	rcu_read_lock();
	for_each_process(leader) {
		if (!khook_is_victim(w, leader))
			continue;
		if (!sent)
			*first_ns = ktime_get_ns();
		if (!kill_pid(task_tgid(leader), SIGKILL, 1))
			sent++;
	}
	rcu_read_unlock();
	return sent;
}

static void khook_lease_note_pass(struct khook_watch *w, u64 first_ns, unsigned int sent)
{
	spin_lock(&w->lock);
	if (w->state == KHOOK_WATCH_HOLDING) {
		if (sent && !w->ret.kill_ns)
			w->ret.kill_ns = first_ns;
		if (!w->ret.killed_ns)
			w->ret.killed_ns = ktime_get_ns();
		w->ret.passes++;
	}
	spin_unlock(&w->lock);
}

static unsigned int khook_lease_pass(struct khook_watch *w)
{
	unsigned int sent = 0;
	u64 first_ns = 0;

	mutex_lock(&w->lease_lock);
	if (w->nr_leases) {
		sent = khook_lease_signal(w, &first_ns);
		khook_lease_note_pass(w, first_ns, sent);
	}
	mutex_unlock(&w->lease_lock);
	khook_stat_add(KHOOK_STAT_KILLED, sent);
	return sent;
}

/* ---- eviction ---- */

/* What a watch's eviction is for, if anything. */
struct khook_evict_aim {
	bool holding;
	bool kill;
	u64 return_id;
	enum khook_outcome then; /* how the empty lease ends the return, or UNSPEC */
};

static struct khook_evict_aim khook_evict_aim(struct khook_watch *w)
{
	struct khook_evict_aim aim = {};
	bool hinted;

	spin_lock(&w->lock);
	hinted = ktime_get_ns() < w->hint_until_ns;
	aim.holding = w->state == KHOOK_WATCH_HOLDING;
	aim.return_id = w->ret.id;
	aim.kill = hinted;
	if (aim.holding) {
		aim.kill |= w->ret.orphaned || w->policy.on_hold == KHOOK_ON_HOLD_KILL;
		if (w->ret.orphaned)
			aim.then = KHOOK_OUTCOME_ORPHAN;
		else if (w->policy.release_on == KHOOK_RELEASE_ON_EMPTY)
			aim.then = KHOOK_OUTCOME_EMPTY;
	}
	spin_unlock(&w->lock);
	return aim;
}

/* The first pass of a return, in the owner's own context: nothing is sooner. */
void khook_lease_kill(struct khook_watch *w)
{
	if (khook_evict_aim(w).kill)
		khook_lease_pass(w);
}

static void khook_evict_tell_empty(struct khook_watch *w, u64 return_id)
{
	struct khook_return ret;
	bool news;

	mutex_lock(&w->say);
	spin_lock(&w->lock);
	news = w->state == KHOOK_WATCH_HOLDING && w->ret.id == return_id && !w->ret.empty_ns;
	if (news)
		w->ret.empty_ns = ktime_get_ns();
	ret = w->ret;
	spin_unlock(&w->lock);
	if (news)
		khook_event_empty(w, &ret);
	mutex_unlock(&w->say);
}

/* The lease is empty: of the aims, the one that is still there is reached. */
static void khook_evict_empty(struct khook_watch *w, const struct khook_evict_aim *aim,
			      enum khook_lease_state state)
{
	spin_lock(&w->lock);
	w->hint_until_ns = 0;
	if (aim->then != KHOOK_OUTCOME_UNSPEC && state == KHOOK_LEASE_EMPTY &&
	    w->state == KHOOK_WATCH_HOLDING && w->ret.id == aim->return_id && !w->ret.empty_ns)
		w->ret.empty_ns = ktime_get_ns();
	spin_unlock(&w->lock);

	if (!aim->holding)
		return;
	/* The event of the return's end says that it was empty, too. */
	if (aim->then != KHOOK_OUTCOME_UNSPEC)
		khook_watch_end(w, aim->return_id, aim->then);
	else if (state == KHOOK_LEASE_EMPTY)
		khook_evict_tell_empty(w, aim->return_id);
}

/* True while there is something to wait for. */
static bool khook_evict_look(struct khook_watch *w, const struct khook_evict_aim *aim)
{
	enum khook_lease_state state;

	if (!aim->holding && !aim->kill)
		return false;
	state = khook_lease_state(w);
	if (state == KHOOK_LEASE_POPULATED)
		return true;
	khook_evict_empty(w, aim, state);
	return false;
}

static void khook_evict_pause(u64 began)
{
	u64 took_us = div_u64(ktime_get_ns() - began, NSEC_PER_USEC);
	unsigned long us = clamp_t(u64, took_us / KHOOK_EVICT_SHARE, KHOOK_EVICT_MIN_US,
				   KHOOK_EVICT_MAX_US);

	usleep_range_state(us, us + us / 4, TASK_IDLE);
}

/*
 * Ends when the lease is empty or nothing asks for it any more: a return is over
 * by its deadline, a hint is as long. A fork that a pass overtook is caught by
 * the next: the child of a killed parent is either in the task list by then, or
 * was never made (copy_process() looks for the signal before it adds one).
 */
void khook_evict_work(struct work_struct *work)
{
	struct khook_watch *w = container_of(work, struct khook_watch, evict);
	u64 began = ktime_get_ns(), quiet = KHOOK_EVICT_QUIET_MIN, pass_at = began;
	struct khook_evict_aim aim = khook_evict_aim(w);

	while (khook_evict_look(w, &aim)) {
		if (aim.kill && ktime_get_ns() >= pass_at) {
			if (khook_lease_pass(w))
				quiet = KHOOK_EVICT_QUIET_MIN;
			else
				quiet = min_t(u64, 2 * quiet, KHOOK_EVICT_QUIET_MAX);
			pass_at = ktime_get_ns() + quiet;
		}
		khook_evict_pause(began);
		aim = khook_evict_aim(w);
	}
	khook_watch_put(w);
}

void khook_evict_queue(struct khook_watch *w)
{
	kref_get(&w->ref);
	if (!queue_work(khook_slow_wq, &w->evict))
		khook_watch_put(w);
}

/* A lease that is empty at once needs no worker to be woken. */
void khook_evict_start(struct khook_watch *w)
{
	struct khook_evict_aim aim = khook_evict_aim(w);

	if (khook_evict_look(w, &aim))
		khook_evict_queue(w);
}

/* EVICT: kill now, without a hold, for as long as a return could last. */
void khook_evict_hint(struct khook_watch *w)
{
	spin_lock(&w->lock);
	w->hint_until_ns = ktime_get_ns() + w->policy.deadline_ms * (u64)NSEC_PER_MSEC;
	spin_unlock(&w->lock);
	khook_evict_queue(w);
}

void khook_evict_stop(struct khook_watch *w)
{
	spin_lock(&w->lock);
	w->hint_until_ns = 0;
	spin_unlock(&w->lock);
}
