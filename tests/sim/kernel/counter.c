// SPDX-License-Identifier: GPL-2.0-only
/* Counters: how often each operation was executed since the module was loaded. */
#include "nvsim.h"

static atomic64_t counters[NVSIM_COUNTERS];

static const char *const names[NVSIM_COUNTERS] = {
	[NVSIM_ALLOC_ROOT] = "alloc_root",
	[NVSIM_ALLOC_DEVICE] = "alloc_device",
	[NVSIM_ALLOC_SUBDEVICE] = "alloc_subdevice",
	[NVSIM_ALLOC_VASPACE] = "alloc_vaspace",
	[NVSIM_ALLOC_CHANNEL_GROUP] = "alloc_channel_group",
	[NVSIM_ALLOC_GPFIFO] = "alloc_gpfifo",
	[NVSIM_ALLOC_COMPUTE] = "alloc_compute",
	[NVSIM_ALLOC_MEMORY] = "alloc_memory",
	[NVSIM_ALLOC_UNKNOWN] = "alloc_unknown",
	[NVSIM_ALLOC_FAILED] = "alloc_failed",
	[NVSIM_RM_FREE] = "free",
	[NVSIM_RM_CONTROL] = "control",
	[NVSIM_RM_MAP] = "map",
	[NVSIM_FRONTEND] = "frontend",
	[NVSIM_UVM_INITIALIZE] = "uvm_initialize",
	[NVSIM_UVM_DEINITIALIZE] = "uvm_deinitialize",
	[NVSIM_UVM_MM_INITIALIZE] = "uvm_mm_initialize",
	[NVSIM_UVM_REGISTER_GPU] = "uvm_register_gpu",
	[NVSIM_UVM_REGISTER_GPU_VASPACE] = "uvm_register_gpu_vaspace",
	[NVSIM_UVM_REGISTER_CHANNEL] = "uvm_register_channel",
	[NVSIM_UVM_MAP_EXTERNAL] = "uvm_map_external",
	[NVSIM_UVM_UNKNOWN] = "uvm_unknown",
	[NVSIM_UVM_FAILED] = "uvm_failed",
	[NVSIM_COMPUTE] = "compute",
	[NVSIM_OPEN] = "opens",
	[NVSIM_CLOSE] = "closes",
	[NVSIM_LAUNCH] = "launches",
	[NVSIM_COUNT_NATIVE] = "count",
	[NVSIM_COUNT_COMPAT] = "count_compat",
	[NVSIM_COUNT_PLAIN] = "plain",
};

s64 nvsim_counter_add(enum nvsim_counter counter)
{
	return atomic64_inc_return(&counters[counter]);
}

void nvsim_counter_show(struct seq_file *out)
{
	int i;

	for (i = 0; i < NVSIM_COUNTERS; i++)
		seq_printf(out, "%s %lld\n", names[i], atomic64_read(&counters[i]));
}
