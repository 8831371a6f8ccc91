// SPDX-License-Identifier: GPL-2.0-only
/* The simulated GPU: start and stop. */
#include <linux/module.h>

#include "nvsim.h"

static int __init nvsim_init(void)
{
	int err;

	err = nvsim_engine_init();
	if (err)
		return err;
	err = nvsim_gpu_init();
	if (err)
		goto err_engine;
	err = nvsim_audit_init();
	if (err)
		goto err_gpu;
	err = nvsim_debug_init();
	if (err)
		goto err_audit;
	err = nvsim_count_init();
	if (err)
		goto err_debug;
	err = nvsim_node_init();
	if (err)
		goto err_count;
	pr_info("nvsim: %d simulated GPUs, driver %s\n", nvsim_gpu_count, nvsim_driver_version);
	return 0;

err_count:
	nvsim_count_exit();
err_debug:
	nvsim_debug_exit();
err_audit:
	nvsim_audit_exit();
err_gpu:
	nvsim_gpu_exit();
err_engine:
	nvsim_engine_exit();
	return err;
}

static void __exit nvsim_exit(void)
{
	nvsim_node_exit();
	nvsim_count_exit();
	nvsim_debug_exit();
	nvsim_guard_exit();
	nvsim_memory_exit();
	nvsim_audit_exit();
	nvsim_gpu_exit();
	nvsim_client_exit();
	nvsim_engine_exit();
}

module_init(nvsim_init);
module_exit(nvsim_exit);
MODULE_DESCRIPTION("Simulated GPU behind the NVIDIA driver's system calls");
MODULE_AUTHOR("spotgpu");
MODULE_LICENSE("GPL");
