/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * watch - one key whose calls are stopped, its policy, its lease and its return.
 *
 * The life of a watch (WATCHING, HOLDING, OPEN, BLOCKED) is in hold.c; this is
 * the object and the table of them.
 */
#ifndef _KHOOK_WATCH_H
#define _KHOOK_WATCH_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "key.h"
#include "khook.h"

/* What an event says of a caller. */
struct khook_caller {
	u32 pid;
	u32 tid;
	char comm[TASK_COMM_LEN];
	u64 cgroup;
	u32 pidns;
	u32 dev;
	u32 cmd;
	u32 class;
	u32 gate;
};

struct khook_policy {
	u32 return_on;
	u32 deadline_ms;
	u32 at_deadline;
	u32 on_hold;
	u32 release_on;
};

struct khook_return {
	u64 id;
	u64 first_ns;
	u64 kill_ns;
	u64 killed_ns;
	u64 empty_ns;
	u64 release_ns;
	u64 first_hold;
	u32 holds;
	u32 passes;
	u32 outcome;
	bool orphaned; /* khook finishes it alone */
	struct khook_caller first;
};

struct khook_watch {
	struct hlist_node by_key;
	struct list_head by_id;
	struct kref ref;
	struct rcu_head rcu;
	u32 id;
	struct khook_key key;

	/* Orders what is said of this watch: a return's HOLD before its RELEASE. */
	struct mutex say;

	spinlock_t lock; /* all below, down to the next lock */
	enum khook_watch_state state;
	bool in_set;
	struct khook_policy policy;
	struct khook_return ret; /* the current one, or the last */
	struct list_head holds; /* ascending id */
	u32 nr_holds;
	u64 hint_until_ns; /* EVICT: kill until then, hold or not */

	struct mutex lease_lock;
	struct cgroup *leases[KHOOK_MAX_LEASES];
	u32 nr_leases;

	struct delayed_work deadline;
	struct work_struct evict;
};

extern struct mutex khook_watch_mutex;
extern struct list_head khook_watch_list;
extern u32 khook_watch_count;

#define khook_for_each_watch(w) list_for_each_entry(w, &khook_watch_list, by_id)

struct khook_watch *khook_watch_new(struct khook_key *key, struct netlink_ext_ack *extack);
struct khook_watch *khook_watch_alloc(struct khook_key *key);
struct khook_watch *khook_watch_find_key(const struct khook_key *key);
struct khook_watch *khook_watch_get(u32 id);
struct khook_watch *khook_watch_after(u32 id);
struct khook_watch *khook_watch_of_current(u32 after);
void khook_watch_remove(struct khook_watch *w);
void khook_watch_put(struct khook_watch *w);
void khook_watch_set_state(struct khook_watch *w, enum khook_watch_state state);
bool khook_watch_overlaps(struct cgroup *cgrp);

#endif /* _KHOOK_WATCH_H */
