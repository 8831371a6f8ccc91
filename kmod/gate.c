// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/notifier.h>
#include <linux/slab.h>

#include "event.h"
#include "gate.h"
#include "hold.h"
#include "hook.h"
#include "main.h"
#include "set.h"

/*
 * How long the hooks stay after the last watch has gone. Taking one off waits for
 * RCU tasks, so a watch that comes back soon should find it in place.
 */
#define KHOOK_LINGER (1 * HZ)

DEFINE_MUTEX(khook_gate_mutex);
LIST_HEAD(khook_gate_list); /* ascending id */
u32 khook_gate_count;
static u32 khook_gate_last_id;

static void khook_settle_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(khook_settle, khook_settle_work);

static void khook_gate_free(struct kref *ref)
{
	struct khook_gate *gate = container_of(ref, struct khook_gate, ref);

	kfree_rcu(gate, rcu);
}

void khook_gate_put(struct khook_gate *gate)
{
	kref_put(&gate->ref, khook_gate_free);
}

static struct khook_hook *khook_gate_hook(const struct khook_gate *gate, enum khook_hook_kind kind)
{
	return &gate->slot->hooks[kind];
}

enum khook_method khook_gate_method(const struct khook_gate *gate)
{
	lockdep_assert_held(&khook_gate_mutex);
	if (!gate->slot)
		return gate->method;
	return khook_gate_hook(gate, KHOOK_HOOK_IOCTL)->by ?: gate->method;
}

/* ---- hooking ---- */

static void khook_gate_off(struct khook_gate *gate)
{
	int kind;

	lockdep_assert_held(&khook_gate_mutex);
	for (kind = 0; kind < KHOOK_HOOK_KINDS; kind++)
		khook_hook_off(khook_gate_hook(gate, kind));
	if (gate->state == KHOOK_GATE_LIVE)
		WRITE_ONCE(gate->state, KHOOK_GATE_ARMED);
}

/* Without the open hook a fence still refuses every ioctl: worth a word, no more. */
static int khook_gate_on(struct khook_gate *gate, struct netlink_ext_ack *extack)
{
	int err;

	lockdep_assert_held(&khook_gate_mutex);
	err = khook_hook_on(khook_gate_hook(gate, KHOOK_HOOK_IOCTL), gate->method, extack);
	if (!err)
		err = khook_hook_on(khook_gate_hook(gate, KHOOK_HOOK_COMPAT), gate->method, extack);
	if (err) {
		khook_gate_off(gate);
		return err;
	}
	if (khook_hook_on(khook_gate_hook(gate, KHOOK_HOOK_OPEN), KHOOK_METHOD_FTRACE, NULL)) {
		khook_gate_hook(gate, KHOOK_HOOK_OPEN)->target = 0;
		NL_SET_ERR_MSG_MOD(extack,
				   "the driver's open can't be hooked: a fence will refuse ioctls only");
	}
	gate->method = khook_gate_method(gate);
	WRITE_ONCE(gate->state, KHOOK_GATE_LIVE);
	return 0;
}

/*
 * What is watched is in the set by now, so when this returns no later call of it
 * passes.
 */
int khook_gates_go_live(struct netlink_ext_ack *extack)
{
	struct khook_gate *gate;
	int err = 0;

	mutex_lock(&khook_gate_mutex);
	khook_for_each_gate(gate) {
		if (gate->state != KHOOK_GATE_ARMED)
			continue;
		err = khook_gate_on(gate, extack);
		if (err)
			break;
	}
	mutex_unlock(&khook_gate_mutex);
	return err;
}

/* Nothing is watched any more: give the functions back, but not from here. */
void khook_gates_settle(void)
{
	if (khook_set_is_empty())
		mod_delayed_work(khook_slow_wq, &khook_settle, KHOOK_LINGER);
}

/* True if it took one off: the caller asks again, so that others may have the mutex. */
static bool khook_gates_settle_one(void)
{
	struct khook_gate *gate;
	bool off = false;

	mutex_lock(&khook_gate_mutex);
	khook_for_each_gate(gate) {
		if (gate->state == KHOOK_GATE_LIVE && khook_set_is_empty()) {
			khook_gate_off(gate);
			off = true;
			break;
		}
	}
	mutex_unlock(&khook_gate_mutex);
	return off;
}

static void khook_settle_work(struct work_struct *work)
{
	while (khook_gates_settle_one())
		;
}

/* ---- arming ---- */

/* "function [module]", as kallsyms writes it, into its two parts. */
static int khook_symbol(unsigned long addr, char *function, char *module)
{
	char *symbol = kmalloc(KSYM_SYMBOL_LEN, GFP_KERNEL);
	char *at;

	if (!symbol)
		return -ENOMEM;
	sprint_symbol_no_offset(symbol, addr);
	at = symbol;
	strscpy(function, strsep(&at, " "), KSYM_NAME_LEN);
	module[0] = '\0';
	if (at && at[0] == '[') {
		at++;
		strscpy(module, strsep(&at, "]"), MODULE_NAME_LEN);
	}
	kfree(symbol);
	return 0;
}

/*
 * Only an open of the driver's own module: a helper that many drivers share
 * (simple_open, say) would be refused to all of them.
 */
static bool khook_is_own_open(const struct file *file)
{
	unsigned long open = (unsigned long)file->f_op->open;
	const struct module *owner = file->f_op->owner;

	return open && owner && within_module(open, owner);
}

/*
 * A driver's compat handler is another way in; compat_ptr_ioctl() is not, for it
 * calls the native one.
 */
static unsigned long khook_compat_of(const struct file_operations *fops)
{
	if (fops->compat_ioctl == fops->unlocked_ioctl || fops->compat_ioctl == compat_ptr_ioctl)
		return 0;
	return (unsigned long)fops->compat_ioctl;
}

static struct khook_gate *khook_gate_of(const struct file *file)
{
	unsigned long target = (unsigned long)file->f_op->unlocked_ioctl;
	struct khook_gate *gate;

	lockdep_assert_held(&khook_gate_mutex);
	khook_for_each_gate(gate)
		if (gate->slot && khook_gate_hook(gate, KHOOK_HOOK_IOCTL)->target == target)
			return gate;
	return NULL;
}

/* The driver came back, at another address: the same gate by its names. */
static struct khook_gate *khook_gate_lost_as(const struct khook_gate *like)
{
	struct khook_gate *gate;

	lockdep_assert_held(&khook_gate_mutex);
	khook_for_each_gate(gate)
		if (gate->state == KHOOK_GATE_LOST && !strcmp(gate->module, like->module) &&
		    !strcmp(gate->function, like->function))
			return gate;
	return NULL;
}

static struct khook_gate *khook_gate_new(const struct file *file)
{
	struct khook_gate *gate = kzalloc(sizeof(*gate), GFP_KERNEL_ACCOUNT);

	if (!gate)
		return NULL;
	kref_init(&gate->ref);
	INIT_LIST_HEAD(&gate->by_id);
	gate->dev = new_encode_dev(file_inode(file)->i_rdev);
	if (khook_symbol((unsigned long)file->f_op->unlocked_ioctl, gate->function, gate->module)) {
		kfree(gate);
		return NULL;
	}
	return gate;
}

static int khook_gate_hook_up(struct khook_gate *gate, struct file *file,
			      struct netlink_ext_ack *extack)
{
	const struct file_operations *fops = file->f_op;
	int err;

	gate->slot = khook_slot_take(gate);
	if (!gate->slot)
		return -ENOSPC;
	khook_gate_hook(gate, KHOOK_HOOK_IOCTL)->target = (unsigned long)fops->unlocked_ioctl;
	khook_gate_hook(gate, KHOOK_HOOK_COMPAT)->target = khook_compat_of(fops);
	if (khook_is_own_open(file))
		khook_gate_hook(gate, KHOOK_HOOK_OPEN)->target = (unsigned long)fops->open;
	else
		NL_SET_ERR_MSG_MOD(extack,
				   "the driver has no open of its own: a fence will refuse ioctls only");

	err = khook_gate_on(gate, extack);
	if (!err)
		err = khook_hook_try(khook_gate_hook(gate, KHOOK_HOOK_IOCTL), file, extack);
	if (!err)
		err = khook_hook_try(khook_gate_hook(gate, KHOOK_HOOK_COMPAT), file, extack);
	if (err) {
		khook_slot_give(gate->slot);
		gate->slot = NULL;
	}
	return err;
}

static void khook_gate_link(struct khook_gate *gate)
{
	lockdep_assert_held(&khook_gate_mutex);
	gate->id = ++khook_gate_last_id;
	list_add_tail(&gate->by_id, &khook_gate_list);
	khook_gate_count++;
}

static void khook_gate_unlink(struct khook_gate *gate)
{
	lockdep_assert_held(&khook_gate_mutex);
	list_del_init(&gate->by_id);
	khook_gate_count--;
	if (gate->slot)
		khook_slot_give(gate->slot);
	gate->slot = NULL;
	khook_gate_put(gate);
}

/* The one that was lost, in its old place in the table, or a new one. */
static struct khook_gate *khook_gate_find_room(struct file *file, bool *was_lost,
					       struct netlink_ext_ack *extack)
{
	struct khook_gate *gate = khook_gate_new(file), *lost;

	if (!gate)
		return ERR_PTR(-ENOMEM);
	lost = khook_gate_lost_as(gate);
	*was_lost = lost;
	if (lost) {
		lost->dev = gate->dev;
		khook_gate_put(gate);
		return lost;
	}
	if (khook_gate_count >= KHOOK_MAX_GATES) {
		khook_gate_put(gate);
		NL_SET_ERR_MSG_MOD(extack, "there are as many gates as there can be: disarm one");
		return ERR_PTR(-ENOSPC);
	}
	khook_gate_link(gate);
	return gate;
}

static struct khook_gate *khook_gate_arm_new(struct file *file, enum khook_classifier classifier,
					     enum khook_method method,
					     struct netlink_ext_ack *extack)
{
	bool was_lost;
	struct khook_gate *gate = khook_gate_find_room(file, &was_lost, extack);
	int err;

	if (IS_ERR(gate))
		return gate;
	gate->classifier = classifier;
	gate->method = method;
	err = khook_gate_hook_up(gate, file, extack);
	if (!err)
		return gate;
	if (was_lost)
		WRITE_ONCE(gate->state, KHOOK_GATE_LOST);
	else
		khook_gate_unlink(gate);
	return ERR_PTR(err);
}

static int khook_gate_check_file(const struct file *file, struct netlink_ext_ack *extack)
{
	if (!S_ISCHR(file_inode(file)->i_mode)) {
		NL_SET_ERR_MSG_MOD(extack, "the fd is not of a character device");
		return -ENOTTY;
	}
	if (!file->f_op->unlocked_ioctl) {
		NL_SET_ERR_MSG_MOD(extack, "the device's driver handles no ioctl");
		return -ENOTTY;
	}
	return 0;
}

/*
 * Hooked at once, for that is the only way to know that it can be, and taken off
 * again soon if nothing is watched. The caller has a reference.
 */
struct khook_gate *khook_gate_arm(struct file *file, enum khook_classifier classifier,
				  enum khook_method method, struct netlink_ext_ack *extack)
{
	struct khook_gate *gate;
	int err = khook_gate_check_file(file, extack);

	if (err)
		return ERR_PTR(err);
	mutex_lock(&khook_gate_mutex);
	gate = khook_gate_of(file);
	if (!gate) {
		gate = khook_gate_arm_new(file, classifier, method, extack);
	} else if (gate->classifier != classifier) {
		NL_SET_ERR_MSG_MOD(extack,
				   "this function is armed with another classifier: disarm it first");
		gate = ERR_PTR(-EEXIST);
	}
	if (!IS_ERR(gate))
		kref_get(&gate->ref);
	mutex_unlock(&khook_gate_mutex);
	khook_gates_settle();
	return gate;
}

static int khook_gate_disarm_one(struct khook_gate *gate, struct netlink_ext_ack *extack)
{
	lockdep_assert_held(&khook_gate_mutex);
	if (!gate) {
		NL_SET_ERR_MSG_MOD(extack, "no such gate");
		return -ENOENT;
	}
	if (atomic_read(&gate->holds)) {
		NL_SET_ERR_MSG_MOD(extack, "calls are held in this gate: release them first");
		return -EBUSY;
	}
	khook_gate_unlink(gate);
	return 0;
}

int khook_gate_disarm(u32 id, struct netlink_ext_ack *extack)
{
	struct khook_gate *gate, *found = NULL;
	int err;

	mutex_lock(&khook_gate_mutex);
	khook_for_each_gate(gate)
		if (gate->id == id)
			found = gate;
	err = khook_gate_disarm_one(found, extack);
	mutex_unlock(&khook_gate_mutex);
	return err;
}

int khook_gate_disarm_file(struct file *file, struct netlink_ext_ack *extack)
{
	int err = khook_gate_check_file(file, extack);

	if (err)
		return err;
	mutex_lock(&khook_gate_mutex);
	err = khook_gate_disarm_one(khook_gate_of(file), extack);
	mutex_unlock(&khook_gate_mutex);
	return err;
}

/* ---- drivers that go ---- */

/*
 * The text is still there, so the hooks come off cleanly, and must before it goes:
 * ftrace would keep the address and find it in whatever is loaded there next. A
 * held caller has the device open and so keeps the driver, unless the driver
 * forgot to name its module as the owner; its calls then fail rather than jump
 * into nothing.
 */
static void khook_gate_lose(struct khook_gate *gate)
{
	lockdep_assert_held(&khook_gate_mutex);
	WRITE_ONCE(gate->state, KHOOK_GATE_LOST);
	khook_hold_gate_gone(gate);
	khook_slot_give(gate->slot);
	gate->slot = NULL;
	pr_warn("gate %u: module %s is going, %s is not hooked any more\n", gate->id, gate->module,
		gate->function);
	khook_event_gate_lost(gate);
}

static int khook_module_notify(struct notifier_block *nb, unsigned long state, void *ptr)
{
	struct khook_gate *gate;
	struct module *mod = ptr;

	if (state != MODULE_STATE_GOING)
		return NOTIFY_DONE;
	mutex_lock(&khook_gate_mutex);
	khook_for_each_gate(gate)
		if (gate->slot &&
		    within_module(khook_gate_hook(gate, KHOOK_HOOK_IOCTL)->target, mod))
			khook_gate_lose(gate);
	mutex_unlock(&khook_gate_mutex);
	return NOTIFY_DONE;
}

static struct notifier_block khook_module_nb = {
	.notifier_call = khook_module_notify,
};

int khook_gates_init(void)
{
	khook_slots_init();
	return register_module_notifier(&khook_module_nb);
}

void khook_gates_exit(void)
{
	struct khook_gate *gate, *next;

	unregister_module_notifier(&khook_module_nb);
	cancel_delayed_work_sync(&khook_settle);
	mutex_lock(&khook_gate_mutex);
	list_for_each_entry_safe(gate, next, &khook_gate_list, by_id)
		khook_gate_unlink(gate);
	mutex_unlock(&khook_gate_mutex);
}
