// SPDX-License-Identifier: GPL-2.0-only
/* The device nodes and their numbers. */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/version.h>

#include "nvsim.h"

#define UVM_MINORS 2

static struct cdev gpu_cdev;
static struct cdev ctl_cdev;
static struct cdev uvm_cdev;
static dev_t uvm_dev;

#if KERNEL_VERSION(6, 2, 0) > LINUX_VERSION_CODE
static char *node_devnode(struct device *device, umode_t *mode)
#else
static char *node_devnode(const struct device *device, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static struct class node_class = {
	.name = "nvsim",
	.devnode = node_devnode,
};

static int numbers_get(void)
{
	int err = register_chrdev_region(MKDEV(NV_MAJOR, 0), nvsim_gpu_count, "nvidia");

	if (err)
		return err;
	err = register_chrdev_region(MKDEV(NV_MAJOR, NV_MINOR_CTL), 1, "nvidiactl");
	if (err)
		goto err_gpu;
	err = alloc_chrdev_region(&uvm_dev, 0, UVM_MINORS, "nvidia-uvm");
	if (err)
		goto err_ctl;
	return 0;

err_ctl:
	unregister_chrdev_region(MKDEV(NV_MAJOR, NV_MINOR_CTL), 1);
err_gpu:
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), nvsim_gpu_count);
	return err;
}

static void numbers_put(void)
{
	unregister_chrdev_region(uvm_dev, UVM_MINORS);
	unregister_chrdev_region(MKDEV(NV_MAJOR, NV_MINOR_CTL), 1);
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), nvsim_gpu_count);
}

static int cdev_start(struct cdev *cdev, const struct file_operations *fops, dev_t dev,
		      unsigned int count)
{
	cdev_init(cdev, fops);
	cdev->owner = fops->owner;
	return cdev_add(cdev, dev, count);
}

static int cdevs_add(void)
{
	int err = cdev_start(&gpu_cdev, &nvidia_fops, MKDEV(NV_MAJOR, 0), nvsim_gpu_count);

	if (err)
		return err;
	err = cdev_start(&ctl_cdev, &nvidia_fops, MKDEV(NV_MAJOR, NV_MINOR_CTL), 1);
	if (err)
		goto err_gpu;
	err = cdev_start(&uvm_cdev, &uvm_fops, uvm_dev, UVM_MINORS);
	if (err)
		goto err_ctl;
	return 0;

err_ctl:
	cdev_del(&ctl_cdev);
err_gpu:
	cdev_del(&gpu_cdev);
	return err;
}

static void cdevs_del(void)
{
	cdev_del(&uvm_cdev);
	cdev_del(&ctl_cdev);
	cdev_del(&gpu_cdev);
}

static void devices_del(void)
{
	int i;

	device_destroy(&node_class, uvm_dev + 1);
	device_destroy(&node_class, uvm_dev);
	device_destroy(&node_class, MKDEV(NV_MAJOR, NV_MINOR_CTL));
	for (i = 0; i < nvsim_gpu_count; i++)
		device_destroy(&node_class, MKDEV(NV_MAJOR, i));
}

static int device_add_one(dev_t dev, const char *name)
{
	return PTR_ERR_OR_ZERO(device_create(&node_class, NULL, dev, NULL, "%s", name));
}

static int devices_add(void)
{
	char name[24];
	int i, err;

	for (i = 0; i < nvsim_gpu_count; i++) {
		snprintf(name, sizeof(name), "nvidia%d", i);
		err = device_add_one(MKDEV(NV_MAJOR, i), name);
		if (err)
			goto err;
	}
	err = device_add_one(MKDEV(NV_MAJOR, NV_MINOR_CTL), "nvidiactl");
	if (!err)
		err = device_add_one(uvm_dev, "nvidia-uvm");
	if (!err)
		err = device_add_one(uvm_dev + 1, "nvidia-uvm-tools");
	if (!err)
		return 0;
err:
	devices_del(); /* leaves out what is not there */
	return err;
}

int nvsim_node_init(void)
{
	int err = numbers_get();

	if (err)
		return err;
	err = class_register(&node_class);
	if (err)
		goto err_numbers;
	err = cdevs_add();
	if (err)
		goto err_class;
	err = devices_add();
	if (err)
		goto err_cdevs;
	return 0;

err_cdevs:
	cdevs_del();
err_class:
	class_unregister(&node_class);
err_numbers:
	numbers_put();
	return err;
}

void nvsim_node_exit(void)
{
	devices_del();
	cdevs_del();
	class_unregister(&node_class);
	numbers_put();
}
