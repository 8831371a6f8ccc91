/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * set - may this caller be watched or fenced?
 *
 * The one question a hooked ioctl asks of every caller, so it is answered in a
 * few instructions and errs to yes: a counting Bloom filter of the pointers
 * (cgroup, pid namespace, struct pid) that are watched or fenced, and one word
 * that says at which cgroup levels there are any, so that a caller compares the
 * ancestors at those levels alone. A yes costs the exact look-up in the wrapper,
 * no more.
 */
#ifndef _KHOOK_SET_H
#define _KHOOK_SET_H

#include <linux/bitops.h>
#include <linux/cgroup.h>
#include <linux/hash.h>
#include <linux/sched.h>
#include <linux/types.h>

#define KHOOK_SET_ORDER 12
#define KHOOK_SET_SIZE (1U << KHOOK_SET_ORDER)

/* Bits of khook_set.kinds: below DEEP, the bit number is the cgroup level. */
enum khook_set_kind {
	KHOOK_SET_DEEP = 60, /* a cgroup at that level or below it */
	KHOOK_SET_PIDNS = 61,
	KHOOK_SET_PROCESS = 62,
	KHOOK_SET_SELFTEST = 63,
};

struct khook_set {
	u64 kinds;
	u16 refs[KHOOK_SET_SIZE];
};

extern struct khook_set khook_set;
extern struct task_struct *khook_selftest_task;

static __always_inline bool khook_set_may_have(const void *ptr)
{
	return READ_ONCE(khook_set.refs[hash_ptr(ptr, KHOOK_SET_ORDER)]);
}

/*
 * The short answer: false is final, true is for khook_set_has_current(), which
 * also knows the kinds that are rare. The caller keeps current's css_set alive:
 * RCU, or preemption off.
 */
static __always_inline bool khook_set_may_have_current(void)
{
	u64 kinds = READ_ONCE(khook_set.kinds);
	struct cgroup *cgrp = task_dfl_cgroup(current);

	if (unlikely(kinds >> KHOOK_SET_DEEP))
		return true;
	for (; kinds; kinds &= kinds - 1) {
		unsigned long level = __ffs64(kinds);

		if (level > cgrp->level)
			return false;
		if (khook_set_may_have(cgrp->ancestors[level]))
			return true;
	}
	return false;
}

bool khook_set_has_current(void);

static inline enum khook_set_kind khook_set_cgroup_kind(const struct cgroup *cgrp)
{
	return min_t(int, cgrp->level, KHOOK_SET_DEEP);
}

void khook_set_add(enum khook_set_kind kind, const void *ptr);
void khook_set_del(enum khook_set_kind kind, const void *ptr);
bool khook_set_is_empty(void);

#endif /* _KHOOK_SET_H */
