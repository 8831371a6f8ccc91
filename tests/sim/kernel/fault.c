// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults and slowness. Whoever waits here waits uninterruptibly, as in the real
 * driver, but wakes each second: the hung-task check takes a task that runs now
 * and then for alive, so that a test may hold the fault as long as it likes.
 */
#include <linux/delay.h>
#include <linux/module.h>

#include "nvsim.h"

static unsigned int teardown_ms_per_ctx;
module_param(teardown_ms_per_ctx, uint, 0644);
MODULE_PARM_DESC(teardown_ms_per_ctx, "time the last close takes for each context, in ms");

static unsigned int teardown_ms_per_gib;
module_param(teardown_ms_per_gib, uint, 0644);
MODULE_PARM_DESC(teardown_ms_per_gib, "time the last close takes for each GiB of memory, in ms");

/* Whoever waits for a lock of the one that tears down must stay below the hung-task limit. */
#define MAX_TEARDOWN_MS 100000u

static DECLARE_WAIT_QUEUE_HEAD(cleared);

void nvsim_fault_set(bool *flag, bool value)
{
	WRITE_ONCE(*flag, value);
	wake_up_all(&cleared);
}

static void wait_cleared(const bool *flag)
{
	while (READ_ONCE(*flag))
		wait_event_timeout(cleared, !READ_ONCE(*flag), HZ);
}

void nvsim_fault_wait_blocked(const struct nvsim_gpu *gpu)
{
	if (READ_ONCE(gpu->block))
		wait_cleared(&gpu->block);
}

/* The time a teardown takes; a stuck one (only at a last close) ends when cleared. */
void nvsim_fault_wait_teardown(unsigned long gpus, unsigned int contexts, u64 bytes, bool closing)
{
	u64 ms = (u64)contexts * READ_ONCE(teardown_ms_per_ctx) +
		 ((bytes >> 20) * READ_ONCE(teardown_ms_per_gib) >> 10);
	unsigned int index, part;

	if (closing)
		for_each_set_bit(index, &gpus, NVSIM_MAX_GPUS)
			wait_cleared(&nvsim_gpus[index].stuck);
	for (ms = min_t(u64, ms, MAX_TEARDOWN_MS); ms; ms -= part) {
		part = min_t(u64, ms, 1000);
		msleep(part);
	}
}
