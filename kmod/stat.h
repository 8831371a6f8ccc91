/* SPDX-License-Identifier: GPL-2.0-only */
/* stat - what happened, counted since the module was loaded. */
#ifndef _KHOOK_STAT_H
#define _KHOOK_STAT_H

#include <linux/atomic.h>

enum khook_stat {
	KHOOK_STAT_RETURNS,
	KHOOK_STAT_RELEASED,
	KHOOK_STAT_EMPTY,
	KHOOK_STAT_DEADLINE,
	KHOOK_STAT_DEADLINE_EIO,
	KHOOK_STAT_ORPHAN,
	KHOOK_STAT_UNDETECTED,
	KHOOK_STAT_OVERFLOW,
	KHOOK_STAT_RESTARTED,
	KHOOK_STAT_FENCED,
	KHOOK_STAT_KILLED,
	KHOOK_STAT_EVENTS_LOST,
	KHOOK_STAT_MAX,
};

extern atomic64_t khook_stats[KHOOK_STAT_MAX];

static inline void khook_stat_inc(enum khook_stat stat)
{
	atomic64_inc(&khook_stats[stat]);
}

static inline void khook_stat_add(enum khook_stat stat, unsigned int n)
{
	atomic64_add(n, &khook_stats[stat]);
}

static inline u64 khook_stat_read(enum khook_stat stat)
{
	return atomic64_read(&khook_stats[stat]);
}

#endif /* _KHOOK_STAT_H */
