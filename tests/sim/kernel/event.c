// SPDX-License-Identifier: GPL-2.0-only
/* Events: an Xid on a GPU, queued on each open file that asked for it. */
#include "nvsim.h"

#define EVENT_XID_CRITICAL 8 /* NVML's nvmlEventTypeXidCriticalError */

u32 nvsim_event_register(struct nvsim_file *nvfile, const struct nvsim_event_register *args)
{
	if (!nvsim_gpu_get(args->gpu))
		return NV_ERR_INVALID_DEVICE;
	spin_lock(&nvfile->event_lock);
	nvfile->event_types[args->gpu] |= args->types;
	spin_unlock(&nvfile->event_lock);
	return NV_OK;
}

bool nvsim_event_pending(struct nvsim_file *nvfile)
{
	return READ_ONCE(nvfile->event_count);
}

void nvsim_event_read(struct nvsim_file *nvfile, struct nvsim_event_read *out)
{
	memset(out, 0, sizeof(*out));
	spin_lock(&nvfile->event_lock);
	if (nvfile->event_count) {
		*out = nvfile->events[nvfile->event_head];
		nvfile->event_head = (nvfile->event_head + 1) % NVSIM_EVENTS;
		nvfile->event_count--;
	}
	spin_unlock(&nvfile->event_lock);
}

static void event_push(struct nvsim_file *nvfile, const struct nvsim_event_read *event)
{
	bool wanted;

	spin_lock(&nvfile->event_lock);
	wanted = nvfile->event_types[event->gpu] & event->type;
	if (wanted) {
		if (nvfile->event_count == NVSIM_EVENTS) {
			nvfile->event_head = (nvfile->event_head + 1) % NVSIM_EVENTS;
			nvfile->event_count--;
		}
		nvfile->events[(nvfile->event_head + nvfile->event_count++) % NVSIM_EVENTS] =
			*event;
	}
	spin_unlock(&nvfile->event_lock);
	if (wanted)
		wake_up_interruptible(&nvfile->event_wait);
}

void nvsim_event_xid(struct nvsim_gpu *gpu, u64 xid)
{
	struct nvsim_event_read event = {
		.valid = 1,
		.gpu = gpu->index,
		.type = EVENT_XID_CRITICAL,
		.data = xid,
	};
	struct nvsim_file *nvfile;

	pr_info("NVRM: Xid (PCI:%04x:%02x:%02x): %llu, simulated\n", gpu->domain, gpu->bus,
		gpu->slot, xid);
	mutex_lock(&nvsim_state);
	list_for_each_entry(nvfile, &nvsim_files, list)
		event_push(nvfile, &event);
	mutex_unlock(&nvsim_state);
}
