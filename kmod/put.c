// SPDX-License-Identifier: GPL-2.0-only
#include <linux/cgroup.h>
#include <linux/ktime.h>
#include <linux/pid_namespace.h>
#include <net/net_namespace.h>
#include <net/netlink.h>

#include "agent.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "put.h"
#include "selftest.h"
#include "stat.h"

int khook_put_u64(struct sk_buff *skb, enum khook_attr attr, u64 value)
{
	return nla_put_u64_64bit(skb, attr, value, KHOOK_A_PAD);
}

int khook_put_caller(struct sk_buff *skb, const struct khook_caller *caller)
{
	if (nla_put_u32(skb, KHOOK_A_PID, caller->pid) ||
	    nla_put_u32(skb, KHOOK_A_TID, caller->tid) ||
	    nla_put_string(skb, KHOOK_A_COMM, caller->comm) ||
	    khook_put_u64(skb, KHOOK_A_CGROUP, caller->cgroup) ||
	    nla_put_u32(skb, KHOOK_A_PIDNS, caller->pidns) ||
	    nla_put_u32(skb, KHOOK_A_DEV, caller->dev) ||
	    nla_put_u32(skb, KHOOK_A_IOCTL, caller->cmd) ||
	    nla_put_u32(skb, KHOOK_A_CLASS, caller->class) ||
	    nla_put_u32(skb, KHOOK_A_GATE, caller->gate))
		return -EMSGSIZE;
	return 0;
}

int khook_put_eviction(struct sk_buff *skb, const struct khook_return *ret)
{
	if (khook_put_u64(skb, KHOOK_A_KILL_NS, ret->kill_ns) ||
	    khook_put_u64(skb, KHOOK_A_KILLED_NS, ret->killed_ns) ||
	    khook_put_u64(skb, KHOOK_A_EMPTY_NS, ret->empty_ns) ||
	    nla_put_u32(skb, KHOOK_A_PASSES, ret->passes))
		return -EMSGSIZE;
	return 0;
}

int khook_put_gate(struct sk_buff *skb, const struct khook_gate *gate)
{
	if (nla_put_u32(skb, KHOOK_A_GATE, gate->id) || nla_put_u32(skb, KHOOK_A_DEV, gate->dev) ||
	    nla_put_string(skb, KHOOK_A_MODULE, gate->module) ||
	    nla_put_string(skb, KHOOK_A_FUNCTION, gate->function) ||
	    nla_put_u32(skb, KHOOK_A_CLASSIFIER, gate->classifier) ||
	    nla_put_u32(skb, KHOOK_A_METHOD, khook_gate_method(gate)) ||
	    nla_put_u32(skb, KHOOK_A_GATE_STATE, gate->state) ||
	    khook_put_u64(skb, KHOOK_A_CALLS, atomic64_read(&gate->calls)) ||
	    nla_put_u32(skb, KHOOK_A_HOLDS, atomic_read(&gate->holds)))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_key(struct sk_buff *skb, const struct khook_key *key)
{
	switch (key->kind) {
	case KHOOK_KEY_CGROUP:
		return khook_put_u64(skb, KHOOK_A_CGROUP, cgroup_id(key->cgroup));
	case KHOOK_KEY_PIDNS:
		return nla_put_u32(skb, KHOOK_A_PIDNS, key->pidns->ns.inum);
	case KHOOK_KEY_PROCESS:
		if (nla_put_u32(skb, KHOOK_A_PID, pid_nr(key->pid)) ||
		    khook_put_u64(skb, KHOOK_A_START_TICKS, key->start_ticks))
			return -EMSGSIZE;
		return 0;
	}
	return -EINVAL;
}

static int khook_put_watch_policy(struct sk_buff *skb, const struct khook_policy *policy)
{
	if (nla_put_u32(skb, KHOOK_A_RETURN_ON, policy->return_on) ||
	    nla_put_u32(skb, KHOOK_A_DEADLINE_MS, policy->deadline_ms) ||
	    nla_put_u32(skb, KHOOK_A_AT_DEADLINE, policy->at_deadline) ||
	    nla_put_u32(skb, KHOOK_A_ON_HOLD, policy->on_hold) ||
	    nla_put_u32(skb, KHOOK_A_RELEASE_ON, policy->release_on))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_watch_return(struct sk_buff *skb, const struct khook_return *ret)
{
	if (khook_put_u64(skb, KHOOK_A_RETURN, ret->id) ||
	    khook_put_u64(skb, KHOOK_A_FIRST_NS, ret->first_ns) || khook_put_eviction(skb, ret) ||
	    khook_put_u64(skb, KHOOK_A_RELEASE_NS, ret->release_ns) ||
	    nla_put_u32(skb, KHOOK_A_OUTCOME, ret->outcome))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_leases(struct sk_buff *skb, struct khook_watch *w)
{
	int err = 0;
	u32 i;

	mutex_lock(&w->lease_lock);
	for (i = 0; i < w->nr_leases && !err; i++)
		err = khook_put_u64(skb, KHOOK_A_LEASE_CGROUP, cgroup_id(w->leases[i]));
	mutex_unlock(&w->lease_lock);
	return err;
}

int khook_put_watch(struct sk_buff *skb, struct khook_watch *w)
{
	struct khook_policy policy;
	enum khook_watch_state state;
	struct khook_return ret;
	u32 holds;

	spin_lock(&w->lock);
	policy = w->policy;
	state = w->state;
	ret = w->ret;
	holds = w->nr_holds;
	spin_unlock(&w->lock);

	if (nla_put_u32(skb, KHOOK_A_WATCH, w->id) || khook_put_key(skb, &w->key) ||
	    khook_put_watch_policy(skb, &policy) || nla_put_u32(skb, KHOOK_A_WATCH_STATE, state) ||
	    nla_put_u32(skb, KHOOK_A_HOLDS, holds) || khook_put_watch_return(skb, &ret) ||
	    khook_put_leases(skb, w))
		return -EMSGSIZE;
	return 0;
}

int khook_put_hold(struct sk_buff *skb, const struct khook_watch *w, const struct khook_hold *h)
{
	if (khook_put_u64(skb, KHOOK_A_HOLD, h->id) || nla_put_u32(skb, KHOOK_A_WATCH, w->id) ||
	    khook_put_u64(skb, KHOOK_A_RETURN, h->return_id) || khook_put_caller(skb, &h->caller) ||
	    khook_put_u64(skb, KHOOK_A_AGE_NS, ktime_get_ns() - h->since_ns))
		return -EMSGSIZE;
	return 0;
}

int khook_put_fence(struct sk_buff *skb, const struct khook_fence *f)
{
	if (khook_put_u64(skb, KHOOK_A_CGROUP, f->id) ||
	    khook_put_u64(skb, KHOOK_A_CALLS, atomic64_read(&f->calls)))
		return -EMSGSIZE;
	return 0;
}

static const enum khook_attr khook_stat_attrs[] = {
	[KHOOK_STAT_RETURNS] = KHOOK_A_STAT_RETURNS,
	[KHOOK_STAT_RELEASED] = KHOOK_A_STAT_RELEASED,
	[KHOOK_STAT_EMPTY] = KHOOK_A_STAT_EMPTY,
	[KHOOK_STAT_DEADLINE] = KHOOK_A_STAT_DEADLINE,
	[KHOOK_STAT_DEADLINE_EIO] = KHOOK_A_STAT_DEADLINE_EIO,
	[KHOOK_STAT_ORPHAN] = KHOOK_A_STAT_ORPHAN,
	[KHOOK_STAT_UNDETECTED] = KHOOK_A_STAT_UNDETECTED,
	[KHOOK_STAT_OVERFLOW] = KHOOK_A_STAT_OVERFLOW,
	[KHOOK_STAT_RESTARTED] = KHOOK_A_STAT_RESTARTED,
	[KHOOK_STAT_FENCED] = KHOOK_A_STAT_FENCED,
	[KHOOK_STAT_KILLED] = KHOOK_A_STAT_KILLED,
	[KHOOK_STAT_EVENTS_LOST] = KHOOK_A_STAT_EVENTS_LOST,
};
static_assert(ARRAY_SIZE(khook_stat_attrs) == KHOOK_STAT_MAX);

static int khook_put_sizes(struct sk_buff *skb)
{
	if (nla_put_u32(skb, KHOOK_A_STAT_GATES, READ_ONCE(khook_gate_count)) ||
	    nla_put_u32(skb, KHOOK_A_STAT_WATCHES, READ_ONCE(khook_watch_count)) ||
	    nla_put_u32(skb, KHOOK_A_STAT_FENCES, READ_ONCE(khook_fence_count)) ||
	    nla_put_u32(skb, KHOOK_A_STAT_HOLDS, khook_hold_total()) ||
	    nla_put_u32(skb, KHOOK_A_STAT_SELFTESTS, khook_selftests_passed()))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_counters(struct sk_buff *skb)
{
	int stat, err = 0;

	for (stat = 0; stat < KHOOK_STAT_MAX && !err; stat++)
		err = khook_put_u64(skb, khook_stat_attrs[stat], khook_stat_read(stat));
	return err;
}

static int khook_put_agent(struct sk_buff *skb)
{
	struct khook_agent_policy policy = khook_agent_policy();
	struct khook_agent_addr addr = khook_agent_addr();

	put_net(addr.net);
	if (nla_put_u32(skb, KHOOK_A_ORPHAN_MS, policy.orphan_ms) ||
	    nla_put_u32(skb, KHOOK_A_HEARTBEAT_MS, policy.heartbeat_ms) ||
	    nla_put_u32(skb, KHOOK_A_AGENT_PORTID, addr.portid) ||
	    khook_put_u64(skb, KHOOK_A_HEARTBEAT_AGE_NS, khook_agent_heartbeat_age()))
		return -EMSGSIZE;
	return 0;
}

int khook_put_stats(struct sk_buff *skb)
{
	if (nla_put_u32(skb, KHOOK_A_VERSION, KHOOK_GENL_VERSION) || khook_put_agent(skb) ||
	    khook_put_sizes(skb) || khook_put_counters(skb))
		return -EMSGSIZE;
	return 0;
}
