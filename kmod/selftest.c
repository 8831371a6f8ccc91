// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tried at load, before anybody can send a command: the classifier, the set, the
 * table of watches and the life of one. A failure refuses the load.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": selftest: " fmt

#include <linux/cgroup.h>
#include <linux/pid_namespace.h>
#include <linux/slab.h>

#include "classify.h"
#include "gate.h"
#include "hold.h"
#include "selftest.h"
#include "set.h"
#include "watch.h"

static u32 khook_passed;

u32 khook_selftests_passed(void)
{
	return khook_passed;
}

static u32 khook_failed;

static void khook_expect(bool holds, const char *what, int line)
{
	if (holds) {
		khook_passed++;
		return;
	}
	khook_failed++;
	pr_err("line %d: %s\n", line, what);
}

#define KHOOK_EXPECT(condition) khook_expect(condition, #condition, __LINE__)

/* ---- classify ---- */

static void khook_test_classes(void)
{
	static const u32 compute[] = { 0x90f1, 0xa06c, 0xc36f, 0xc86f, 0xca6f, 0xc3c0, 0xcbc0 };
	static const u32 query[] = { 0x0, 0x41, 0x80, 0x2080, 0x5, 0xc0, 0x6f, 0x1c36f, 0xc397 };
	int i;

	for (i = 0; i < ARRAY_SIZE(compute); i++)
		KHOOK_EXPECT(khook_is_compute_class(compute[i]));
	for (i = 0; i < ARRAY_SIZE(query); i++)
		KHOOK_EXPECT(!khook_is_compute_class(query[i]));
}

/* Without a user space the argument can't be read, and what can't be read is a query. */
static void khook_test_classifiers(void)
{
	unsigned int alloc = _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2b, 48);

	KHOOK_EXPECT(khook_classify(KHOOK_CLASSIFIER_ANY, 1, 0) == KHOOK_CLASS_COMPUTE);
	KHOOK_EXPECT(khook_classify(KHOOK_CLASSIFIER_NVIDIA_UVM, 1, 0) == KHOOK_CLASS_UVM);
	KHOOK_EXPECT(khook_classify(KHOOK_CLASSIFIER_NVIDIA_RM, 0x2a, 0) == KHOOK_CLASS_QUERY);
	KHOOK_EXPECT(khook_classify(KHOOK_CLASSIFIER_NVIDIA_RM, alloc, 0) == KHOOK_CLASS_QUERY);
}

/* ---- set ---- */

static void khook_test_set(void)
{
	static const char a, b;

	KHOOK_EXPECT(khook_set_is_empty());
	KHOOK_EXPECT(!khook_set_may_have(&a));
	khook_set_add(3, &a);
	khook_set_add(3, &a);
	khook_set_add(KHOOK_SET_PIDNS, &b);
	KHOOK_EXPECT(khook_set_may_have(&a) && khook_set_may_have(&b));
	KHOOK_EXPECT(khook_set.kinds == (BIT_ULL(3) | BIT_ULL(KHOOK_SET_PIDNS)));
	khook_set_del(3, &a);
	KHOOK_EXPECT(khook_set_may_have(&a));
	khook_set_del(KHOOK_SET_PIDNS, &b);
	KHOOK_EXPECT(khook_set.kinds == BIT_ULL(3));
	khook_set_del(3, &a);
	KHOOK_EXPECT(!khook_set_may_have(&a) && !khook_set.kinds && khook_set_is_empty());
}

static void khook_test_set_current(void)
{
	struct pid *pid = task_tgid(current);

	KHOOK_EXPECT(!khook_set_has_current());
	khook_set_add(KHOOK_SET_PROCESS, pid);
	KHOOK_EXPECT(khook_set_has_current());
	khook_set_del(KHOOK_SET_PROCESS, pid);
	KHOOK_EXPECT(!khook_set_has_current());
}

/* ---- the table ---- */

static struct khook_watch *khook_test_watch(void)
{
	struct khook_key key = { .kind = KHOOK_KEY_PROCESS, .pid = get_pid(task_tgid(current)) };
	struct khook_watch *w;

	mutex_lock(&khook_watch_mutex);
	w = khook_watch_new(&key, NULL);
	mutex_unlock(&khook_watch_mutex);
	return w;
}

static void khook_test_forget(struct khook_watch *w)
{
	mutex_lock(&khook_watch_mutex);
	khook_watch_remove(w);
	mutex_unlock(&khook_watch_mutex);
}

static void khook_test_table_of(struct khook_watch *w)
{
	struct khook_watch *found;

	KHOOK_EXPECT(w->id && khook_watch_count == 1 && w->state == KHOOK_WATCH_OPEN);
	found = khook_watch_get(w->id);
	KHOOK_EXPECT(found == w && kref_read(&w->ref) == 3);
	khook_watch_put(found);
	found = khook_watch_of_current(0);
	KHOOK_EXPECT(found == w);
	khook_watch_put(found);
	KHOOK_EXPECT(!khook_watch_of_current(w->id));
	KHOOK_EXPECT(!khook_watch_get(w->id + 1) && !khook_watch_get(0));
}

static void khook_test_table(void)
{
	struct khook_watch *w;
	u32 id = 0;
	int i;

	for (i = 0; i < 2; i++) {
		w = khook_test_watch();
		KHOOK_EXPECT(!IS_ERR(w));
		if (IS_ERR(w))
			return;
		KHOOK_EXPECT(!id || w->id == id + 1);
		id = w->id;
		khook_test_table_of(w);
		khook_test_forget(w);
		khook_watch_put(w);
		KHOOK_EXPECT(!khook_watch_count && !khook_watch_get(id));
	}
}

/* ---- the life of a watch ---- */

static void khook_test_set_state(struct khook_watch *w, enum khook_watch_state state)
{
	spin_lock(&w->lock);
	khook_watch_set_state(w, state);
	spin_unlock(&w->lock);
}

static void khook_test_passes(struct khook_watch *w, struct khook_hold *h)
{
	KHOOK_EXPECT(khook_watch_join(w, h, true) == KHOOK_JOIN_PASS);
	khook_test_set_state(w, KHOOK_WATCH_WATCHING);
	KHOOK_EXPECT(w->in_set && !khook_set_is_empty());
	h->caller.class = KHOOK_CLASS_QUERY;
	KHOOK_EXPECT(khook_watch_join(w, h, true) == KHOOK_JOIN_PASS);
	w->policy.return_on = KHOOK_RETURN_ON_ANY;
	KHOOK_EXPECT(khook_watch_join(w, h, false) == KHOOK_JOIN_BEGIN);
	KHOOK_EXPECT(w->state == KHOOK_WATCH_WATCHING && !khook_hold_total());
	w->policy.return_on = KHOOK_RETURN_ON_COMPUTE;
	h->caller.class = KHOOK_CLASS_COMPUTE;
}

static void khook_test_holds(struct khook_watch *w, struct khook_hold *a, struct khook_hold *b)
{
	struct khook_return done;
	u64 id;

	KHOOK_EXPECT(khook_watch_join(w, a, true) == KHOOK_JOIN_FIRST);
	id = w->ret.id;
	KHOOK_EXPECT(w->state == KHOOK_WATCH_HOLDING && id && w->ret.first_hold == a->id);
	KHOOK_EXPECT(khook_watch_join(w, b, false) == KHOOK_JOIN_HELD);
	KHOOK_EXPECT(a->return_id == id && b->return_id == id && b->id > a->id);
	KHOOK_EXPECT(w->nr_holds == 2 && w->ret.holds == 2 && khook_hold_total() == 2);

	/* A signal: it leaves and comes back to the same return. */
	KHOOK_EXPECT(khook_watch_leave(w, b) == KHOOK_VERDICT_WAIT);
	KHOOK_EXPECT(w->nr_holds == 1 && w->ret.holds == 1);
	KHOOK_EXPECT(khook_watch_join(w, b, false) == KHOOK_JOIN_HELD && b->return_id == id);

	KHOOK_EXPECT(!khook_watch_finish(w, id + 1, KHOOK_OUTCOME_RELEASED, &done));
	KHOOK_EXPECT(khook_watch_finish(w, id, KHOOK_OUTCOME_RELEASED, &done));
	KHOOK_EXPECT(done.id == id && done.holds == 2 && done.release_ns >= done.first_ns);
	KHOOK_EXPECT(khook_watch_leave(w, a) == KHOOK_VERDICT_GO);
	KHOOK_EXPECT(khook_watch_leave(w, b) == KHOOK_VERDICT_GO);
	KHOOK_EXPECT(w->state == KHOOK_WATCH_OPEN && !w->in_set && khook_set_is_empty());
	KHOOK_EXPECT(!khook_hold_total() && list_empty(&w->holds));
	KHOOK_EXPECT(!khook_watch_finish(w, 0, KHOOK_OUTCOME_RELEASED, &done));
}

static void khook_test_blocks(struct khook_watch *w, struct khook_hold *h)
{
	struct khook_return done;

	khook_test_set_state(w, KHOOK_WATCH_WATCHING);
	KHOOK_EXPECT(khook_watch_join(w, h, true) == KHOOK_JOIN_FIRST);
	KHOOK_EXPECT(khook_watch_finish(w, 0, KHOOK_OUTCOME_DEADLINE_EIO, &done));
	KHOOK_EXPECT(khook_watch_leave(w, h) == KHOOK_VERDICT_EIO);
	KHOOK_EXPECT(w->state == KHOOK_WATCH_BLOCKED && w->in_set);
	KHOOK_EXPECT(khook_watch_join(w, h, true) == KHOOK_JOIN_REFUSE);
	h->caller.class = KHOOK_CLASS_QUERY;
	KHOOK_EXPECT(khook_watch_join(w, h, true) == KHOOK_JOIN_PASS);
	KHOOK_EXPECT(khook_watch_release(w, done.id + 1) == -ESTALE);
	KHOOK_EXPECT(!khook_watch_release(w, done.id) && w->state == KHOOK_WATCH_OPEN);
	KHOOK_EXPECT(!khook_watch_release(w, 0) && !khook_watch_release(w, done.id));
	khook_test_set_state(w, KHOOK_WATCH_WATCHING);
	KHOOK_EXPECT(khook_watch_release(w, done.id) == -ESTALE);
	KHOOK_EXPECT(w->state == KHOOK_WATCH_WATCHING);
	KHOOK_EXPECT(!khook_watch_release(w, 0) && w->state == KHOOK_WATCH_OPEN);
}

/* A full table never stops an owner. */
static void khook_test_overflows(struct khook_watch *w, struct khook_hold *a, struct khook_hold *b)
{
	struct khook_return done;

	a->caller.class = KHOOK_CLASS_COMPUTE;
	khook_test_set_state(w, KHOOK_WATCH_WATCHING);
	khook_hold_limit = 0;
	KHOOK_EXPECT(khook_watch_join(w, a, true) == KHOOK_JOIN_OVERFLOW);
	KHOOK_EXPECT(w->state == KHOOK_WATCH_WATCHING && !khook_hold_total());
	khook_hold_limit = 1;
	KHOOK_EXPECT(khook_watch_join(w, a, true) == KHOOK_JOIN_FIRST);
	KHOOK_EXPECT(khook_watch_join(w, b, false) == KHOOK_JOIN_OVERFLOW);
	KHOOK_EXPECT(w->nr_holds == 1 && w->ret.holds == 1 && khook_hold_total() == 1);
	khook_hold_limit = KHOOK_MAX_HOLDS;
	KHOOK_EXPECT(khook_watch_finish(w, 0, KHOOK_OUTCOME_RELEASED, &done));
	KHOOK_EXPECT(khook_watch_leave(w, a) == KHOOK_VERDICT_GO && !khook_hold_total());
}

static void khook_test_life_of(struct khook_watch *w, struct khook_hold *holds,
			       struct khook_gate *gate)
{
	khook_hold_init(&holds[0], gate);
	khook_hold_init(&holds[1], gate);
	holds[0].caller.class = KHOOK_CLASS_COMPUTE;
	holds[1].caller.class = KHOOK_CLASS_UVM;
	khook_test_passes(w, &holds[0]);
	khook_test_holds(w, &holds[0], &holds[1]);
	khook_test_blocks(w, &holds[0]);
	khook_test_overflows(w, &holds[0], &holds[1]);
	khook_test_set_state(w, KHOOK_WATCH_OPEN);
}

static void khook_test_life(void)
{
	struct khook_key key = { .kind = KHOOK_KEY_PROCESS, .pid = get_pid(task_tgid(current)) };
	struct khook_hold *holds = kcalloc(2, sizeof(*holds), GFP_KERNEL);
	struct khook_gate *gate = kzalloc(sizeof(*gate), GFP_KERNEL);
	struct khook_watch *w = khook_watch_alloc(&key);

	KHOOK_EXPECT(gate && holds && w);
	if (gate && holds && w)
		khook_test_life_of(w, holds, gate);
	if (w)
		khook_watch_put(w);
	else
		khook_key_put(&key);
	kfree(holds);
	kfree(gate);
}

int khook_selftest(void)
{
	khook_test_classes();
	khook_test_classifiers();
	khook_test_set();
	khook_test_set_current();
	khook_test_table();
	khook_test_life();

	if (khook_failed) {
		pr_err("%u expectations failed, the module is not loaded\n", khook_failed);
		return -EINVAL;
	}
	pr_info("%u expectations hold\n", khook_passed);
	return 0;
}
