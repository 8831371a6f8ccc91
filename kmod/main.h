/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _KHOOK_MAIN_H
#define _KHOOK_MAIN_H

#include <linux/workqueue.h>

extern struct workqueue_struct *khook_wq; /* deadlines: nothing on it sleeps long */
extern struct workqueue_struct *khook_slow_wq; /* evictions, unhooking */

#endif /* _KHOOK_MAIN_H */
