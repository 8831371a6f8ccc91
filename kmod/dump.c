// SPDX-License-Identifier: GPL-2.0-only
#include <net/genetlink.h>
#include <net/sock.h>

#include "agent.h"
#include "dump.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "netlink.h"
#include "put.h"

/* A dump goes on where it was: cb->args[] has the last id written, and ids ascend. */

int khook_dump_start(struct netlink_callback *cb)
{
	khook_agent_beat(sock_net(cb->skb->sk), NETLINK_CB(cb->skb).portid);
	return 0;
}

static void *khook_dump_open(struct sk_buff *skb, struct netlink_callback *cb, enum khook_cmd cmd)
{
	return genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq, &khook_family,
			   NLM_F_MULTI, cmd);
}

/* False if the message is full: what didn't fit is written next time. */
static bool khook_dump_close(struct sk_buff *skb, void *hdr, int err)
{
	if (err) {
		genlmsg_cancel(skb, hdr);
		return false;
	}
	genlmsg_end(skb, hdr);
	return true;
}

int khook_dump_gates(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct khook_gate *gate;
	void *hdr;

	mutex_lock(&khook_gate_mutex);
	khook_for_each_gate(gate) {
		if (gate->id <= cb->args[0])
			continue;
		hdr = khook_dump_open(skb, cb, KHOOK_CMD_GET_GATE);
		if (!hdr || !khook_dump_close(skb, hdr, khook_put_gate(skb, gate)))
			break;
		cb->args[0] = gate->id;
	}
	mutex_unlock(&khook_gate_mutex);
	return skb->len;
}

int khook_dump_watches(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct khook_watch *w;
	void *hdr;

	mutex_lock(&khook_watch_mutex);
	khook_for_each_watch(w) {
		if (w->id <= cb->args[0])
			continue;
		hdr = khook_dump_open(skb, cb, KHOOK_CMD_GET_WATCH);
		if (!hdr || !khook_dump_close(skb, hdr, khook_put_watch(skb, w)))
			break;
		cb->args[0] = w->id;
	}
	mutex_unlock(&khook_watch_mutex);
	return skb->len;
}

static bool khook_dump_holds_of(struct khook_watch *w, struct sk_buff *skb,
				struct netlink_callback *cb)
{
	struct khook_hold *h;
	bool room = true;
	void *hdr;

	spin_lock(&w->lock);
	list_for_each_entry(h, &w->holds, node) {
		if (h->id <= cb->args[1])
			continue;
		hdr = khook_dump_open(skb, cb, KHOOK_CMD_GET_HOLD);
		room = hdr && khook_dump_close(skb, hdr, khook_put_hold(skb, w, h));
		if (!room)
			break;
		cb->args[1] = h->id;
	}
	spin_unlock(&w->lock);
	return room;
}

/* args[0]: the last watch that is done; args[1]: the last hold of the one after. */
int khook_dump_holds(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct khook_watch *w;

	mutex_lock(&khook_watch_mutex);
	khook_for_each_watch(w) {
		if (w->id <= cb->args[0])
			continue;
		if (!khook_dump_holds_of(w, skb, cb))
			break;
		cb->args[0] = w->id;
		cb->args[1] = 0;
	}
	mutex_unlock(&khook_watch_mutex);
	return skb->len;
}

int khook_dump_fences(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct khook_fence *f;
	void *hdr;

	mutex_lock(&khook_fence_mutex);
	khook_for_each_fence(f) {
		if (f->seq <= cb->args[0])
			continue;
		hdr = khook_dump_open(skb, cb, KHOOK_CMD_GET_FENCE);
		if (!hdr || !khook_dump_close(skb, hdr, khook_put_fence(skb, f)))
			break;
		cb->args[0] = f->seq;
	}
	mutex_unlock(&khook_fence_mutex);
	return skb->len;
}
