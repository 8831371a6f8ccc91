/* SPDX-License-Identifier: GPL-2.0-only */
/* dump - every gate, watch, hold or fence, in as many messages as it takes. */
#ifndef _KHOOK_DUMP_H
#define _KHOOK_DUMP_H

struct netlink_callback;
struct sk_buff;

int khook_dump_start(struct netlink_callback *cb);
int khook_dump_gates(struct sk_buff *skb, struct netlink_callback *cb);
int khook_dump_watches(struct sk_buff *skb, struct netlink_callback *cb);
int khook_dump_holds(struct sk_buff *skb, struct netlink_callback *cb);
int khook_dump_fences(struct sk_buff *skb, struct netlink_callback *cb);

#endif /* _KHOOK_DUMP_H */
