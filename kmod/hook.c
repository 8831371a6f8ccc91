// SPDX-License-Identifier: GPL-2.0-only
#include <linux/hash.h>
#include <linux/module.h>
#include <linux/netlink.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>

#include <asm/text-patching.h>

#include "compat.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "hook.h"
#include "set.h"

/* No driver has it; the wrapper swallows it in any case. */
#define KHOOK_TRY_CMD 0xffffffffU

typedef long (*khook_ioctl_fn)(struct file *file, unsigned int cmd, unsigned long arg);
typedef int (*khook_open_fn)(struct inode *inode, struct file *file);

static struct khook_slot khook_slots[KHOOK_MAX_GATES];
static bool khook_try_seen;

/* ---- who is inside a driver's function by our leave ---- */

/*
 * The wrapper calls the driver's function at its entry, which is hooked, so the
 * hook must know that this caller has been through. The return address would say
 * so too, until a kretprobe on the same function replaces it and the caller goes
 * round for ever.
 */
struct khook_call {
	struct hlist_node node;
	struct task_struct *task;
};

#define KHOOK_CALL_BITS 6

struct khook_call_bucket {
	raw_spinlock_t lock; /* taken in a kprobe's handler, with interrupts off */
	struct hlist_head calls;
} ____cacheline_aligned_in_smp;

static struct khook_call_bucket khook_calls[1 << KHOOK_CALL_BITS];

static struct khook_call_bucket *khook_call_bucket(void)
{
	return &khook_calls[hash_ptr(current, KHOOK_CALL_BITS)];
}

static void khook_call_begin(struct khook_call *call)
{
	struct khook_call_bucket *bucket = khook_call_bucket();
	unsigned long flags;

	call->task = current;
	raw_spin_lock_irqsave(&bucket->lock, flags);
	hlist_add_head(&call->node, &bucket->calls);
	raw_spin_unlock_irqrestore(&bucket->lock, flags);
}

static void khook_call_end(struct khook_call *call)
{
	struct khook_call_bucket *bucket = khook_call_bucket();
	unsigned long flags;

	raw_spin_lock_irqsave(&bucket->lock, flags);
	hlist_del(&call->node);
	raw_spin_unlock_irqrestore(&bucket->lock, flags);
}

static bool khook_call_is_inside(void)
{
	struct khook_call_bucket *bucket = khook_call_bucket();
	struct khook_call *call;
	bool inside = false;
	unsigned long flags;

	raw_spin_lock_irqsave(&bucket->lock, flags);
	hlist_for_each_entry(call, &bucket->calls, node)
		inside |= call->task == current;
	raw_spin_unlock_irqrestore(&bucket->lock, flags);
	return inside;
}

/* ---- wrappers ---- */

/*
 * What a wrapper needs of its slot it copies before it first sleeps: taking a
 * hook off waits for RCU tasks, hence for every caller that is between the
 * redirect and that copy, and then the slot may be another gate's.
 */
static struct khook_gate *khook_wrapper_gate(struct khook_hook *hook)
{
	struct khook_gate *gate = hook->slot->gate;

	kref_get(&gate->ref);
	atomic64_inc(&gate->calls);
	return gate;
}

/* The hook took a module reference for this; the code after it is waited for at exit. */
static void khook_wrapper_done(struct khook_gate *gate)
{
	khook_gate_put(gate);
	module_put(THIS_MODULE);
}

static noinline long khook_wrap_ioctl(struct khook_hook *hook, struct file *file, unsigned int cmd,
				      unsigned long arg)
{
	khook_ioctl_fn original = (khook_ioctl_fn)hook->target;
	struct khook_gate *gate = khook_wrapper_gate(hook);
	struct khook_call call;
	long ret;

	if (READ_ONCE(khook_selftest_task) == current) {
		khook_try_seen = true;
		khook_wrapper_done(gate);
		return 0;
	}
	ret = khook_hold(gate, file, cmd, arg);
	if (!ret) {
		khook_call_begin(&call);
		ret = original(file, cmd, arg);
		khook_call_end(&call);
	}
	khook_wrapper_done(gate);
	return ret;
}

static noinline int khook_wrap_open(struct khook_hook *hook, struct inode *inode, struct file *file)
{
	khook_open_fn original = (khook_open_fn)hook->target;
	struct khook_gate *gate = khook_wrapper_gate(hook);
	struct khook_call call;
	int ret = -ENODEV;

	if (!khook_fence_refuses()) {
		khook_call_begin(&call);
		ret = original(inode, file);
		khook_call_end(&call);
	}
	khook_wrapper_done(gate);
	return ret;
}

/* clang-format off */
#define KHOOK_WRAPPERS(n)							\
static long khook_ioctl_##n(struct file *file, unsigned int cmd, unsigned long arg) \
{										\
	return khook_wrap_ioctl(&khook_slots[n].hooks[KHOOK_HOOK_IOCTL],	\
				file, cmd, arg);				\
}										\
static long khook_compat_##n(struct file *file, unsigned int cmd, unsigned long arg) \
{										\
	return khook_wrap_ioctl(&khook_slots[n].hooks[KHOOK_HOOK_COMPAT],	\
				file, cmd, arg);				\
}										\
static int khook_open_##n(struct inode *inode, struct file *file)		\
{										\
	return khook_wrap_open(&khook_slots[n].hooks[KHOOK_HOOK_OPEN],		\
			       inode, file);					\
}

#define KHOOK_WRAPPERS_OF(n) {							\
	[KHOOK_HOOK_IOCTL] = (unsigned long)khook_ioctl_##n,			\
	[KHOOK_HOOK_COMPAT] = (unsigned long)khook_compat_##n,			\
	[KHOOK_HOOK_OPEN] = (unsigned long)khook_open_##n,			\
}

KHOOK_WRAPPERS(0)
KHOOK_WRAPPERS(1)
KHOOK_WRAPPERS(2)
KHOOK_WRAPPERS(3)
KHOOK_WRAPPERS(4)
KHOOK_WRAPPERS(5)
KHOOK_WRAPPERS(6)
KHOOK_WRAPPERS(7)
KHOOK_WRAPPERS(8)
KHOOK_WRAPPERS(9)
KHOOK_WRAPPERS(10)
KHOOK_WRAPPERS(11)
KHOOK_WRAPPERS(12)
KHOOK_WRAPPERS(13)
KHOOK_WRAPPERS(14)
KHOOK_WRAPPERS(15)

static const unsigned long khook_wrappers[][KHOOK_HOOK_KINDS] = {
	KHOOK_WRAPPERS_OF(0), KHOOK_WRAPPERS_OF(1), KHOOK_WRAPPERS_OF(2), KHOOK_WRAPPERS_OF(3),
	KHOOK_WRAPPERS_OF(4), KHOOK_WRAPPERS_OF(5), KHOOK_WRAPPERS_OF(6), KHOOK_WRAPPERS_OF(7),
	KHOOK_WRAPPERS_OF(8), KHOOK_WRAPPERS_OF(9), KHOOK_WRAPPERS_OF(10), KHOOK_WRAPPERS_OF(11),
	KHOOK_WRAPPERS_OF(12), KHOOK_WRAPPERS_OF(13), KHOOK_WRAPPERS_OF(14), KHOOK_WRAPPERS_OF(15),
};
static_assert(ARRAY_SIZE(khook_wrappers) == KHOOK_MAX_GATES);
/* clang-format on */

/* ---- redirecting ---- */

static __always_inline bool khook_may_stop_current(void)
{
	bool may;

	/* Also an RCU read side, and one that costs two instructions. */
	preempt_disable_notrace();
	may = khook_set_may_have_current();
	preempt_enable_notrace();
	return may;
}

/* Out of line, so that callers nobody watches need not even save a register. */
static bool khook_redirects(void)
{
	return khook_set_has_current() && !khook_call_is_inside() && try_module_get(THIS_MODULE);
}

static noinline void khook_redirect_ftrace(struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct khook_hook *hook = container_of(ops, struct khook_hook, ops);

	if (khook_redirects())
		ftrace_regs_set_instruction_pointer(fregs, hook->wrapper);
}

static void notrace khook_on_ftrace(unsigned long ip, unsigned long parent_ip,
				    struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	if (unlikely(khook_may_stop_current()))
		khook_redirect_ftrace(ops, fregs);
}

static int notrace khook_on_kprobe(struct kprobe *kp, struct pt_regs *regs)
{
	if (likely(!khook_may_stop_current()) || !khook_redirects())
		return 0;
	instruction_pointer_set(regs, container_of(kp, struct khook_hook, kp)->wrapper);
	return 1;
}

/* A kprobe with a post handler is never turned into a jump, which would ignore ip. */
static void khook_after_kprobe(struct kprobe *kp, struct pt_regs *regs, unsigned long flags)
{
}

/* ---- back-ends ---- */

/*
 * No FTRACE_OPS_FL_RECURSION: the callback calls nothing that this ops traces, so
 * the core's protection would only add to what an unwatched caller pays. No
 * SAVE_REGS either: the arguments and the ip are enough.
 */
static int khook_ftrace_on(struct khook_hook *hook)
{
	int err;

	/* Anew each time: ftrace_free_filter() leaves its pointers to what it freed. */
	hook->ops = (struct ftrace_ops){
		.func = khook_on_ftrace,
		.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
	};
	err = ftrace_set_filter_ip(&hook->ops, hook->target, 0, 0);
	if (!err)
		err = register_ftrace_function(&hook->ops);
	if (err)
		ftrace_free_filter(&hook->ops);
	return err;
}

static void khook_ftrace_off(struct khook_hook *hook)
{
	unregister_ftrace_function(&hook->ops); /* waits for RCU tasks */
	ftrace_free_filter(&hook->ops);
}

/*
 * register_kprobe() may say 0 without having armed anything (v7.3 drops the error
 * of arm_kprobe()), so the text is asked. On an ftrace entry a kprobe with a post
 * handler is an IPMODIFY user by another name, with that flaw and no gain.
 */
static int khook_kprobe_on(struct khook_hook *hook)
{
	int err;

	memset(&hook->kp, 0, sizeof(hook->kp));
	hook->kp.addr = (kprobe_opcode_t *)hook->target;
	hook->kp.pre_handler = khook_on_kprobe;
	hook->kp.post_handler = khook_after_kprobe;
	err = register_kprobe(&hook->kp);
	if (err)
		return err;
	if (kprobe_ftrace(&hook->kp) || *hook->kp.addr != INT3_INSN_OPCODE) {
		unregister_kprobe(&hook->kp);
		return -EOPNOTSUPP;
	}
	return 0;
}

static void khook_kprobe_off(struct khook_hook *hook)
{
	unregister_kprobe(&hook->kp);
	synchronize_rcu_tasks();
}

/* AUTO takes a kprobe only where ftrace has no entry to offer (EINVAL). */
static int khook_hook_on_by(struct khook_hook *hook, enum khook_method method)
{
	int err = -EINVAL;

	if (method != KHOOK_METHOD_KPROBE) {
		err = khook_ftrace_on(hook);
		if (!err)
			hook->by = KHOOK_METHOD_FTRACE;
	}
	if (method == KHOOK_METHOD_KPROBE || (method == KHOOK_METHOD_AUTO && err == -EINVAL)) {
		err = khook_kprobe_on(hook);
		if (!err)
			hook->by = KHOOK_METHOD_KPROBE;
	}
	return err;
}

int khook_hook_on(struct khook_hook *hook, enum khook_method method, struct netlink_ext_ack *extack)
{
	int err;

	lockdep_assert_held(&khook_gate_mutex);
	if (!hook->target || hook->by != KHOOK_METHOD_AUTO)
		return 0;
	err = khook_hook_on_by(hook, method);
	if (err == -EBUSY) {
		NL_SET_ERR_MSG_MOD(
			extack,
			"a live patch or another IPMODIFY user has this function, or ftrace_enabled is 0");
		return err;
	}
	if (err) {
		NL_SET_ERR_MSG_MOD(extack, "the driver's function can't be hooked by this method");
		return err == -ENOMEM ? err : -EOPNOTSUPP;
	}
	return 0;
}

/* Returns when no caller is on its way to the wrapper any more. */
void khook_hook_off(struct khook_hook *hook)
{
	lockdep_assert_held(&khook_gate_mutex);
	if (hook->by == KHOOK_METHOD_FTRACE)
		khook_ftrace_off(hook);
	else if (hook->by == KHOOK_METHOD_KPROBE)
		khook_kprobe_off(hook);
	hook->by = KHOOK_METHOD_AUTO;
}

/* Calls the hooked function: does the wrapper see it? */
int khook_hook_try(struct khook_hook *hook, struct file *file, struct netlink_ext_ack *extack)
{
	khook_ioctl_fn call = (khook_ioctl_fn)hook->target;

	lockdep_assert_held(&khook_gate_mutex);
	if (!call)
		return 0;
	khook_try_seen = false;
	WRITE_ONCE(khook_selftest_task, current);
	khook_set_add(KHOOK_SET_SELFTEST, &khook_selftest_task);
	call(file, KHOOK_TRY_CMD, 0);
	khook_set_del(KHOOK_SET_SELFTEST, &khook_selftest_task);
	WRITE_ONCE(khook_selftest_task, NULL);
	if (khook_try_seen)
		return 0;
	NL_SET_ERR_MSG_MOD(extack, "the hook is in place but a trial call was not seen by it");
	return -EOPNOTSUPP;
}

/* ---- slots ---- */

void khook_slots_init(void)
{
	struct khook_hook *hook;
	int i, kind;

	for (i = 0; i < ARRAY_SIZE(khook_calls); i++)
		raw_spin_lock_init(&khook_calls[i].lock);
	for (i = 0; i < KHOOK_MAX_GATES; i++) {
		for (kind = 0; kind < KHOOK_HOOK_KINDS; kind++) {
			hook = &khook_slots[i].hooks[kind];
			hook->slot = &khook_slots[i];
			hook->wrapper = khook_wrappers[i][kind];
		}
	}
}

struct khook_slot *khook_slot_take(struct khook_gate *gate)
{
	int i;

	lockdep_assert_held(&khook_gate_mutex);
	for (i = 0; i < KHOOK_MAX_GATES; i++) {
		if (!khook_slots[i].gate) {
			khook_slots[i].gate = gate;
			return &khook_slots[i];
		}
	}
	return NULL;
}

void khook_slot_give(struct khook_slot *slot)
{
	int kind;

	lockdep_assert_held(&khook_gate_mutex);
	for (kind = 0; kind < KHOOK_HOOK_KINDS; kind++) {
		khook_hook_off(&slot->hooks[kind]);
		slot->hooks[kind].target = 0;
	}
	slot->gate = NULL;
}
