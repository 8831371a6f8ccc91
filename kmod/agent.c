// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ktime.h>
#include <linux/netlink.h>
#include <linux/notifier.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/spinlock.h>
#include <net/net_namespace.h>

#include "agent.h"
#include "hold.h"
#include "khook.h"
#include "main.h"

/*
 * The agent is absent when its socket was closed (which the kernel says at once,
 * also when it was killed) or when its heartbeat is late (a hung agent closes
 * nothing). Absent for orphan_ms, it is gone, and khook acts alone.
 */
static struct {
	spinlock_t lock;
	u32 portid;
	struct net *net; /* alive while portid is set: the socket holds it */
	struct pid *pid; /* the process that attached */
	struct khook_agent_policy policy;
	u64 beat_ns; /* the last command */
	u64 absent_ns; /* since when it is absent; 0: it is there */
} khook_agent = {
	.lock = __SPIN_LOCK_UNLOCKED(khook_agent.lock),
	.policy.orphan_ms = KHOOK_DEFAULT_ORPHAN_MS,
};

static void khook_heartbeat_work(struct work_struct *work);
static void khook_orphan_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(khook_heartbeat, khook_heartbeat_work);
static DECLARE_DELAYED_WORK(khook_orphan, khook_orphan_work);

static u64 khook_ms_to_ns(u32 ms)
{
	return ms * (u64)NSEC_PER_MSEC;
}

/* Rounded up, so that the work never finds that it came too soon twice. */
static unsigned long khook_ns_to_jiffies_up(u64 ns)
{
	return msecs_to_jiffies(DIV_ROUND_UP_ULL(ns, NSEC_PER_MSEC));
}

/* ---- absence ---- */

static void khook_agent_set_absent(void)
{
	lockdep_assert_held(&khook_agent.lock);
	if (khook_agent.absent_ns)
		return;
	khook_agent.absent_ns = ktime_get_ns();
	mod_delayed_work(khook_wq, &khook_orphan, msecs_to_jiffies(khook_agent.policy.orphan_ms));
}

static u64 khook_agent_gone_at(void)
{
	lockdep_assert_held(&khook_agent.lock);
	return khook_agent.absent_ns + khook_ms_to_ns(khook_agent.policy.orphan_ms);
}

bool khook_agent_is_gone(void)
{
	bool gone;

	spin_lock(&khook_agent.lock);
	gone = khook_agent.absent_ns && ktime_get_ns() >= khook_agent_gone_at();
	spin_unlock(&khook_agent.lock);
	return gone;
}

static void khook_orphan_all(void)
{
	struct khook_watch *w;
	u32 id = 0;

	while ((w = khook_watch_after(id))) {
		id = w->id;
		khook_watch_orphan(w);
		khook_watch_put(w);
	}
}

static void khook_orphan_work(struct work_struct *work)
{
	u64 now = ktime_get_ns(), gone_at;
	bool absent;

	spin_lock(&khook_agent.lock);
	absent = khook_agent.absent_ns;
	gone_at = khook_agent_gone_at();
	spin_unlock(&khook_agent.lock);

	if (absent && now < gone_at)
		mod_delayed_work(khook_wq, &khook_orphan, khook_ns_to_jiffies_up(gone_at - now));
	else if (absent)
		khook_orphan_all();
}

static void khook_heartbeat_work(struct work_struct *work)
{
	u64 late_at, now = ktime_get_ns();

	spin_lock(&khook_agent.lock);
	late_at = khook_agent.beat_ns + khook_ms_to_ns(khook_agent.policy.heartbeat_ms);
	if (khook_agent.portid && khook_agent.policy.heartbeat_ms) {
		if (now >= late_at && !khook_agent.absent_ns) {
			pr_warn_ratelimited("the agent's heartbeat is late\n");
			khook_agent_set_absent();
		}
		mod_delayed_work(khook_wq, &khook_heartbeat,
				 now < late_at ? khook_ns_to_jiffies_up(late_at - now) :
						 msecs_to_jiffies(khook_agent.policy.heartbeat_ms));
	}
	spin_unlock(&khook_agent.lock);
}

/* ---- presence ---- */

static bool khook_agent_matches(struct net *net, u32 portid)
{
	lockdep_assert_held(&khook_agent.lock);
	return khook_agent.portid && khook_agent.portid == portid && khook_agent.net == net;
}

static void khook_agent_set_present(void)
{
	lockdep_assert_held(&khook_agent.lock);
	khook_agent.beat_ns = ktime_get_ns();
	khook_agent.absent_ns = 0;
}

/* Every command is a heartbeat, and a late agent that sends one is back. */
void khook_agent_beat(struct net *net, u32 portid)
{
	spin_lock(&khook_agent.lock);
	if (khook_agent_matches(net, portid))
		khook_agent_set_present();
	spin_unlock(&khook_agent.lock);
}

bool khook_agent_is(struct net *net, u32 portid)
{
	bool is;

	spin_lock(&khook_agent.lock);
	is = khook_agent_matches(net, portid);
	spin_unlock(&khook_agent.lock);
	return is;
}

/* Whatever a lease says, the process that steers khook is not killed by it. */
bool khook_agent_is_task(struct task_struct *leader)
{
	return READ_ONCE(khook_agent.pid) == task_tgid(leader);
}

struct khook_agent_addr khook_agent_addr(void)
{
	struct khook_agent_addr addr;

	spin_lock(&khook_agent.lock);
	addr.portid = khook_agent.portid;
	addr.net = get_net(addr.portid ? khook_agent.net : &init_net);
	spin_unlock(&khook_agent.lock);
	return addr;
}

struct khook_agent_policy khook_agent_policy(void)
{
	struct khook_agent_policy policy;

	spin_lock(&khook_agent.lock);
	policy = khook_agent.policy;
	spin_unlock(&khook_agent.lock);
	return policy;
}

u64 khook_agent_heartbeat_age(void)
{
	u64 age;

	spin_lock(&khook_agent.lock);
	age = khook_agent.portid ? ktime_get_ns() - khook_agent.beat_ns : 0;
	spin_unlock(&khook_agent.lock);
	return age;
}

/* Returns that khook has not begun to finish alone, or -errno. */
static int khook_agent_count_adopted(void)
{
	struct khook_watch *w;
	int n = 0;

	mutex_lock(&khook_watch_mutex);
	khook_for_each_watch(w) {
		spin_lock(&w->lock);
		n += w->state == KHOOK_WATCH_HOLDING && !w->ret.orphaned;
		spin_unlock(&w->lock);
	}
	mutex_unlock(&khook_watch_mutex);
	return n;
}

/* A new agent takes the place of none, of itself, or of one that is late. */
int khook_agent_attach(struct net *net, u32 portid, const struct khook_agent_policy *policy,
		       struct netlink_ext_ack *extack)
{
	struct pid *old, *pid = get_pid(task_tgid(current));

	spin_lock(&khook_agent.lock);
	if (khook_agent.portid && !khook_agent.absent_ns && !khook_agent_matches(net, portid)) {
		spin_unlock(&khook_agent.lock);
		put_pid(pid);
		NL_SET_ERR_MSG_MOD(extack, "another agent is attached and alive");
		return -EBUSY;
	}
	old = khook_agent.pid;
	WRITE_ONCE(khook_agent.pid, pid);
	khook_agent.portid = portid;
	khook_agent.net = net;
	khook_agent.policy = *policy;
	khook_agent_set_present();
	if (policy->heartbeat_ms)
		mod_delayed_work(khook_wq, &khook_heartbeat,
				 msecs_to_jiffies(policy->heartbeat_ms));
	spin_unlock(&khook_agent.lock);
	put_pid(old);
	return khook_agent_count_adopted();
}

/* Runs in whoever closes the socket last, a dying agent included. */
static int khook_agent_notify(struct notifier_block *nb, unsigned long state, void *ptr)
{
	struct netlink_notify *note = ptr;
	struct pid *old = NULL;

	if (state != NETLINK_URELEASE || note->protocol != NETLINK_GENERIC)
		return NOTIFY_DONE;
	spin_lock(&khook_agent.lock);
	if (khook_agent_matches(note->net, note->portid)) {
		old = khook_agent.pid;
		WRITE_ONCE(khook_agent.pid, NULL);
		khook_agent.portid = 0;
		khook_agent.net = NULL;
		khook_agent_set_absent();
	}
	spin_unlock(&khook_agent.lock);
	put_pid(old);
	return NOTIFY_DONE;
}

static struct notifier_block khook_agent_nb = {
	.notifier_call = khook_agent_notify,
};

int khook_agent_init(void)
{
	int err = netlink_register_notifier(&khook_agent_nb);

	if (err)
		return err;
	spin_lock(&khook_agent.lock);
	khook_agent_set_absent();
	spin_unlock(&khook_agent.lock);
	return 0;
}

/* Nobody can attach any more: the family is gone. */
void khook_agent_exit(void)
{
	netlink_unregister_notifier(&khook_agent_nb);
	spin_lock(&khook_agent.lock);
	khook_agent.portid = 0;
	spin_unlock(&khook_agent.lock);
	cancel_delayed_work_sync(&khook_heartbeat);
	cancel_delayed_work_sync(&khook_orphan);
	put_pid(khook_agent.pid);
	khook_agent.pid = NULL;
}
