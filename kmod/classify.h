/* SPDX-License-Identifier: GPL-2.0-only */
/* classify - what one ioctl is: a query, compute, or UVM. */
#ifndef _KHOOK_CLASSIFY_H
#define _KHOOK_CLASSIFY_H

#include <linux/types.h>

#include "khook.h"

bool khook_is_compute_class(u32 rm_class);
enum khook_class khook_classify(enum khook_classifier classifier, unsigned int cmd,
				unsigned long arg);

#endif /* _KHOOK_CLASSIFY_H */
