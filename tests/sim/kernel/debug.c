// SPDX-License-Identifier: GPL-2.0-only
/* debugfs: faults are written here, what happened is read here. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static struct dentry *root;

/* One line written by the user, without its newline. */
static char *line_get(const char __user *user, size_t size)
{
	char *text;

	if (size > 128)
		return ERR_PTR(-EINVAL);
	text = memdup_user_nul(user, size);
	return IS_ERR(text) ? text : strim(text);
}

/* "GPU NUMBER" */
static int fault_parse(const char __user *user, size_t size, struct nvsim_gpu **gpu, u64 *value)
{
	char *text = line_get(user, size);
	unsigned int index;
	char end;
	int fields;

	if (IS_ERR(text))
		return PTR_ERR(text);
	fields = sscanf(text, "%u %llu%c", &index, value, &end);
	kfree(text);
	if (fields != 2)
		return -EINVAL;
	*gpu = nvsim_gpu_get(index);
	return *gpu ? 0 : -ENODEV;
}

static int fault_xid(struct nvsim_gpu *gpu, u64 value)
{
	nvsim_event_xid(gpu, value);
	return 0;
}

static int fault_leak(struct nvsim_gpu *gpu, u64 value)
{
	if (value > gpu->memory_bytes / SZ_1M)
		return -ERANGE;
	nvsim_leak_set(gpu, value * SZ_1M);
	return 0;
}

static int fault_flag(bool *flag, u64 value)
{
	if (value > 1)
		return -ERANGE;
	nvsim_fault_set(flag, value);
	return 0;
}

static int fault_stuck(struct nvsim_gpu *gpu, u64 value)
{
	return fault_flag(&gpu->stuck, value);
}

static int fault_block(struct nvsim_gpu *gpu, u64 value)
{
	return fault_flag(&gpu->block, value);
}

static int fault_lost(struct nvsim_gpu *gpu, u64 value)
{
	return fault_flag(&gpu->lost, value);
}

typedef int (*fault_fn)(struct nvsim_gpu *gpu, u64 value);

static const struct {
	const char *name;
	fault_fn run;
} faults[] = {
	{ "xid", fault_xid },	  { "leak", fault_leak }, { "stuck_teardown", fault_stuck },
	{ "block", fault_block }, { "lost", fault_lost },
};

static ssize_t fault_write(struct file *file, const char __user *user, size_t size, loff_t *pos)
{
	long which = (long)file_inode(file)->i_private;
	struct nvsim_gpu *gpu;
	u64 value;
	int err;

	err = fault_parse(user, size, &gpu, &value);
	if (!err)
		err = faults[which].run(gpu, value);
	return err ? err : size;
}

static const struct file_operations fault_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = fault_write,
};

static ssize_t guard_write(struct file *file, const char __user *user, size_t size, loff_t *pos)
{
	char *text = line_get(user, size);
	int err;

	if (IS_ERR(text))
		return PTR_ERR(text);
	err = nvsim_guard_command(text);
	kfree(text);
	return err ? err : size;
}

static int guard_show(struct seq_file *out, void *unused)
{
	nvsim_guard_show(out);
	return 0;
}

static int guard_open(struct inode *inode, struct file *file)
{
	return single_open(file, guard_show, NULL);
}

static const struct file_operations guard_fops = {
	.owner = THIS_MODULE,
	.open = guard_open,
	.read = seq_read,
	.write = guard_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int counters_show(struct seq_file *out, void *unused)
{
	nvsim_counter_show(out);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

static int processes_show(struct seq_file *out, void *unused)
{
	struct nvsim_gpu_processes *found;
	int i;
	u32 p;

	found = kmalloc(sizeof(*found), GFP_KERNEL);
	if (!found)
		return -ENOMEM;
	seq_puts(out, "gpu pid bytes compute\n");
	for (i = 0; i < nvsim_gpu_count; i++) {
		memset(found, 0, sizeof(*found));
		nvsim_processes(&nvsim_gpus[i], found, &init_pid_ns);
		for (p = 0; p < found->count; p++)
			seq_printf(out, "%d %u %llu %u\n", i, found->list[p].pid,
				   found->list[p].bytes, found->list[p].compute);
	}
	kfree(found);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(processes);

static u32 handles_count(const struct nvsim_gpu *gpu)
{
	struct nvsim_file *nvfile;
	u32 handles = 0;

	lockdep_assert_held(&nvsim_state);
	list_for_each_entry(nvfile, &nvsim_files, list)
		handles += nvfile->devices[gpu->index] > 0;
	return handles;
}

static int gpus_show(struct seq_file *out, void *unused)
{
	struct nvsim_gpu *gpu;
	int i;

	seq_puts(out,
		 "gpu uuid pci numa total used leaked contexts handles utilisation block stuck lost\n");
	mutex_lock(&nvsim_state);
	for (i = 0; i < nvsim_gpu_count; i++) {
		gpu = &nvsim_gpus[i];
		seq_printf(out,
			   "%d GPU-%pUb %04x:%02x:%02x.0 %d %llu %llu %llu %u %u %u %d %d %d\n", i,
			   &gpu->uuid, gpu->domain, gpu->bus, gpu->slot, gpu->numa_node,
			   gpu->memory_bytes, gpu->used_bytes, gpu->leaked_bytes, gpu->contexts,
			   handles_count(gpu), nvsim_engine_utilisation(gpu), READ_ONCE(gpu->block),
			   READ_ONCE(gpu->stuck), READ_ONCE(gpu->lost));
	}
	mutex_unlock(&nvsim_state);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(gpus);

int nvsim_debug_init(void)
{
	long i;

	root = debugfs_create_dir("nvsim", NULL);
	if (IS_ERR(root))
		return PTR_ERR(root);
	for (i = 0; i < ARRAY_SIZE(faults); i++)
		debugfs_create_file(faults[i].name, 0200, root, (void *)i, &fault_fops);
	debugfs_create_file("guard", 0600, root, NULL, &guard_fops);
	debugfs_create_file("audit", 0400, root, NULL, &nvsim_audit_fops);
	debugfs_create_file("counters", 0400, root, NULL, &counters_fops);
	debugfs_create_file("processes", 0400, root, NULL, &processes_fops);
	debugfs_create_file("gpus", 0400, root, NULL, &gpus_fops);
	return 0;
}

void nvsim_debug_exit(void)
{
	debugfs_remove(root);
}
