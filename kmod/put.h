/* SPDX-License-Identifier: GPL-2.0-only */
/* put - khook's objects as attributes of a message; 0, or -EMSGSIZE if they don't fit. */
#ifndef _KHOOK_PUT_H
#define _KHOOK_PUT_H

#include <linux/skbuff.h>

#include "watch.h"

struct khook_fence;
struct khook_gate;
struct khook_hold;

int khook_put_u64(struct sk_buff *skb, enum khook_attr attr, u64 value);
int khook_put_caller(struct sk_buff *skb, const struct khook_caller *caller);
int khook_put_eviction(struct sk_buff *skb, const struct khook_return *ret);
int khook_put_gate(struct sk_buff *skb, const struct khook_gate *gate);
int khook_put_watch(struct sk_buff *skb, struct khook_watch *w);
int khook_put_hold(struct sk_buff *skb, const struct khook_watch *w, const struct khook_hold *h);
int khook_put_fence(struct sk_buff *skb, const struct khook_fence *f);
int khook_put_stats(struct sk_buff *skb);

#endif /* _KHOOK_PUT_H */
