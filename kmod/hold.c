// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cgroup.h>
#include <linux/kdev_t.h>
#include <linux/ktime.h>
#include <linux/pid_namespace.h>
#include <linux/sched/signal.h>

#include "agent.h"
#include "classify.h"
#include "event.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "lease.h"
#include "main.h"
#include "stat.h"
#include "tracepoints.h"

/* How many holds are let go before the watch's lock is given to others. */
#define KHOOK_LET_GO_BATCH 64

static atomic64_t khook_last_hold = ATOMIC64_INIT(0);
static atomic64_t khook_last_return = ATOMIC64_INIT(0);
static atomic_t khook_holds = ATOMIC_INIT(0);
u32 khook_hold_limit = KHOOK_MAX_HOLDS; /* the selftest tries a small one */

u32 khook_hold_total(void)
{
	return atomic_read(&khook_holds);
}

void khook_caller_init(struct khook_caller *caller)
{
	memset(caller, 0, sizeof(*caller));
	caller->pid = task_tgid_nr(current);
	caller->tid = task_pid_nr(current);
	get_task_comm(caller->comm, current);
	caller->pidns = task_active_pid_ns(current)->ns.inum;
	rcu_read_lock();
	caller->cgroup = cgroup_id(task_dfl_cgroup(current));
	rcu_read_unlock();
}

void khook_hold_init(struct khook_hold *h, struct khook_gate *gate)
{
	INIT_LIST_HEAD(&h->node);
	init_waitqueue_head(&h->wait);
	h->verdict = KHOOK_VERDICT_WAIT;
	h->gate = gate;
	khook_caller_init(&h->caller);
	h->caller.gate = gate->id;
}

/* ---- the state machine ---- */

static bool khook_watch_wants(struct khook_watch *w, const struct khook_hold *h)
{
	return w->policy.return_on == KHOOK_RETURN_ON_ANY || h->caller.class != KHOOK_CLASS_QUERY;
}

static void khook_return_start(struct khook_watch *w, const struct khook_hold *h)
{
	lockdep_assert_held(&w->lock);
	w->ret = (struct khook_return){
		.id = atomic64_inc_return(&khook_last_return),
		.first_ns = h->since_ns,
		.first_hold = h->id,
		.first = h->caller,
	};
	khook_watch_set_state(w, KHOOK_WATCH_HOLDING);
}

static bool khook_hold_link(struct khook_watch *w, struct khook_hold *h, bool begin)
{
	lockdep_assert_held(&w->lock);
	if (atomic_inc_return(&khook_holds) > khook_hold_limit) {
		atomic_dec(&khook_holds);
		return false;
	}
	atomic_inc(&h->gate->holds);
	h->verdict = KHOOK_VERDICT_WAIT;
	h->since_ns = ktime_get_ns();
	h->id = atomic64_inc_return(&khook_last_hold);
	if (begin)
		khook_return_start(w, h);
	h->return_id = w->ret.id;
	list_add_tail(&h->node, &w->holds);
	w->nr_holds++;
	w->ret.holds++;
	return true;
}

static void khook_hold_unlink(struct khook_watch *w, struct khook_hold *h)
{
	lockdep_assert_held(&w->lock);
	list_del_init(&h->node);
	w->nr_holds--;
	atomic_dec(&h->gate->holds);
	atomic_dec(&khook_holds);
}

/* The hold may be gone from its stack as soon as the lock is dropped. */
static void khook_hold_let_go(struct khook_watch *w, struct khook_hold *h,
			      enum khook_verdict verdict)
{
	lockdep_assert_held(&w->lock);
	khook_hold_unlink(w, h);
	WRITE_ONCE(h->verdict, verdict);
	wake_up(&h->wait);
}

enum khook_join khook_watch_join(struct khook_watch *w, struct khook_hold *h, bool begin)
{
	enum khook_join join = KHOOK_JOIN_PASS;

	spin_lock(&w->lock);
	if (w->state == KHOOK_WATCH_OPEN || !khook_watch_wants(w, h))
		join = KHOOK_JOIN_PASS;
	else if (w->state == KHOOK_WATCH_BLOCKED)
		join = KHOOK_JOIN_REFUSE;
	else if (w->state == KHOOK_WATCH_HOLDING)
		join = khook_hold_link(w, h, false) ? KHOOK_JOIN_HELD : KHOOK_JOIN_OVERFLOW;
	else if (!begin)
		join = KHOOK_JOIN_BEGIN;
	else
		join = khook_hold_link(w, h, true) ? KHOOK_JOIN_FIRST : KHOOK_JOIN_OVERFLOW;
	spin_unlock(&w->lock);
	return join;
}

/* A caller that leaves unasked was signalled; unless it dies it comes again. */
enum khook_verdict khook_watch_leave(struct khook_watch *w, struct khook_hold *h)
{
	enum khook_verdict verdict;

	spin_lock(&w->lock);
	verdict = h->verdict;
	if (verdict == KHOOK_VERDICT_WAIT) {
		khook_hold_unlink(w, h);
		if (!fatal_signal_pending(current) && w->ret.id == h->return_id)
			w->ret.holds--;
	}
	spin_unlock(&w->lock);
	return verdict;
}

/* Only those of the return that ended: a new one may have begun already. */
static void khook_watch_let_go(struct khook_watch *w, u64 return_id, enum khook_verdict verdict)
{
	struct khook_hold *h, *next;
	unsigned int n;

	do {
		n = 0;
		spin_lock(&w->lock);
		list_for_each_entry_safe(h, next, &w->holds, node) {
			if (h->return_id != return_id || n == KHOOK_LET_GO_BATCH)
				break;
			khook_hold_let_go(w, h, verdict);
			n++;
		}
		spin_unlock(&w->lock);
		cond_resched();
	} while (n == KHOOK_LET_GO_BATCH);
}

/* @return_id 0: whichever is the current one. */
bool khook_watch_finish(struct khook_watch *w, u64 return_id, enum khook_outcome outcome,
			struct khook_return *done)
{
	bool eio = outcome == KHOOK_OUTCOME_DEADLINE_EIO;

	spin_lock(&w->lock);
	if (w->state != KHOOK_WATCH_HOLDING || (return_id && w->ret.id != return_id)) {
		spin_unlock(&w->lock);
		return false;
	}
	w->ret.outcome = outcome;
	w->ret.release_ns = ktime_get_ns();
	khook_watch_set_state(w, eio ? KHOOK_WATCH_BLOCKED : KHOOK_WATCH_OPEN);
	*done = w->ret;
	spin_unlock(&w->lock);

	khook_watch_let_go(w, done->id, eio ? KHOOK_VERDICT_EIO : KHOOK_VERDICT_GO);
	return true;
}

/* ---- what follows from a step ---- */

static void khook_deadline_arm(struct khook_watch *w, u64 delay_ns)
{
	u64 ms = DIV_ROUND_UP_ULL(delay_ns, NSEC_PER_MSEC);

	kref_get(&w->ref);
	if (mod_delayed_work(khook_wq, &w->deadline, msecs_to_jiffies(ms)))
		khook_watch_put(w);
}

static void khook_deadline_disarm(struct khook_watch *w)
{
	if (cancel_delayed_work(&w->deadline))
		khook_watch_put(w);
}

static const enum khook_stat khook_outcome_stat[] = {
	[KHOOK_OUTCOME_RELEASED] = KHOOK_STAT_RELEASED,
	[KHOOK_OUTCOME_EMPTY] = KHOOK_STAT_EMPTY,
	[KHOOK_OUTCOME_DEADLINE] = KHOOK_STAT_DEADLINE,
	[KHOOK_OUTCOME_DEADLINE_EIO] = KHOOK_STAT_DEADLINE_EIO,
	[KHOOK_OUTCOME_ORPHAN] = KHOOK_STAT_ORPHAN,
	[KHOOK_OUTCOME_UNDETECTED] = KHOOK_STAT_UNDETECTED,
};

static void khook_watch_tell_end(struct khook_watch *w, const struct khook_return *done)
{
	bool late = done->outcome == KHOOK_OUTCOME_DEADLINE ||
		    done->outcome == KHOOK_OUTCOME_DEADLINE_EIO;

	trace_release(w->id, done);
	if (late || done->outcome == KHOOK_OUTCOME_ORPHAN)
		trace_failopen(w->id, done->id, done->outcome);
	if (late)
		pr_warn_ratelimited(
			"watch %u: return %llu of %s (pid %u) reached its deadline, %s, lease %s\n",
			w->id, done->id, done->first.comm, done->first.pid,
			done->outcome == KHOOK_OUTCOME_DEADLINE ? "let through" : "failed with EIO",
			done->empty_ns ? "empty" : "not empty");
	khook_event_release(w, done);
}

/*
 * Ends a return: the callers first, then everybody else. False if that return
 * isn't the current one any more.
 */
bool khook_watch_end(struct khook_watch *w, u64 return_id, enum khook_outcome outcome)
{
	struct khook_return done;

	if (!khook_watch_finish(w, return_id, outcome, &done))
		return false;
	khook_stat_inc(khook_outcome_stat[outcome]);
	khook_deadline_disarm(w);
	khook_gates_settle();
	mutex_lock(&w->say);
	khook_watch_tell_end(w, &done);
	mutex_unlock(&w->say);
	return true;
}

void khook_deadline_work(struct work_struct *work)
{
	struct khook_watch *w = container_of(to_delayed_work(work), struct khook_watch, deadline);
	u64 due, id, now = ktime_get_ns();
	enum khook_outcome outcome;
	bool holding;

	spin_lock(&w->lock);
	holding = w->state == KHOOK_WATCH_HOLDING;
	due = w->ret.first_ns + w->policy.deadline_ms * (u64)NSEC_PER_MSEC;
	id = w->ret.id;
	outcome = w->policy.at_deadline == KHOOK_DEADLINE_EIO ? KHOOK_OUTCOME_DEADLINE_EIO :
								KHOOK_OUTCOME_DEADLINE;
	spin_unlock(&w->lock);

	if (holding && now < due)
		khook_deadline_arm(w, due - now);
	else if (holding)
		khook_watch_end(w, id, outcome);
	khook_watch_put(w);
}

/*
 * No agent: khook kills what the lease names, whatever the policy says, and lets
 * the owner through when it is empty.
 */
void khook_watch_orphan(struct khook_watch *w)
{
	struct khook_return ret;
	bool news;

	mutex_lock(&w->say);
	spin_lock(&w->lock);
	news = w->state == KHOOK_WATCH_HOLDING && !w->ret.orphaned;
	if (news)
		w->ret.orphaned = true;
	ret = w->ret;
	spin_unlock(&w->lock);
	if (news) {
		pr_warn_ratelimited("watch %u: return %llu of %s (pid %u) has no agent, evicting alone\n",
				    w->id, ret.id, ret.first.comm, ret.first.pid);
		khook_event_orphan(w, &ret);
	}
	mutex_unlock(&w->say);
	if (news)
		khook_evict_queue(w);
}

/* The caller holds ->say, so that nothing is said of this return before its HOLD. */
static void khook_return_begin(struct khook_watch *w)
{
	struct khook_return ret;

	khook_stat_inc(KHOOK_STAT_RETURNS);
	khook_deadline_arm(w, w->policy.deadline_ms * (u64)NSEC_PER_MSEC);

	/* The dying takes longest by far: signals before words. */
	khook_lease_kill(w);

	spin_lock(&w->lock);
	ret = w->ret;
	spin_unlock(&w->lock);
	khook_event_hold(w, &ret);
}

static enum khook_join khook_watch_enter(struct khook_watch *w, struct khook_hold *h)
{
	enum khook_join join = khook_watch_join(w, h, false);

	if (join != KHOOK_JOIN_BEGIN)
		return join;

	mutex_lock(&w->say);
	join = khook_watch_join(w, h, true);
	if (join == KHOOK_JOIN_FIRST)
		khook_return_begin(w);
	mutex_unlock(&w->say);

	if (join == KHOOK_JOIN_FIRST) {
		if (khook_agent_is_gone())
			khook_watch_orphan(w);
		khook_evict_start(w);
	}
	return join;
}

static int khook_hold_wait(struct khook_watch *w, struct khook_hold *h)
{
	trace_hold(w->id, h);
	wait_event_interruptible(h->wait, READ_ONCE(h->verdict) != KHOOK_VERDICT_WAIT);

	switch (khook_watch_leave(w, h)) {
	case KHOOK_VERDICT_GO:
		return 0;
	case KHOOK_VERDICT_EIO:
		return -EIO;
	case KHOOK_VERDICT_GONE:
		return -ENODEV;
	case KHOOK_VERDICT_WAIT:
		break;
	}
	/*
	 * The driver has not run, so the call can start afresh after the handler,
	 * even one without SA_RESTART: -ERESTARTSYS would leak EINTR there.
	 */
	khook_stat_inc(KHOOK_STAT_RESTARTED);
	return -ERESTARTNOINTR;
}

static int khook_hold_in(struct khook_watch *w, struct khook_hold *h)
{
	switch (khook_watch_enter(w, h)) {
	case KHOOK_JOIN_REFUSE:
		return -EIO;
	case KHOOK_JOIN_FIRST:
	case KHOOK_JOIN_HELD:
		return khook_hold_wait(w, h);
	case KHOOK_JOIN_OVERFLOW:
		khook_stat_inc(KHOOK_STAT_OVERFLOW);
		trace_failopen(w->id, 0, KHOOK_OUTCOME_UNSPEC);
		break;
	case KHOOK_JOIN_BEGIN:
	case KHOOK_JOIN_PASS:
		break;
	}
	return 0;
}

/* 0: the driver's handler may run. */
int khook_hold(struct khook_gate *gate, struct file *file, unsigned int cmd, unsigned long arg)
{
	struct khook_hold h;
	struct khook_watch *w;
	u32 after = 0;
	int err;

	if (khook_fence_refuses())
		return -ENODEV;

	khook_hold_init(&h, gate);
	h.caller.dev = new_encode_dev(file_inode(file)->i_rdev);
	h.caller.cmd = cmd;
	h.caller.class = khook_classify(gate->classifier, cmd, arg);

	while ((w = khook_watch_of_current(after))) {
		after = w->id;
		err = khook_hold_in(w, &h);
		khook_watch_put(w);
		if (err)
			return err;
	}
	return READ_ONCE(gate->state) == KHOOK_GATE_LOST ? -ENODEV : 0;
}

static void khook_watch_set(struct khook_watch *w, const struct khook_policy *policy)
{
	bool holding;

	spin_lock(&w->lock);
	w->policy = *policy;
	holding = w->state == KHOOK_WATCH_HOLDING;
	if (!holding)
		khook_watch_set_state(w, KHOOK_WATCH_WATCHING);
	spin_unlock(&w->lock);

	if (holding) {
		/* The policy may ask for another deadline, or to act where it didn't. */
		khook_deadline_arm(w, 0);
		khook_evict_queue(w);
	}
}

/* DETECT. Takes over the key; the caller gets a reference to the watch. */
struct khook_watch *khook_watch_detect(struct khook_key *key, const struct khook_policy *policy,
				       bool *created, struct netlink_ext_ack *extack)
{
	struct khook_watch *w;

	mutex_lock(&khook_watch_mutex);
	w = khook_watch_find_key(key);
	*created = !w;
	if (w)
		khook_key_put(key);
	else
		w = khook_watch_new(key, extack);
	if (!IS_ERR(w))
		khook_watch_set(w, policy);
	mutex_unlock(&khook_watch_mutex);
	return w;
}

/* Stops nobody from now on. A return that has begun is not touched. */
void khook_watch_open(struct khook_watch *w)
{
	spin_lock(&w->lock);
	if (w->state != KHOOK_WATCH_HOLDING)
		khook_watch_set_state(w, KHOOK_WATCH_OPEN);
	spin_unlock(&w->lock);
	khook_gates_settle();
}

/* UNDETECT. Out of the table first, so that nobody sets it again. */
void khook_watch_undetect(struct khook_watch *w)
{
	mutex_lock(&khook_watch_mutex);
	khook_watch_remove(w);
	mutex_unlock(&khook_watch_mutex);
	khook_watch_open(w);
	khook_watch_end(w, 0, KHOOK_OUTCOME_UNDETECTED);
	khook_evict_stop(w);
}

/*
 * RELEASE. Naming a return protects a watch that was set again meanwhile: such
 * a return isn't the current one, even if none has begun since.
 */
int khook_watch_release(struct khook_watch *w, u64 return_id)
{
	bool current_one, again;

	do {
		if (khook_watch_end(w, return_id, KHOOK_OUTCOME_RELEASED))
			return 0;
		spin_lock(&w->lock);
		current_one = !return_id ||
			      (w->ret.id == return_id && w->state != KHOOK_WATCH_WATCHING);
		again = current_one && w->state == KHOOK_WATCH_HOLDING;
		if (current_one && !again)
			khook_watch_set_state(w, KHOOK_WATCH_OPEN);
		spin_unlock(&w->lock);
	} while (again);
	khook_gates_settle();
	return current_one ? 0 : -ESTALE;
}

/* Lets go the holds of all watches that @id (or, if 0, @gate) names. */
static unsigned int khook_holds_let_go(u64 id, struct khook_gate *gate, enum khook_verdict verdict)
{
	struct khook_hold *h, *next;
	struct khook_watch *w;
	unsigned int n = 0;

	mutex_lock(&khook_watch_mutex);
	khook_for_each_watch(w) {
		spin_lock(&w->lock);
		list_for_each_entry_safe(h, next, &w->holds, node) {
			if (id ? h->id != id : h->gate != gate)
				continue;
			khook_hold_let_go(w, h, verdict);
			n++;
		}
		spin_unlock(&w->lock);
	}
	mutex_unlock(&khook_watch_mutex);
	return n;
}

int khook_hold_release(u64 id)
{
	return id && khook_holds_let_go(id, NULL, KHOOK_VERDICT_GO) ? 0 : -ENOENT;
}

void khook_hold_gate_gone(struct khook_gate *gate)
{
	khook_holds_let_go(0, gate, KHOOK_VERDICT_GONE);
}
