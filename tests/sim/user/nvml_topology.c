// SPDX-License-Identifier: Apache-2.0
/* NVML: how near devices are to each other and to CPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"

#define TOPOLOGY_INTERNAL 0
#define TOPOLOGY_HOSTBRIDGE 30
#define TOPOLOGY_NODE 40
#define TOPOLOGY_SYSTEM 50

#define P2P_NVLINK 2
#define P2P_LAST 4
#define P2P_OK 0
#define P2P_NOT_SUPPORTED 5

#define WORD_BITS (8 * sizeof(unsigned long))

/* GPUs of one NUMA node hang from one host bridge each pair, the pairs from the node. */
static int ancestor(const struct nvml_device *a, const struct nvml_device *b)
{
	if (a == b)
		return TOPOLOGY_INTERNAL;
	if (a->gpu.info.numa_node != b->gpu.info.numa_node)
		return TOPOLOGY_SYSTEM;
	return a->gpu.info.minor / 2 == b->gpu.info.minor / 2 ? TOPOLOGY_HOSTBRIDGE : TOPOLOGY_NODE;
}

static nvmlReturn_t check_two(const struct nvml_device *a, const struct nvml_device *b, const void *out)
{
	nvmlReturn_t result = nvml_check(a, out);

	return result == NVML_SUCCESS ? nvml_check(b, out) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(struct nvml_device *a, struct nvml_device *b,
							  int *level)
{
	nvmlReturn_t result = check_two(a, b, level);

	if (result == NVML_SUCCESS)
		*level = ancestor(a, b);
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(struct nvml_device *device, int level,
						       unsigned int *count,
						       struct nvml_device **devices)
{
	nvmlReturn_t result = nvml_check(device, count);
	unsigned int i, room, found = 0;

	if (result != NVML_SUCCESS)
		return result;
	room = devices ? *count : 0;
	for (i = 0; i < nvml.count; i++) {
		if (&nvml.devices[i] == device || nvml_attach(&nvml.devices[i]) != NVML_SUCCESS ||
		    ancestor(device, &nvml.devices[i]) > level)
			continue;
		if (found < room)
			devices[found] = &nvml.devices[i];
		found++;
	}
	*count = found;
	return NVML_SUCCESS;
}

/* The GPUs of one baseboard (one PCI domain) are linked by NVLink. */
NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(struct nvml_device *a, struct nvml_device *b, int index,
					     int *status)
{
	nvmlReturn_t result = check_two(a, b, status);

	if (result != NVML_SUCCESS)
		return result;
	if (a == b || index < 0 || index > P2P_LAST)
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = index == P2P_NVLINK && a->gpu.info.pci_domain != b->gpu.info.pci_domain ?
			  P2P_NOT_SUPPORTED :
			  P2P_OK;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(struct nvml_device *device, unsigned int *node)
{
	nvmlReturn_t result = nvml_check(device, node);

	if (result != NVML_SUCCESS)
		return result;
	if (device->gpu.info.numa_node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*node = device->gpu.info.numa_node;
	return NVML_SUCCESS;
}

static void set_bit(unsigned long *set, unsigned int words, unsigned int bit)
{
	if (bit / WORD_BITS < words)
		set[bit / WORD_BITS] |= 1ul << bit % WORD_BITS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(struct nvml_device *device, unsigned int words,
						  unsigned long *set, unsigned int scope)
{
	nvmlReturn_t result = nvml_check(device, set);

	(void)scope;
	if (result != NVML_SUCCESS)
		return result;
	memset(set, 0, words * sizeof(*set));
	set_bit(set, words, device->gpu.info.numa_node < 0 ? 0 : device->gpu.info.numa_node);
	return NVML_SUCCESS;
}

/* The CPUs of a node as the kernel lists them ("0-3,8"); all CPUs of a node that is not there. */
static void node_cpus(int node, unsigned int words, unsigned long *set)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	char path[64], text[4096] = "";
	unsigned int first, last;
	char *part, *rest = text;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	file = fopen(path, "r");
	if (!file || !fgets(text, sizeof(text), file))
		snprintf(text, sizeof(text), "0-%ld", cpus - 1);
	if (file)
		fclose(file);
	while ((part = strsep(&rest, ","))) {
		switch (sscanf(part, "%u-%u", &first, &last)) {
		case 1:
			last = first;
			/* fall through */
		case 2:
			for (; first <= last; first++)
				set_bit(set, words, first);
		}
	}
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(struct nvml_device *device, unsigned int words,
					       unsigned long *set)
{
	nvmlReturn_t result = nvml_check(device, set);

	if (result != NVML_SUCCESS)
		return result;
	memset(set, 0, words * sizeof(*set));
	node_cpus(device->gpu.info.numa_node, words, set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(struct nvml_device *device,
							  unsigned int words, unsigned long *set,
							  unsigned int scope)
{
	(void)scope;
	return nvmlDeviceGetCpuAffinity(device, words, set);
}
