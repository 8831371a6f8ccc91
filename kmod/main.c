// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/rcupdate.h>

#include "agent.h"
#include "fence.h"
#include "gate.h"
#include "hold.h"
#include "lease.h"
#include "main.h"
#include "netlink.h"
#include "selftest.h"
#include "stat.h"
#include "watch.h"

#define CREATE_TRACE_POINTS
#include "tracepoints.h"

struct workqueue_struct *khook_wq;
struct workqueue_struct *khook_slow_wq;
atomic64_t khook_stats[KHOOK_STAT_MAX];

/* Deadlines have a queue of their own, where no eviction can be before them. */
static int khook_queues_init(void)
{
	khook_wq = alloc_workqueue("khook", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	if (!khook_wq)
		return -ENOMEM;
	khook_slow_wq = alloc_workqueue("khook_slow", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	if (!khook_slow_wq) {
		destroy_workqueue(khook_wq);
		return -ENOMEM;
	}
	return 0;
}

static void khook_queues_exit(void)
{
	destroy_workqueue(khook_slow_wq);
	destroy_workqueue(khook_wq);
}

/* Nobody is held: a held call keeps the module. Works may still be running. */
static void khook_watches_exit(void)
{
	struct khook_watch *w;

	while ((w = khook_watch_after(0))) {
		khook_watch_undetect(w);
		if (cancel_delayed_work_sync(&w->deadline))
			khook_watch_put(w);
		if (cancel_work_sync(&w->evict))
			khook_watch_put(w);
		khook_watch_put(w);
	}
}

static int __init khook_init(void)
{
	int err;

	err = khook_queues_init();
	if (err)
		return err;
	err = khook_gates_init();
	if (err)
		goto err_queues;
	err = khook_selftest();
	if (err)
		goto err_gates;
	err = khook_agent_init();
	if (err)
		goto err_gates;
	err = khook_netlink_init();
	if (err)
		goto err_agent;
	pr_info("generic netlink family %s, version %d\n", KHOOK_GENL_NAME, KHOOK_GENL_VERSION);
	return 0;

err_agent:
	khook_agent_exit();
err_gates:
	khook_gates_exit();
err_queues:
	khook_queues_exit();
	return err;
}

static void __exit khook_exit(void)
{
	khook_netlink_exit();
	khook_agent_exit();
	khook_watches_exit();
	khook_fence_drop_all();
	khook_gates_exit();
	khook_queues_exit();
	/*
	 * A wrapper's last act is to drop its module reference. Its task may have
	 * been preempted between that and the return.
	 */
	synchronize_rcu_tasks();
}

module_init(khook_init);
module_exit(khook_exit);

MODULE_DESCRIPTION("Holds an owner's GPU ioctl while its lent device is taken back");
MODULE_AUTHOR("spotgpu");
MODULE_VERSION("0.1.0");
MODULE_LICENSE("GPL");
