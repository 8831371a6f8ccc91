/* SPDX-License-Identifier: GPL-2.0-only */
/* key - whose calls: a cgroup, a pid namespace (both with descendants), a process. */
#ifndef _KHOOK_KEY_H
#define _KHOOK_KEY_H

#include <linux/types.h>

#include "set.h"

struct cgroup;
struct netlink_ext_ack;
struct pid;
struct pid_namespace;
struct task_struct;

enum khook_key_kind {
	KHOOK_KEY_CGROUP,
	KHOOK_KEY_PIDNS,
	KHOOK_KEY_PROCESS,
};

/*
 * A key owns a reference: the pointer can't be reused while the key lives, so
 * comparing pointers is exact where numbers (pids, inums) would be recycled.
 */
struct khook_key {
	enum khook_key_kind kind;
	union {
		const void *ptr;
		struct cgroup *cgroup;
		struct pid_namespace *pidns;
		struct pid *pid;
	};
	u64 start_ticks; /* of a process, as user space named it */
};

int khook_cgroup_get(u64 id, struct cgroup **cgrp, struct netlink_ext_ack *extack);
bool khook_cgroups_overlap(struct cgroup *a, struct cgroup *b);
bool khook_cgroup_has_current(struct cgroup *cgrp);

int khook_key_cgroup(struct khook_key *key, u64 id, struct netlink_ext_ack *extack);
int khook_key_pidns(struct khook_key *key, u32 inum, struct netlink_ext_ack *extack);
int khook_key_process(struct khook_key *key, u32 nr, u64 start_ticks,
		      struct netlink_ext_ack *extack);
void khook_key_put(struct khook_key *key);

bool khook_key_has_task(const struct khook_key *key, struct task_struct *p);
enum khook_set_kind khook_key_set_kind(const struct khook_key *key);

#endif /* _KHOOK_KEY_H */
