/* SPDX-License-Identifier: GPL-2.0-only */
/* netlink - the family: attributes in, attributes out, and no decisions. */
#ifndef _KHOOK_NETLINK_H
#define _KHOOK_NETLINK_H

struct genl_family;

#define KHOOK_MCGRP_EVENTS_AT 0

extern struct genl_family khook_family;

int khook_netlink_init(void);
void khook_netlink_exit(void);

#endif /* _KHOOK_NETLINK_H */
