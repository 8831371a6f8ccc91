/* SPDX-License-Identifier: GPL-2.0-only */
/* agent - the one socket that is told of returns, and what its absence means. */
#ifndef _KHOOK_AGENT_H
#define _KHOOK_AGENT_H

#include <linux/types.h>

struct net;
struct netlink_ext_ack;
struct task_struct;

/* Where events go. The caller puts the namespace. */
struct khook_agent_addr {
	struct net *net;
	u32 portid; /* 0: no agent */
};

struct khook_agent_policy {
	u32 orphan_ms;
	u32 heartbeat_ms;
};

int khook_agent_attach(struct net *net, u32 portid, const struct khook_agent_policy *policy,
		       struct netlink_ext_ack *extack);
void khook_agent_beat(struct net *net, u32 portid);
bool khook_agent_is(struct net *net, u32 portid);
bool khook_agent_is_gone(void);
bool khook_agent_is_task(struct task_struct *leader);
struct khook_agent_addr khook_agent_addr(void);
struct khook_agent_policy khook_agent_policy(void);
u64 khook_agent_heartbeat_age(void);

int khook_agent_init(void);
void khook_agent_exit(void);

#endif /* _KHOOK_AGENT_H */
