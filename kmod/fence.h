/* SPDX-License-Identifier: GPL-2.0-only */
/* fence - spot cgroups that may open and ioctl nothing on any gate. */
#ifndef _KHOOK_FENCE_H
#define _KHOOK_FENCE_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/types.h>

struct cgroup;
struct netlink_ext_ack;

struct khook_fence {
	struct hlist_node by_cgroup;
	struct list_head by_seq;
	struct rcu_head rcu;
	struct cgroup *cgroup;
	u64 id; /* of the cgroup */
	u64 seq; /* ascending, which is how dumps continue */
	atomic64_t calls;
	unsigned long told; /* bit 0: the first refusal was an event */
};

extern struct mutex khook_fence_mutex;
extern struct list_head khook_fence_list;
extern u32 khook_fence_count;

#define khook_for_each_fence(f) list_for_each_entry(f, &khook_fence_list, by_seq)

int khook_fence_add(u64 cgroup, struct netlink_ext_ack *extack);
int khook_fence_del(u64 cgroup);
void khook_fence_drop_all(void);
bool khook_fence_overlaps(struct cgroup *cgrp);
bool khook_fence_refuses(void);

#endif /* _KHOOK_FENCE_H */
