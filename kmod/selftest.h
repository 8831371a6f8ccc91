/* SPDX-License-Identifier: GPL-2.0-only */
/* selftest - what can be tried without a driver, at load (KHOOK_SELFTEST=1). */
#ifndef _KHOOK_SELFTEST_H
#define _KHOOK_SELFTEST_H

#include <linux/types.h>

#ifdef KHOOK_SELFTEST
int khook_selftest(void);
u32 khook_selftests_passed(void);
#else
static inline int khook_selftest(void)
{
	return 0;
}

static inline u32 khook_selftests_passed(void)
{
	return 0;
}
#endif

#endif /* _KHOOK_SELFTEST_H */
