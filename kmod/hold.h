/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hold - one ioctl kept asleep, and the life of the watch that keeps it.
 *
 * join, leave and finish are the state machine and nothing else, so that the
 * selftest can walk it; the other functions add what follows from a step
 * (deadline, lease, events, counters).
 */
#ifndef _KHOOK_HOLD_H
#define _KHOOK_HOLD_H

#include <linux/fs.h>
#include <linux/wait.h>

#include "watch.h"

struct khook_gate;

enum khook_verdict {
	KHOOK_VERDICT_WAIT,
	KHOOK_VERDICT_GO,
	KHOOK_VERDICT_EIO,
	KHOOK_VERDICT_GONE, /* the gate's driver is gone */
};

/* Lives on the stack of the task it stops. */
struct khook_hold {
	struct list_head node;
	struct wait_queue_head wait;
	enum khook_verdict verdict; /* written under the watch's lock */
	u64 id;
	u64 return_id;
	u64 since_ns;
	struct khook_gate *gate;
	struct khook_caller caller;
};

enum khook_join {
	KHOOK_JOIN_PASS,
	KHOOK_JOIN_REFUSE, /* the watch is BLOCKED */
	KHOOK_JOIN_OVERFLOW, /* no room: the caller passes, and is counted */
	KHOOK_JOIN_BEGIN, /* would begin a return: come back with ->say held */
	KHOOK_JOIN_FIRST, /* began one */
	KHOOK_JOIN_HELD,
};

extern u32 khook_hold_limit;

int khook_hold(struct khook_gate *gate, struct file *file, unsigned int cmd, unsigned long arg);
u32 khook_hold_total(void);
void khook_caller_init(struct khook_caller *caller);

void khook_hold_init(struct khook_hold *h, struct khook_gate *gate);
enum khook_join khook_watch_join(struct khook_watch *w, struct khook_hold *h, bool begin);
enum khook_verdict khook_watch_leave(struct khook_watch *w, struct khook_hold *h);
bool khook_watch_finish(struct khook_watch *w, u64 return_id, enum khook_outcome outcome,
			struct khook_return *done);

struct khook_watch *khook_watch_detect(struct khook_key *key, const struct khook_policy *policy,
				       bool *created, struct netlink_ext_ack *extack);
void khook_watch_undetect(struct khook_watch *w);
void khook_watch_open(struct khook_watch *w);
bool khook_watch_end(struct khook_watch *w, u64 return_id, enum khook_outcome outcome);
int khook_watch_release(struct khook_watch *w, u64 return_id);
void khook_watch_orphan(struct khook_watch *w);
int khook_hold_release(u64 id);
void khook_hold_gate_gone(struct khook_gate *gate);
void khook_deadline_work(struct work_struct *work);

#endif /* _KHOOK_HOLD_H */
