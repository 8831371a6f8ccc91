// SPDX-License-Identifier: GPL-2.0-only
#include <linux/file.h>
#include <net/genetlink.h>

#include "agent.h"
#include "compat.h"
#include "dump.h"
#include "event.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "lease.h"
#include "netlink.h"
#include "put.h"
#include "watch.h"

/* ---- policies: each command takes its own attributes and no others ---- */

static struct netlink_range_validation khook_deadline_range = {
	.min = 1,
	.max = KHOOK_MAX_DEADLINE_MS,
};

static struct netlink_range_validation khook_orphan_range = {
	.max = KHOOK_MAX_ORPHAN_MS,
};

static struct netlink_range_validation khook_heartbeat_range = {
	.max = KHOOK_MAX_HEARTBEAT_MS,
};

#define KHOOK_POLICY_ID NLA_POLICY_MIN(NLA_U32, 1)
#define KHOOK_POLICY_ID64 NLA_POLICY_MIN(NLA_U64, 1)

/* A policy that names nothing: with none at all, attributes would be ignored. */
static const struct nla_policy khook_policy_none[] = {
	[KHOOK_A_PAD] = { .type = NLA_REJECT },
};

static const struct nla_policy khook_policy_attach[] = {
	[KHOOK_A_ORPHAN_MS] = NLA_POLICY_FULL_RANGE(NLA_U32, &khook_orphan_range),
	[KHOOK_A_HEARTBEAT_MS] = NLA_POLICY_FULL_RANGE(NLA_U32, &khook_heartbeat_range),
};

static const struct nla_policy khook_policy_arm[] = {
	[KHOOK_A_FD] = NLA_POLICY_MIN(NLA_S32, 0),
	[KHOOK_A_CLASSIFIER] = NLA_POLICY_RANGE(NLA_U32, KHOOK_CLASSIFIER_ANY,
						KHOOK_CLASSIFIER_NVIDIA_UVM),
	[KHOOK_A_METHOD] = NLA_POLICY_MAX(NLA_U32, KHOOK_METHOD_KPROBE),
};

static const struct nla_policy khook_policy_disarm[] = {
	[KHOOK_A_FD] = NLA_POLICY_MIN(NLA_S32, 0),
	[KHOOK_A_GATE] = KHOOK_POLICY_ID,
};

static const struct nla_policy khook_policy_detect[] = {
	[KHOOK_A_CGROUP] = KHOOK_POLICY_ID64,
	[KHOOK_A_PIDNS] = KHOOK_POLICY_ID,
	[KHOOK_A_PID] = KHOOK_POLICY_ID,
	[KHOOK_A_START_TICKS] = { .type = NLA_U64 },
	[KHOOK_A_RETURN_ON] = NLA_POLICY_MAX(NLA_U32, KHOOK_RETURN_ON_ANY),
	[KHOOK_A_DEADLINE_MS] = NLA_POLICY_FULL_RANGE(NLA_U32, &khook_deadline_range),
	[KHOOK_A_AT_DEADLINE] = NLA_POLICY_MAX(NLA_U32, KHOOK_DEADLINE_EIO),
	[KHOOK_A_ON_HOLD] = NLA_POLICY_MAX(NLA_U32, KHOOK_ON_HOLD_NOTIFY),
	[KHOOK_A_RELEASE_ON] = NLA_POLICY_MAX(NLA_U32, KHOOK_RELEASE_ON_EMPTY),
};

static const struct nla_policy khook_policy_watch[] = {
	[KHOOK_A_WATCH] = KHOOK_POLICY_ID,
};

static const struct nla_policy khook_policy_lease[] = {
	[KHOOK_A_WATCH] = KHOOK_POLICY_ID,
	[KHOOK_A_CGROUP] = KHOOK_POLICY_ID64,
};

static const struct nla_policy khook_policy_fence[] = {
	[KHOOK_A_CGROUP] = KHOOK_POLICY_ID64,
};

static const struct nla_policy khook_policy_release[] = {
	[KHOOK_A_WATCH] = KHOOK_POLICY_ID,
	[KHOOK_A_HOLD] = KHOOK_POLICY_ID64,
	[KHOOK_A_RETURN] = KHOOK_POLICY_ID64,
};

/* ---- attributes in ---- */

static u32 khook_get_u32(struct genl_info *info, enum khook_attr attr, u32 otherwise)
{
	return info->attrs[attr] ? nla_get_u32(info->attrs[attr]) : otherwise;
}

static u64 khook_get_u64(struct genl_info *info, enum khook_attr attr)
{
	return info->attrs[attr] ? nla_get_u64(info->attrs[attr]) : 0;
}

static int khook_need(struct genl_info *info, enum khook_attr attr, const char *why)
{
	if (info->attrs[attr])
		return 0;
	if (info->extack)
		info->extack->_msg = why;
	return -EINVAL;
}

/* A reference, or NULL with the reason said. */
static struct khook_watch *khook_get_watch(struct genl_info *info)
{
	struct khook_watch *w = khook_watch_get(khook_get_u32(info, KHOOK_A_WATCH, 0));

	if (!w)
		NL_SET_ERR_MSG_MOD(info->extack, "no such watch");
	return w;
}

static struct file *khook_get_file(struct genl_info *info)
{
	struct file *file = fget(nla_get_s32(info->attrs[KHOOK_A_FD]));

	if (!file)
		NL_SET_ERR_MSG_MOD(info->extack, "the sender has no such fd open");
	return file;
}

static int khook_get_key(struct genl_info *info, struct khook_key *key)
{
	struct nlattr **attrs = info->attrs;
	int keys = !!attrs[KHOOK_A_CGROUP] + !!attrs[KHOOK_A_PIDNS] + !!attrs[KHOOK_A_PID];

	if (keys != 1) {
		NL_SET_ERR_MSG_MOD(info->extack,
				   "name one key: a cgroup, a pid namespace or a pid");
		return -EINVAL;
	}
	if (!!attrs[KHOOK_A_PID] != !!attrs[KHOOK_A_START_TICKS]) {
		NL_SET_ERR_MSG_MOD(info->extack, "a pid and its start ticks go together");
		return -EINVAL;
	}
	if (attrs[KHOOK_A_CGROUP])
		return khook_key_cgroup(key, khook_get_u64(info, KHOOK_A_CGROUP), info->extack);
	if (attrs[KHOOK_A_PIDNS])
		return khook_key_pidns(key, khook_get_u32(info, KHOOK_A_PIDNS, 0), info->extack);
	return khook_key_process(key, khook_get_u32(info, KHOOK_A_PID, 0),
				 khook_get_u64(info, KHOOK_A_START_TICKS), info->extack);
}

static struct khook_policy khook_get_policy(struct genl_info *info)
{
	return (struct khook_policy){
		.return_on = khook_get_u32(info, KHOOK_A_RETURN_ON, KHOOK_RETURN_ON_COMPUTE),
		.deadline_ms = khook_get_u32(info, KHOOK_A_DEADLINE_MS, KHOOK_DEFAULT_DEADLINE_MS),
		.at_deadline = khook_get_u32(info, KHOOK_A_AT_DEADLINE, KHOOK_DEADLINE_RELEASE),
		.on_hold = khook_get_u32(info, KHOOK_A_ON_HOLD, KHOOK_ON_HOLD_KILL),
		.release_on = khook_get_u32(info, KHOOK_A_RELEASE_ON, KHOOK_RELEASE_ON_PROOF),
	};
}

/* ---- replies ---- */

static struct sk_buff *khook_reply_new(struct genl_info *info, void **hdr)
{
	struct sk_buff *skb = genlmsg_new(NLMSG_DEFAULT_SIZE, GFP_KERNEL);

	if (!skb)
		return NULL;
	*hdr = genlmsg_put_reply(skb, info, &khook_family, 0, info->genlhdr->cmd);
	if (!*hdr) {
		nlmsg_free(skb);
		return NULL;
	}
	return skb;
}

static int khook_reply_send(struct genl_info *info, struct sk_buff *skb, void *hdr, int err)
{
	if (err) {
		nlmsg_free(skb);
		return err;
	}
	genlmsg_end(skb, hdr);
	return genlmsg_reply(skb, info);
}

/* ---- commands ---- */

static int khook_pre_doit(const struct khook_doit_ops *ops, struct sk_buff *skb,
			  struct genl_info *info)
{
	khook_agent_beat(genl_info_net(info), info->snd_portid);
	return 0;
}

static int khook_do_attach(struct sk_buff *request, struct genl_info *info)
{
	struct khook_agent_policy policy = {
		.orphan_ms = khook_get_u32(info, KHOOK_A_ORPHAN_MS, KHOOK_DEFAULT_ORPHAN_MS),
		.heartbeat_ms = khook_get_u32(info, KHOOK_A_HEARTBEAT_MS,
					      KHOOK_DEFAULT_HEARTBEAT_MS),
	};
	struct sk_buff *skb;
	int adopted, err;
	void *hdr;

	skb = khook_reply_new(info, &hdr);
	if (!skb)
		return -ENOMEM;
	adopted = khook_agent_attach(genl_info_net(info), info->snd_portid, &policy, info->extack);
	if (adopted < 0)
		return khook_reply_send(info, skb, hdr, adopted);
	err = nla_put_u32(skb, KHOOK_A_VERSION, KHOOK_GENL_VERSION);
	if (!err)
		err = nla_put_u32(skb, KHOOK_A_ADOPTED, adopted);
	return khook_reply_send(info, skb, hdr, err);
}

static int khook_do_heartbeat(struct sk_buff *request, struct genl_info *info)
{
	if (khook_agent_is(genl_info_net(info), info->snd_portid))
		return 0;
	NL_SET_ERR_MSG_MOD(info->extack, "the sender is not the agent: attach first");
	return -ENOTCONN;
}

static int khook_reply_gate(struct genl_info *info, struct khook_gate *gate)
{
	struct sk_buff *skb;
	void *hdr;
	int err;

	skb = khook_reply_new(info, &hdr);
	if (!skb)
		return -ENOMEM;
	mutex_lock(&khook_gate_mutex);
	err = khook_put_gate(skb, gate);
	mutex_unlock(&khook_gate_mutex);
	return khook_reply_send(info, skb, hdr, err);
}

static int khook_do_arm(struct sk_buff *request, struct genl_info *info)
{
	struct khook_gate *gate;
	struct file *file;
	int err;

	err = khook_need(info, KHOOK_A_FD, "khook: an fd is needed");
	if (!err)
		err = khook_need(info, KHOOK_A_CLASSIFIER, "khook: a classifier is needed");
	if (err)
		return err;
	file = khook_get_file(info);
	if (!file)
		return -EBADF;
	gate = khook_gate_arm(file, khook_get_u32(info, KHOOK_A_CLASSIFIER, 0),
			      khook_get_u32(info, KHOOK_A_METHOD, KHOOK_METHOD_AUTO), info->extack);
	fput(file);
	if (IS_ERR(gate))
		return PTR_ERR(gate);
	err = khook_reply_gate(info, gate);
	khook_gate_put(gate);
	return err;
}

static int khook_do_disarm(struct sk_buff *request, struct genl_info *info)
{
	struct file *file;
	int err;

	if (!info->attrs[KHOOK_A_FD] == !info->attrs[KHOOK_A_GATE]) {
		NL_SET_ERR_MSG_MOD(info->extack, "name a gate or an fd");
		return -EINVAL;
	}
	if (info->attrs[KHOOK_A_GATE])
		return khook_gate_disarm(khook_get_u32(info, KHOOK_A_GATE, 0), info->extack);
	file = khook_get_file(info);
	if (!file)
		return -EBADF;
	err = khook_gate_disarm_file(file, info->extack);
	fput(file);
	return err;
}

static int khook_reply_watch(struct genl_info *info, struct khook_watch *w)
{
	struct sk_buff *skb;
	void *hdr;

	skb = khook_reply_new(info, &hdr);
	if (!skb)
		return -ENOMEM;
	return khook_reply_send(info, skb, hdr, khook_put_watch(skb, w));
}

static int khook_do_detect(struct sk_buff *request, struct genl_info *info)
{
	struct khook_policy policy = khook_get_policy(info);
	struct khook_watch *w;
	struct khook_key key;
	bool created;
	int err;

	err = khook_get_key(info, &key);
	if (err)
		return err;
	w = khook_watch_detect(&key, &policy, &created, info->extack);
	if (IS_ERR(w))
		return PTR_ERR(w);
	err = khook_gates_go_live(info->extack);
	if (!err)
		err = khook_reply_watch(info, w);
	else if (created)
		khook_watch_undetect(w);
	else
		khook_watch_open(w);
	khook_watch_put(w);
	return err;
}

static int khook_do_undetect(struct sk_buff *request, struct genl_info *info)
{
	struct khook_watch *w;
	int err;

	err = khook_need(info, KHOOK_A_WATCH, "khook: a watch is needed");
	if (err)
		return err;
	w = khook_get_watch(info);
	if (!w)
		return -ENOENT;
	khook_watch_undetect(w);
	khook_watch_put(w);
	return 0;
}

static int khook_do_lease(struct sk_buff *request, struct genl_info *info)
{
	struct khook_watch *w;
	u64 cgroup;
	int err;

	err = khook_need(info, KHOOK_A_WATCH, "khook: a watch is needed");
	if (!err)
		err = khook_need(info, KHOOK_A_CGROUP, "khook: a cgroup is needed");
	if (err)
		return err;
	w = khook_get_watch(info);
	if (!w)
		return -ENOENT;
	cgroup = khook_get_u64(info, KHOOK_A_CGROUP);
	if (info->genlhdr->cmd == KHOOK_CMD_LEASE)
		err = khook_lease_add(w, cgroup, info->extack);
	else
		err = khook_lease_del(w, cgroup, info->extack);
	khook_watch_put(w);
	return err;
}

static int khook_do_fence(struct sk_buff *request, struct genl_info *info)
{
	int err = khook_need(info, KHOOK_A_CGROUP, "khook: a cgroup is needed");
	u64 cgroup;

	if (err)
		return err;
	cgroup = khook_get_u64(info, KHOOK_A_CGROUP);
	err = khook_fence_add(cgroup, info->extack);
	if (err)
		return err;
	err = khook_gates_go_live(info->extack);
	if (err)
		khook_fence_del(cgroup);
	return err;
}

static int khook_do_unfence(struct sk_buff *request, struct genl_info *info)
{
	int err = khook_need(info, KHOOK_A_CGROUP, "khook: a cgroup is needed");

	if (err)
		return err;
	err = khook_fence_del(khook_get_u64(info, KHOOK_A_CGROUP));
	if (err)
		NL_SET_ERR_MSG_MOD(info->extack, "the cgroup is not fenced");
	return err;
}

static int khook_release_hold(struct genl_info *info)
{
	int err = khook_hold_release(khook_get_u64(info, KHOOK_A_HOLD));

	if (err)
		NL_SET_ERR_MSG_MOD(info->extack, "no such hold: it may have ended");
	return err;
}

static int khook_release_watch(struct genl_info *info)
{
	struct khook_watch *w = khook_get_watch(info);
	int err;

	if (!w)
		return -ENOENT;
	err = khook_watch_release(w, khook_get_u64(info, KHOOK_A_RETURN));
	if (err)
		NL_SET_ERR_MSG_MOD(info->extack, "that return is not the watch's current one");
	khook_watch_put(w);
	return err;
}

static int khook_do_release(struct sk_buff *request, struct genl_info *info)
{
	struct nlattr **attrs = info->attrs;

	if (!attrs[KHOOK_A_WATCH] == !attrs[KHOOK_A_HOLD]) {
		NL_SET_ERR_MSG_MOD(info->extack, "name a watch or a hold");
		return -EINVAL;
	}
	if (attrs[KHOOK_A_HOLD] && attrs[KHOOK_A_RETURN]) {
		NL_SET_ERR_MSG_MOD(info->extack, "a return goes with a watch, not with a hold");
		return -EINVAL;
	}
	return attrs[KHOOK_A_HOLD] ? khook_release_hold(info) : khook_release_watch(info);
}

static int khook_do_evict(struct sk_buff *request, struct genl_info *info)
{
	struct khook_watch *w;
	int err;

	err = khook_need(info, KHOOK_A_WATCH, "khook: a watch is needed");
	if (err)
		return err;
	w = khook_get_watch(info);
	if (!w)
		return -ENOENT;
	khook_evict_hint(w);
	khook_watch_put(w);
	return 0;
}

static int khook_do_get_stats(struct sk_buff *request, struct genl_info *info)
{
	struct sk_buff *skb;
	void *hdr;

	skb = khook_reply_new(info, &hdr);
	if (!skb)
		return -ENOMEM;
	return khook_reply_send(info, skb, hdr, khook_put_stats(skb));
}

/* ---- the family ---- */

/* clang-format off */
#define KHOOK_DO(_cmd, _doit, _policy) {					\
	.cmd = _cmd, .doit = _doit, .flags = GENL_ADMIN_PERM,			\
	.policy = _policy, .maxattr = ARRAY_SIZE(_policy) - 1,			\
}

#define KHOOK_DUMP(_cmd, _dumpit) {						\
	.cmd = _cmd, .start = khook_dump_start, .dumpit = _dumpit,		\
	.flags = GENL_ADMIN_PERM,						\
	.policy = khook_policy_none, .maxattr = ARRAY_SIZE(khook_policy_none) - 1, \
}
/* clang-format on */

static const struct genl_ops khook_ops[] = {
	KHOOK_DO(KHOOK_CMD_ATTACH, khook_do_attach, khook_policy_attach),
	KHOOK_DO(KHOOK_CMD_HEARTBEAT, khook_do_heartbeat, khook_policy_none),
	KHOOK_DO(KHOOK_CMD_ARM, khook_do_arm, khook_policy_arm),
	KHOOK_DO(KHOOK_CMD_DISARM, khook_do_disarm, khook_policy_disarm),
	KHOOK_DO(KHOOK_CMD_DETECT, khook_do_detect, khook_policy_detect),
	KHOOK_DO(KHOOK_CMD_UNDETECT, khook_do_undetect, khook_policy_watch),
	KHOOK_DO(KHOOK_CMD_LEASE, khook_do_lease, khook_policy_lease),
	KHOOK_DO(KHOOK_CMD_UNLEASE, khook_do_lease, khook_policy_lease),
	KHOOK_DO(KHOOK_CMD_FENCE, khook_do_fence, khook_policy_fence),
	KHOOK_DO(KHOOK_CMD_UNFENCE, khook_do_unfence, khook_policy_fence),
	KHOOK_DO(KHOOK_CMD_RELEASE, khook_do_release, khook_policy_release),
	KHOOK_DO(KHOOK_CMD_EVICT, khook_do_evict, khook_policy_watch),
	KHOOK_DUMP(KHOOK_CMD_GET_GATE, khook_dump_gates),
	KHOOK_DUMP(KHOOK_CMD_GET_WATCH, khook_dump_watches),
	KHOOK_DUMP(KHOOK_CMD_GET_HOLD, khook_dump_holds),
	KHOOK_DUMP(KHOOK_CMD_GET_FENCE, khook_dump_fences),
	KHOOK_DO(KHOOK_CMD_GET_STATS, khook_do_get_stats, khook_policy_none),
};

static const struct genl_multicast_group khook_mcgrps[] = {
	[KHOOK_MCGRP_EVENTS_AT] = { .name = KHOOK_MCGRP_EVENTS, KHOOK_MCGRP_FLAGS },
};

/*
 * resv_start_op stays 0: commands below it would skip the strict checks. No
 * parallel_ops, so that commands are one after the other.
 */
struct genl_family khook_family __ro_after_init = {
	.name = KHOOK_GENL_NAME,
	.version = KHOOK_GENL_VERSION,
	.maxattr = KHOOK_A_MAX,
	.netnsok = true,
	.module = THIS_MODULE,
	.pre_doit = khook_pre_doit,
	.ops = khook_ops,
	.n_ops = ARRAY_SIZE(khook_ops),
	.mcgrps = khook_mcgrps,
	.n_mcgrps = ARRAY_SIZE(khook_mcgrps),
};

int khook_netlink_init(void)
{
	int err = genl_register_family(&khook_family);

	if (!err)
		khook_events_on();
	return err;
}

void khook_netlink_exit(void)
{
	khook_events_off();
	genl_unregister_family(&khook_family);
}
