/* SPDX-License-Identifier: GPL-2.0-only */
/* event - what khook tells the agent (unicast) and observers (multicast). */
#ifndef _KHOOK_EVENT_H
#define _KHOOK_EVENT_H

#include "watch.h"

struct khook_gate;

void khook_event_hold(const struct khook_watch *w, const struct khook_return *ret);
void khook_event_release(const struct khook_watch *w, const struct khook_return *ret);
void khook_event_empty(const struct khook_watch *w, const struct khook_return *ret);
void khook_event_orphan(const struct khook_watch *w, const struct khook_return *ret);
void khook_event_gate_lost(const struct khook_gate *gate);
void khook_event_fenced(u64 cgroup, const struct khook_caller *caller);

void khook_events_on(void);
void khook_events_off(void);

#endif /* _KHOOK_EVENT_H */
