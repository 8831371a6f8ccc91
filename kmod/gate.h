/* SPDX-License-Identifier: GPL-2.0-only */
/* gate - a driver's ioctl handler, and the hooks that redirect its callers. */
#ifndef _KHOOK_GATE_H
#define _KHOOK_GATE_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/kallsyms.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>

#include "khook.h"

struct khook_slot;
struct netlink_ext_ack;

struct khook_gate {
	struct list_head by_id;
	struct kref ref; /* the table, and every caller between redirect and return */
	struct rcu_head rcu;
	u32 id;
	u32 dev;
	enum khook_classifier classifier;
	enum khook_method method; /* as asked for; _method() says what it became */
	enum khook_gate_state state; /* written under khook_gate_mutex */
	struct khook_slot *slot;
	atomic64_t calls;
	atomic_t holds;
	char module[MODULE_NAME_LEN];
	char function[KSYM_NAME_LEN];
};

extern struct mutex khook_gate_mutex;
extern struct list_head khook_gate_list;
extern u32 khook_gate_count;

#define khook_for_each_gate(g) list_for_each_entry(g, &khook_gate_list, by_id)

struct khook_gate *khook_gate_arm(struct file *file, enum khook_classifier classifier,
				  enum khook_method method, struct netlink_ext_ack *extack);
int khook_gate_disarm(u32 id, struct netlink_ext_ack *extack);
int khook_gate_disarm_file(struct file *file, struct netlink_ext_ack *extack);
void khook_gate_put(struct khook_gate *gate);
enum khook_method khook_gate_method(const struct khook_gate *gate);

int khook_gates_go_live(struct netlink_ext_ack *extack);
void khook_gates_settle(void);
int khook_gates_init(void);
void khook_gates_exit(void);

#endif /* _KHOOK_GATE_H */
