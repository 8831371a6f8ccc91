/* SPDX-License-Identifier: GPL-2.0-only */
/* lease - the spot cgroups on a watch's devices, and their eviction. */
#ifndef _KHOOK_LEASE_H
#define _KHOOK_LEASE_H

#include "watch.h"

int khook_lease_add(struct khook_watch *w, u64 cgroup, struct netlink_ext_ack *extack);
int khook_lease_del(struct khook_watch *w, u64 cgroup, struct netlink_ext_ack *extack);
void khook_lease_drop_all(struct khook_watch *w);

void khook_lease_kill(struct khook_watch *w);
void khook_evict_start(struct khook_watch *w);
void khook_evict_queue(struct khook_watch *w);
void khook_evict_hint(struct khook_watch *w);
void khook_evict_stop(struct khook_watch *w);
void khook_evict_work(struct work_struct *work);

#endif /* _KHOOK_LEASE_H */
