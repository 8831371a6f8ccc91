// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two devices that only count: /dev/nvsim-count, whose 32-bit entry is another
 * function with its own counter, and /dev/nvsim-plain, whose entry has no
 * fentry (so that it can be hooked by a kprobe alone). An ioctl, whatever its
 * number, adds one and returns the sum.
 */
#include <linux/limits.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "nvsim.h"

static long count_result(s64 sum)
{
	return sum & INT_MAX; /* ioctl(2) returns an int */
}

static long nvsim_count_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return count_result(nvsim_counter_add(NVSIM_COUNT_NATIVE));
}

static long nvsim_count_compat_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return count_result(nvsim_counter_add(NVSIM_COUNT_COMPAT));
}

static notrace long nvsim_plain_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return count_result(nvsim_counter_add(NVSIM_COUNT_PLAIN));
}

static const struct file_operations count_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nvsim_count_ioctl,
	.compat_ioctl = nvsim_count_compat_ioctl,
};

static const struct file_operations plain_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nvsim_plain_ioctl,
	.compat_ioctl = nvsim_plain_ioctl,
};

static struct miscdevice count_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvsim-count",
	.mode = 0666,
	.fops = &count_fops,
};

static struct miscdevice plain_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvsim-plain",
	.mode = 0666,
	.fops = &plain_fops,
};

int nvsim_count_init(void)
{
	int err = misc_register(&count_device);

	if (err)
		return err;
	err = misc_register(&plain_device);
	if (err)
		misc_deregister(&count_device);
	return err;
}

void nvsim_count_exit(void)
{
	misc_deregister(&plain_device);
	misc_deregister(&count_device);
}
