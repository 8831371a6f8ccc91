/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hook - one function of a driver whose callers are redirected to a wrapper.
 *
 * A slot has the hooks of one gate. Wrappers are compiled in, one set a slot,
 * because a redirected caller arrives with its own arguments only: which gate it
 * came through is known by which wrapper it landed in.
 */
#ifndef _KHOOK_HOOK_H
#define _KHOOK_HOOK_H

#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>

#include "gate.h"

enum khook_hook_kind {
	KHOOK_HOOK_IOCTL,
	KHOOK_HOOK_COMPAT,
	KHOOK_HOOK_OPEN,
	KHOOK_HOOK_KINDS,
};

struct khook_hook {
	struct khook_slot *slot;
	unsigned long target; /* the driver's function; 0: unused */
	unsigned long wrapper;
	enum khook_method by; /* AUTO: not hooked */
	struct ftrace_ops ops;
	struct kprobe kp;
};

struct khook_slot {
	struct khook_gate *gate; /* NULL: free */
	struct khook_hook hooks[KHOOK_HOOK_KINDS];
};

void khook_slots_init(void);
struct khook_slot *khook_slot_take(struct khook_gate *gate);
void khook_slot_give(struct khook_slot *slot);

int khook_hook_on(struct khook_hook *hook, enum khook_method method,
		  struct netlink_ext_ack *extack);
void khook_hook_off(struct khook_hook *hook);
int khook_hook_try(struct khook_hook *hook, struct file *file, struct netlink_ext_ack *extack);

#endif /* _KHOOK_HOOK_H */
