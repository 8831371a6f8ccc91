// SPDX-License-Identifier: GPL-2.0-only
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/netlink.h>
#include <linux/pid_namespace.h>
#include <linux/slab.h>

#include "fence.h"
#include "hold.h"
#include "lease.h"
#include "watch.h"

#define KHOOK_WATCH_HASH_BITS 8

/* Writers hold khook_watch_mutex; callers look a watch up by key under RCU. */
static DEFINE_HASHTABLE(khook_watch_hash, KHOOK_WATCH_HASH_BITS);
DEFINE_MUTEX(khook_watch_mutex);
LIST_HEAD(khook_watch_list); /* ascending id, which is how dumps continue */
u32 khook_watch_count;
static u32 khook_watch_last_id;

/* Takes over the key's reference; in no table yet. */
struct khook_watch *khook_watch_alloc(struct khook_key *key)
{
	struct khook_watch *w = kzalloc(sizeof(*w), GFP_KERNEL_ACCOUNT);

	if (!w)
		return NULL;
	kref_init(&w->ref);
	w->key = *key;
	mutex_init(&w->say);
	mutex_init(&w->lease_lock);
	spin_lock_init(&w->lock);
	INIT_LIST_HEAD(&w->holds);
	INIT_LIST_HEAD(&w->by_id);
	INIT_DELAYED_WORK(&w->deadline, khook_deadline_work);
	INIT_WORK(&w->evict, khook_evict_work);
	w->state = KHOOK_WATCH_OPEN;
	return w;
}

static void khook_watch_free(struct kref *ref)
{
	struct khook_watch *w = container_of(ref, struct khook_watch, ref);

	khook_lease_drop_all(w);
	khook_key_put(&w->key);
	kfree_rcu(w, rcu);
}

void khook_watch_put(struct khook_watch *w)
{
	kref_put(&w->ref, khook_watch_free);
}

/* The caller holds khook_watch_mutex or RCU. */
static struct khook_watch *khook_watch_lookup(const void *ptr)
{
	struct khook_watch *w;

	hash_for_each_possible_rcu(khook_watch_hash, w, by_key, (unsigned long)ptr,
				   lockdep_is_held(&khook_watch_mutex))
		if (w->key.ptr == ptr)
			return w;
	return NULL;
}

/* A reference, or NULL. */
struct khook_watch *khook_watch_find_key(const struct khook_key *key)
{
	struct khook_watch *w;

	lockdep_assert_held(&khook_watch_mutex);
	w = khook_watch_lookup(key->ptr);
	if (w)
		kref_get(&w->ref);
	return w;
}

/* The watch with the smallest id above @id, with a reference. */
struct khook_watch *khook_watch_after(u32 id)
{
	struct khook_watch *found = NULL, *w;

	mutex_lock(&khook_watch_mutex);
	khook_for_each_watch(w) {
		if (w->id > id) {
			kref_get(&w->ref);
			found = w;
			break;
		}
	}
	mutex_unlock(&khook_watch_mutex);
	return found;
}

struct khook_watch *khook_watch_get(u32 id)
{
	struct khook_watch *w = id ? khook_watch_after(id - 1) : NULL;

	if (w && w->id != id) {
		khook_watch_put(w);
		w = NULL;
	}
	return w;
}

static void khook_watch_keep_lower(struct khook_watch **best, const void *ptr, u32 after)
{
	struct khook_watch *w = khook_watch_lookup(ptr);

	if (w && w->id > after && (!*best || w->id < (*best)->id))
		*best = w;
}

static struct khook_watch *khook_watch_lowest(u32 after)
{
	struct cgroup *cgrp = task_dfl_cgroup(current);
	struct khook_watch *best = NULL;
	struct pid_namespace *ns;
	int level;

	for (level = 1; level <= cgrp->level; level++)
		khook_watch_keep_lower(&best, cgrp->ancestors[level], after);
	for (ns = task_active_pid_ns(current); ns && ns->level; ns = ns->parent)
		khook_watch_keep_lower(&best, ns, after);
	khook_watch_keep_lower(&best, task_tgid(current), after);
	return best;
}

/*
 * The caller may be in several watches (a pod's and its container's). It asks
 * for them in the order of their ids, each once, so that being let through by
 * one is never undone by it being set again.
 */
struct khook_watch *khook_watch_of_current(u32 after)
{
	struct khook_watch *w;

	rcu_read_lock();
	do {
		w = khook_watch_lowest(after);
	} while (w && !kref_get_unless_zero(&w->ref));
	rcu_read_unlock();
	return w;
}

static int khook_watch_check(const struct khook_key *key, struct netlink_ext_ack *extack)
{
	lockdep_assert_held(&khook_watch_mutex);
	if (khook_watch_count >= KHOOK_MAX_WATCHES || khook_watch_last_id == U32_MAX) {
		NL_SET_ERR_MSG_MOD(extack, "there are as many watches as there can be");
		return -ENOSPC;
	}
	/* Owner first: a watch and a fence never meet in one cgroup. */
	if (key->kind == KHOOK_KEY_CGROUP && khook_fence_overlaps(key->cgroup)) {
		NL_SET_ERR_MSG_MOD(extack, "the cgroup is fenced, or above or below one that is");
		return -EINVAL;
	}
	return 0;
}

/* Takes over the key. The table and the caller have a reference each. */
struct khook_watch *khook_watch_new(struct khook_key *key, struct netlink_ext_ack *extack)
{
	struct khook_watch *w;
	int err = khook_watch_check(key, extack);

	w = err ? NULL : khook_watch_alloc(key);
	if (!w) {
		khook_key_put(key);
		return ERR_PTR(err ?: -ENOMEM);
	}
	kref_get(&w->ref);
	w->id = ++khook_watch_last_id;
	list_add_tail(&w->by_id, &khook_watch_list);
	hash_add_rcu(khook_watch_hash, &w->by_key, (unsigned long)w->key.ptr);
	WRITE_ONCE(khook_watch_count, khook_watch_count + 1);
	return w;
}

/* Drops the table's reference; the caller has its own. */
void khook_watch_remove(struct khook_watch *w)
{
	lockdep_assert_held(&khook_watch_mutex);
	if (list_empty(&w->by_id))
		return;
	hash_del_rcu(&w->by_key);
	list_del_init(&w->by_id);
	WRITE_ONCE(khook_watch_count, khook_watch_count - 1);
	khook_watch_put(w);
}

/* An OPEN watch stops nobody, so its callers need not even be looked at. */
void khook_watch_set_state(struct khook_watch *w, enum khook_watch_state state)
{
	bool in_set = state != KHOOK_WATCH_OPEN;

	lockdep_assert_held(&w->lock);
	WRITE_ONCE(w->state, state);
	if (in_set == w->in_set)
		return;
	w->in_set = in_set;
	if (in_set)
		khook_set_add(khook_key_set_kind(&w->key), w->key.ptr);
	else
		khook_set_del(khook_key_set_kind(&w->key), w->key.ptr);
}

bool khook_watch_overlaps(struct cgroup *cgrp)
{
	struct khook_watch *w;

	lockdep_assert_held(&khook_watch_mutex);
	khook_for_each_watch(w)
		if (w->key.kind == KHOOK_KEY_CGROUP && khook_cgroups_overlap(w->key.cgroup, cgrp))
			return true;
	return false;
}
