// SPDX-License-Identifier: GPL-2.0-only
/* The GPUs: how many, which, where. */
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/string.h>

#include "nvsim.h"

struct nvsim_gpu nvsim_gpus[NVSIM_MAX_GPUS];

int nvsim_gpu_count = 8;
module_param_named(gpus, nvsim_gpu_count, int, 0444);
MODULE_PARM_DESC(gpus, "number of GPUs, 1 to 16");

static unsigned int memory_mib = 81559;
module_param(memory_mib, uint, 0444);
MODULE_PARM_DESC(memory_mib, "memory of each GPU in MiB");

unsigned int nvsim_reserved_mib = 1;
module_param_named(reserved_mib, nvsim_reserved_mib, uint, 0444);
MODULE_PARM_DESC(reserved_mib, "memory of each GPU used when nobody uses it, in MiB");

static char *uuids[NVSIM_MAX_GPUS];
static int uuids_given;
module_param_array(uuids, charp, &uuids_given, 0444);
MODULE_PARM_DESC(
	uuids, "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx of each GPU; made from `seed` by default");

static unsigned int seed = 1;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "what the UUIDs are made from");

static char *pci[NVSIM_MAX_GPUS];
static int pci_given;
module_param_array(pci, charp, &pci_given, 0444);
MODULE_PARM_DESC(pci, "PCI address of each GPU, as 0000:1b:00");

static int numa[NVSIM_MAX_GPUS];
static int numa_given;
module_param_array(numa, int, &numa_given, 0444);
MODULE_PARM_DESC(numa, "NUMA node of each GPU; by default the first half is on 0, the rest on 1");

char *nvsim_driver_version = "570.172.08";
module_param_named(driver_version, nvsim_driver_version, charp, 0444);
MODULE_PARM_DESC(driver_version, "driver version to report");

char *nvsim_gpu_name = "NVIDIA H100 80GB HBM3 (simulated)";
module_param_named(name, nvsim_gpu_name, charp, 0444);
MODULE_PARM_DESC(name, "product name to report");

/* Mix all bits (the finalizer of splitmix64): neighbours must not look alike. */
static u64 mix(u64 value)
{
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
	return value ^ (value >> 31);
}

static void uuid_make(struct nvsim_gpu *gpu)
{
	u64 high = mix(((u64)seed << 8 | gpu->index) + 0x9e3779b97f4a7c15ull);
	u64 low = mix(high + 0x9e3779b97f4a7c15ull);

	memcpy(&gpu->uuid.b[0], &high, 8);
	memcpy(&gpu->uuid.b[8], &low, 8);
	gpu->uuid.b[6] = (gpu->uuid.b[6] & 0x0f) | 0x40;
	gpu->uuid.b[8] = (gpu->uuid.b[8] & 0x3f) | 0x80;
}

static int uuid_set(struct nvsim_gpu *gpu)
{
	const char *text = gpu->index < uuids_given ? uuids[gpu->index] : NULL;

	if (!text || !*text) {
		uuid_make(gpu);
		return 0;
	}
	if (strncmp(text, "GPU-", 4) || uuid_parse(text + 4, &gpu->uuid)) {
		pr_err("nvsim: uuids[%d]: %s is not a GPU UUID\n", gpu->index, text);
		return -EINVAL;
	}
	return 0;
}

static int pci_set(struct nvsim_gpu *gpu)
{
	/* Bus numbers as an eight GPU baseboard has them; a second one is domain 1. */
	static const u8 buses[] = { 0x1b, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb };
	const char *text = gpu->index < pci_given ? pci[gpu->index] : NULL;

	if (text && *text) {
		if (sscanf(text, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->slot) == 3 &&
		    gpu->bus < 256 && gpu->slot < 32)
			return 0;
		pr_err("nvsim: pci[%d]: %s is not a PCI address\n", gpu->index, text);
		return -EINVAL;
	}
	gpu->domain = gpu->index / ARRAY_SIZE(buses);
	gpu->bus = buses[gpu->index % ARRAY_SIZE(buses)];
	gpu->slot = 0;
	return 0;
}

static int gpu_setup(struct nvsim_gpu *gpu, int index)
{
	int err;

	gpu->index = index;
	gpu->memory_bytes = (u64)memory_mib * SZ_1M;
	if (index < numa_given)
		gpu->numa_node = numa[index];
	else
		gpu->numa_node = nvsim_gpu_count > 1 && index >= nvsim_gpu_count / 2;
	INIT_LIST_HEAD(&gpu->charges);
	INIT_LIST_HEAD(&gpu->channels);
	mutex_init(&gpu->engine_lock);
	spin_lock_init(&gpu->sample_lock);
	INIT_DELAYED_WORK(&gpu->tick, nvsim_engine_tick);
	err = uuid_set(gpu);
	return err ? err : pci_set(gpu);
}

static int gpu_check_unique(int index)
{
	int i;

	for (i = 0; i < index; i++) {
		if (uuid_equal(&nvsim_gpus[i].uuid, &nvsim_gpus[index].uuid) ||
		    nvsim_gpu_id(&nvsim_gpus[i]) == nvsim_gpu_id(&nvsim_gpus[index])) {
			pr_err("nvsim: GPUs %d and %d have the same UUID or PCI address\n", i,
			       index);
			return -EINVAL;
		}
	}
	return 0;
}

int nvsim_gpu_init(void)
{
	int i, err;

	if (nvsim_gpu_count < 1 || nvsim_gpu_count > NVSIM_MAX_GPUS) {
		pr_err("nvsim: gpus must be 1 to %d\n", NVSIM_MAX_GPUS);
		return -EINVAL;
	}
	if (memory_mib < 1 || nvsim_reserved_mib >= memory_mib) {
		pr_err("nvsim: memory_mib must be more than reserved_mib\n");
		return -EINVAL;
	}
	for (i = 0; i < nvsim_gpu_count; i++) {
		err = gpu_setup(&nvsim_gpus[i], i);
		if (err)
			return err;
		err = gpu_check_unique(i);
		if (err)
			return err;
	}
	return 0;
}

void nvsim_gpu_exit(void)
{
	int i;

	for (i = 0; i < nvsim_gpu_count; i++) {
		cancel_delayed_work_sync(&nvsim_gpus[i].tick);
		mutex_destroy(&nvsim_gpus[i].engine_lock);
	}
}

struct nvsim_gpu *nvsim_gpu_get(unsigned int index)
{
	return index < nvsim_gpu_count ? &nvsim_gpus[index] : NULL;
}

struct nvsim_gpu *nvsim_gpu_by_uuid(const u8 uuid[16])
{
	int i;

	for (i = 0; i < nvsim_gpu_count; i++)
		if (!memcmp(nvsim_gpus[i].uuid.b, uuid, 16))
			return &nvsim_gpus[i];
	return NULL;
}

/* The driver's gpuId: where the card is on the bus. */
u32 nvsim_gpu_id(const struct nvsim_gpu *gpu)
{
	return gpu->domain << 16 | gpu->bus << 8 | gpu->slot;
}
