// SPDX-License-Identifier: GPL-2.0-only
#include <linux/ioctl.h>
#include <linux/uaccess.h>

#include "classify.h"

/*
 * The NVIDIA resource manager's numbers, from its public kernel-open headers:
 * nv-ioctl-numbers.h (escapes) and nvos.h (NVOS21/NVOS64, where the class to
 * allocate is the fourth u32 in both layouts, 32-bit callers included).
 */
#define NV_ESC_RM_ALLOC 0x2b
#define NV_ESC_XFER_CMD 211
#define NVOS_ALLOC_CLASS_OFFSET 12

#define NV_CLASS_VASPACE 0x90f1
#define NV_CLASS_CHANNEL_GROUP 0xa06c
#define NV_CLASS_FIRST_FAMILY 0x9000 /* Fermi: older classes are not families */
#define NV_FAMILY_GPFIFO 0x6f /* low byte of every *_CHANNEL_GPFIFO_A */
#define NV_FAMILY_COMPUTE 0xc0 /* low byte of every *_COMPUTE_A */

/* nv_ioctl_xfer_t: an escape whose argument is too large for an ioctl's size field. */
struct khook_nv_xfer {
	u32 cmd;
	u32 size;
	u64 ptr;
};

/* Only a context allocates these; NVML stays at clients, devices and controls. */
bool khook_is_compute_class(u32 rm_class)
{
	if (rm_class == NV_CLASS_VASPACE || rm_class == NV_CLASS_CHANNEL_GROUP)
		return true;
	if (rm_class < NV_CLASS_FIRST_FAMILY || rm_class > 0xffff)
		return false;
	return (rm_class & 0xff) == NV_FAMILY_GPFIFO || (rm_class & 0xff) == NV_FAMILY_COMPUTE;
}

/*
 * The number alone counts, as in the driver, which never looks at the magic. An
 * argument that can't be read is a query: the driver will refuse it. The caller
 * may change it after this look, and cheats nobody but itself out of being
 * waited for.
 */
static enum khook_class khook_classify_rm(unsigned int cmd, unsigned long arg)
{
	unsigned int nr = _IOC_NR(cmd);
	void __user *at = (void __user *)arg;
	struct khook_nv_xfer xfer;
	u32 rm_class;

	if (nr == NV_ESC_XFER_CMD) {
		if (copy_from_user(&xfer, at, sizeof(xfer)))
			return KHOOK_CLASS_QUERY;
		nr = xfer.cmd;
		at = u64_to_user_ptr(xfer.ptr);
	}
	if (nr != NV_ESC_RM_ALLOC)
		return KHOOK_CLASS_QUERY;
	if (copy_from_user(&rm_class, at + NVOS_ALLOC_CLASS_OFFSET, sizeof(rm_class)))
		return KHOOK_CLASS_QUERY;
	return khook_is_compute_class(rm_class) ? KHOOK_CLASS_COMPUTE : KHOOK_CLASS_QUERY;
}

enum khook_class khook_classify(enum khook_classifier classifier, unsigned int cmd,
				unsigned long arg)
{
	switch (classifier) {
	case KHOOK_CLASSIFIER_NVIDIA_RM:
		return khook_classify_rm(cmd, arg);
	case KHOOK_CLASSIFIER_NVIDIA_UVM:
		return KHOOK_CLASS_UVM;
	case KHOOK_CLASSIFIER_ANY:
	case KHOOK_CLASSIFIER_UNSPEC:
		break;
	}
	return KHOOK_CLASS_COMPUTE;
}
