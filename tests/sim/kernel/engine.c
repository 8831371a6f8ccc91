// SPDX-License-Identifier: GPL-2.0-only
/*
 * The engine of a GPU: looks at the doorbell page of every channel each
 * sample_ms, runs the launches it finds and remembers when there was work. It
 * stands still while the GPU has no channel.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>

#include "nvsim.h"

#define WINDOW_NS NSEC_PER_SEC

static unsigned int sample_ms = 20;
module_param(sample_ms, uint, 0644);
MODULE_PARM_DESC(sample_ms, "how often doorbells are looked at, in ms");

struct workqueue_struct *nvsim_wq;

int nvsim_engine_init(void)
{
	nvsim_wq = alloc_workqueue("nvsim", WQ_UNBOUND, 0);
	return nvsim_wq ? 0 : -ENOMEM;
}

void nvsim_engine_exit(void)
{
	destroy_workqueue(nvsim_wq);
}

/* The words of device memory from `offset` on, as far as they are contiguous. */
static u32 *memory_run(struct nvsim_object *memory, u64 offset, u32 *count)
{
	struct page *page = nvsim_object_page(memory, offset >> PAGE_SHIFT);

	*count = min_t(u32, *count, (PAGE_SIZE - offset_in_page(offset)) / sizeof(u32));
	return page ? page_address(page) + offset_in_page(offset) : NULL;
}

static u32 add_u32(struct nvsim_object *memory[3], const struct nvsim_launch *launch)
{
	u32 *words[3];
	u32 done, run, i;

	for (done = 0; done < launch->count; done += run) {
		run = launch->count - done;
		for (i = 0; i < 3; i++) {
			words[i] = memory_run(memory[i], launch->offset[i] + 4ull * done, &run);
			if (!words[i])
				return NV_ERR_NO_MEMORY;
		}
		for (i = 0; i < run; i++)
			WRITE_ONCE(words[2][i], READ_ONCE(words[0][i]) + READ_ONCE(words[1][i]));
		cond_resched();
	}
	return NV_OK;
}

static bool operand_fits(const struct nvsim_object *channel, const struct nvsim_object *memory,
			 u64 offset, u32 count)
{
	return memory && memory->class == NV01_MEMORY_LOCAL_USER && memory->gpu == channel->gpu &&
	       IS_ALIGNED(offset, sizeof(u32)) && offset <= memory->size &&
	       4ull * count <= memory->size - offset;
}

static u32 launch_run(struct nvsim_object *channel, const struct nvsim_launch *launch)
{
	struct nvsim_object *memory[3];
	u32 status = NV_OK;
	int i;

	if (READ_ONCE(channel->gpu->lost))
		return NV_ERR_GPU_IS_LOST;
	if (launch->op != NVSIM_OP_ADD_U32)
		return NV_ERR_INVALID_COMMAND;
	for (i = 0; i < 3; i++) {
		memory[i] = nvsim_object_find(channel->client, launch->memory[i]);
		if (!operand_fits(channel, memory[i], launch->offset[i], launch->count))
			status = NV_ERR_INVALID_ARGUMENT;
	}
	if (status == NV_OK)
		status = add_u32(memory, launch);
	for (i = 0; i < 3; i++)
		if (memory[i])
			nvsim_object_put(memory[i]);
	nvsim_counter_add(NVSIM_LAUNCH);
	return status;
}

/* Run what was put on the ring; the page is the owner's, so nothing on it is trusted. */
static bool ring_serve(struct nvsim_object *channel, struct nvsim_doorbell *bell)
{
	u64 put = smp_load_acquire(&bell->put); /* with the owner's release: the ring is filled */
	u64 get = READ_ONCE(bell->get);
	struct nvsim_launch launch;
	u32 status, n;

	for (n = 0; get != put && n < NVSIM_RING; n++) {
		memcpy(&launch, &bell->ring[get % NVSIM_RING], sizeof(launch));
		status = launch_run(channel, &launch);
		if (status != NV_OK && !READ_ONCE(bell->status))
			WRITE_ONCE(bell->status, status);
		/* The result is there before the owner looks. */
		smp_store_release(&bell->get, ++get);
	}
	return n;
}

static bool channel_serve(struct nvsim_object *channel)
{
	struct nvsim_doorbell *bell = page_address(nvsim_object_page(channel, 0));
	bool launched = ring_serve(channel, bell);
	u64 submitted = READ_ONCE(bell->submitted);
	bool moved = submitted != channel->seen;

	channel->seen = submitted;
	if (!READ_ONCE(channel->gpu->lost))
		WRITE_ONCE(bell->completed, submitted);
	return launched || moved;
}

static void sample_add(struct nvsim_gpu *gpu, u64 at_ns, u64 busy_ns)
{
	struct nvsim_sample *sample;

	spin_lock(&gpu->sample_lock);
	sample = &gpu->samples[gpu->next_sample++ % NVSIM_SAMPLES];
	sample->at_ns = at_ns;
	sample->busy_ns = busy_ns;
	spin_unlock(&gpu->sample_lock);
}

static void tick_next(struct nvsim_gpu *gpu)
{
	queue_delayed_work(nvsim_wq, &gpu->tick, msecs_to_jiffies(max(READ_ONCE(sample_ms), 1u)));
}

void nvsim_engine_tick(struct work_struct *work)
{
	struct nvsim_gpu *gpu = container_of(to_delayed_work(work), struct nvsim_gpu, tick);
	struct nvsim_object *channel;
	u64 now = ktime_get_ns();
	bool busy = false;

	mutex_lock(&gpu->engine_lock);
	list_for_each_entry(channel, &gpu->channels, channel)
		busy |= channel_serve(channel);
	if (busy)
		sample_add(gpu, now, now - gpu->last_tick_ns);
	gpu->last_tick_ns = now;
	if (!list_empty(&gpu->channels))
		tick_next(gpu);
	mutex_unlock(&gpu->engine_lock);
}

void nvsim_engine_add(struct nvsim_object *channel)
{
	struct nvsim_gpu *gpu = channel->gpu;

	mutex_lock(&gpu->engine_lock);
	if (list_empty(&gpu->channels)) {
		gpu->last_tick_ns = ktime_get_ns();
		tick_next(gpu);
	}
	list_add_tail(&channel->channel, &gpu->channels);
	mutex_unlock(&gpu->engine_lock);
}

/* After this the engine touches neither the channel nor its client. */
void nvsim_engine_remove(struct nvsim_object *object)
{
	if (!object->gpu)
		return;
	mutex_lock(&object->gpu->engine_lock);
	list_del_init(&object->channel);
	mutex_unlock(&object->gpu->engine_lock);
}

/* Percent of the last second in which there was work. */
u32 nvsim_engine_utilisation(struct nvsim_gpu *gpu)
{
	u64 now = ktime_get_ns();
	u64 busy = 0;
	u64 age;
	int i;

	spin_lock(&gpu->sample_lock);
	for (i = 0; i < NVSIM_SAMPLES; i++) {
		age = now - gpu->samples[i].at_ns;
		if (gpu->samples[i].at_ns && age < WINDOW_NS)
			busy += min(gpu->samples[i].busy_ns, WINDOW_NS - age);
	}
	spin_unlock(&gpu->sample_lock);
	return min_t(u64, 100, (busy * 100 + WINDOW_NS / 2) / WINDOW_NS);
}
