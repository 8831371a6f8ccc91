/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between the kernels khook builds on (6.1, 6.12, 7.3). */
#ifndef _KHOOK_COMPAT_H
#define _KHOOK_COMPAT_H

#include <linux/ftrace.h>
#include <linux/version.h>
#include <net/genetlink.h>

/* Renamed in v6.2; both are macros, so the name itself can be asked. */
#ifndef ftrace_regs_set_instruction_pointer
#define ftrace_regs_set_instruction_pointer ftrace_instruction_pointer_set
#endif

/* genl_family.pre_doit is handed a split op since v6.2. */
#if KERNEL_VERSION(6, 2, 0) > LINUX_VERSION_CODE
#define khook_doit_ops genl_ops
#else
#define khook_doit_ops genl_split_ops
#endif

/*
 * A 6.1 stable gained the flag late; without it anyone may join the group, and
 * only the unicast to the agent is private.
 */
#ifndef GENL_MCAST_CAP_NET_ADMIN
#define KHOOK_MCGRP_FLAGS
#else
#define KHOOK_MCGRP_FLAGS .flags = GENL_MCAST_CAP_NET_ADMIN,
#endif

#endif /* _KHOOK_COMPAT_H */
