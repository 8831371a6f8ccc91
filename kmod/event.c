// SPDX-License-Identifier: GPL-2.0-only
#include <linux/rwsem.h>
#include <net/genetlink.h>
#include <net/net_namespace.h>

#include "agent.h"
#include "event.h"
#include "gate.h"
#include "netlink.h"
#include "put.h"
#include "stat.h"

/*
 * Events come from owners and workers, which unregistering the family does not
 * wait for: without this one could go out under a group number that is another
 * family's by then.
 */
static DECLARE_RWSEM(khook_event_sem);
static bool khook_event_allowed;

void khook_events_on(void)
{
	down_write(&khook_event_sem);
	khook_event_allowed = true;
	up_write(&khook_event_sem);
}

void khook_events_off(void)
{
	down_write(&khook_event_sem);
	khook_event_allowed = false;
	up_write(&khook_event_sem);
}

static int khook_put_return(struct sk_buff *skb, const struct khook_watch *w,
			    const struct khook_return *ret)
{
	if (nla_put_u32(skb, KHOOK_A_WATCH, w->id) || khook_put_u64(skb, KHOOK_A_RETURN, ret->id))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_first(struct sk_buff *skb, const struct khook_return *ret)
{
	if (khook_put_u64(skb, KHOOK_A_HOLD, ret->first_hold) ||
	    khook_put_u64(skb, KHOOK_A_FIRST_NS, ret->first_ns) ||
	    khook_put_caller(skb, &ret->first))
		return -EMSGSIZE;
	return 0;
}

static int khook_put_end(struct sk_buff *skb, const struct khook_return *ret)
{
	if (khook_put_u64(skb, KHOOK_A_RELEASE_NS, ret->release_ns) ||
	    nla_put_u32(skb, KHOOK_A_OUTCOME, ret->outcome) ||
	    nla_put_u32(skb, KHOOK_A_HOLDS, ret->holds))
		return -EMSGSIZE;
	return 0;
}

static struct sk_buff *khook_event_new(enum khook_event event)
{
	struct sk_buff *skb = genlmsg_new(NLMSG_DEFAULT_SIZE, GFP_KERNEL);

	if (!skb)
		return NULL;
	if (!genlmsg_put(skb, 0, 0, &khook_family, 0, KHOOK_CMD_EVENT) ||
	    nla_put_u32(skb, KHOOK_A_EVENT, event)) {
		nlmsg_free(skb);
		return NULL;
	}
	return skb;
}

/* The agent's copy first. Observers that nobody is are no loss (ESRCH). */
static void khook_event_deliver(struct sk_buff *skb)
{
	struct khook_agent_addr to = khook_agent_addr();
	struct sk_buff *copy;
	int err;

	if (to.portid) {
		copy = skb_clone(skb, GFP_KERNEL);
		if (!copy || genlmsg_unicast(to.net, copy, to.portid))
			khook_stat_inc(KHOOK_STAT_EVENTS_LOST);
	}
	err = genlmsg_multicast_netns(&khook_family, to.net, skb, to.portid, KHOOK_MCGRP_EVENTS_AT,
				      GFP_KERNEL);
	if (err && err != -ESRCH)
		khook_stat_inc(KHOOK_STAT_EVENTS_LOST);
	put_net(to.net);
}

/* Sends what a khook_event_*() has filled in; @full: it didn't fit. */
static void khook_event_send(struct sk_buff *skb, bool full)
{
	if (!skb || full) {
		nlmsg_free(skb);
		khook_stat_inc(KHOOK_STAT_EVENTS_LOST);
		return;
	}
	genlmsg_end(skb, genlmsg_data(nlmsg_data(nlmsg_hdr(skb))));
	down_read(&khook_event_sem);
	if (khook_event_allowed)
		khook_event_deliver(skb);
	else
		nlmsg_free(skb);
	up_read(&khook_event_sem);
}

void khook_event_hold(const struct khook_watch *w, const struct khook_return *ret)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_HOLD);

	khook_event_send(skb, skb && (khook_put_return(skb, w, ret) || khook_put_first(skb, ret)));
}

void khook_event_release(const struct khook_watch *w, const struct khook_return *ret)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_RELEASE);

	khook_event_send(skb, skb && (khook_put_return(skb, w, ret) || khook_put_first(skb, ret) ||
				      khook_put_end(skb, ret) || khook_put_eviction(skb, ret)));
}

void khook_event_empty(const struct khook_watch *w, const struct khook_return *ret)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_EMPTY);

	khook_event_send(skb,
			 skb && (khook_put_return(skb, w, ret) || khook_put_eviction(skb, ret)));
}

void khook_event_orphan(const struct khook_watch *w, const struct khook_return *ret)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_ORPHAN);

	khook_event_send(skb, skb && khook_put_return(skb, w, ret));
}

void khook_event_gate_lost(const struct khook_gate *gate)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_GATE_LOST);

	khook_event_send(skb, skb && (nla_put_u32(skb, KHOOK_A_GATE, gate->id) ||
				      nla_put_string(skb, KHOOK_A_MODULE, gate->module)));
}

void khook_event_fenced(u64 cgroup, const struct khook_caller *caller)
{
	struct sk_buff *skb = khook_event_new(KHOOK_EVENT_FENCED);

	khook_event_send(skb, skb && (khook_put_u64(skb, KHOOK_A_CGROUP, cgroup) ||
				      nla_put_u32(skb, KHOOK_A_PID, caller->pid) ||
				      nla_put_u32(skb, KHOOK_A_TID, caller->tid) ||
				      nla_put_string(skb, KHOOK_A_COMM, caller->comm)));
}
