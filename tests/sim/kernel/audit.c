// SPDX-License-Identifier: GPL-2.0-only
/* The audit: the last compute-class operations, one line each, oldest first. */
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "nvsim.h"

#define RECORDS 4096

static struct nvsim_audit *ring;
static u64 next_record;
static DEFINE_SPINLOCK(ring_lock);

int nvsim_audit_init(void)
{
	ring = vzalloc(array_size(RECORDS, sizeof(*ring)));
	return ring ? 0 : -ENOMEM;
}

void nvsim_audit_exit(void)
{
	vfree(ring);
}

void nvsim_audit_add(const struct nvsim_audit *record)
{
	spin_lock(&ring_lock);
	ring[next_record++ % RECORDS] = *record;
	spin_unlock(&ring_lock);
	nvsim_counter_add(NVSIM_COMPUTE);
}

/* Position 0 is the heading; position n + 1 is record n since the start. */
static void *audit_start(struct seq_file *out, loff_t *pos)
{
	u64 oldest;

	if (!*pos)
		return SEQ_START_TOKEN;
	spin_lock(&ring_lock);
	oldest = next_record > RECORDS ? next_record - RECORDS : 0;
	if (*pos - 1 < oldest)
		*pos = oldest + 1;
	if (*pos > next_record)
		pos = NULL;
	spin_unlock(&ring_lock);
	return pos;
}

static void *audit_next(struct seq_file *out, void *v, loff_t *pos)
{
	++*pos;
	return audit_start(out, pos);
}

static void audit_stop(struct seq_file *out, void *v)
{
}

static int audit_show(struct seq_file *out, void *v)
{
	struct nvsim_audit record;

	if (v == SEQ_START_TOKEN) {
		seq_puts(out,
			 "ktime_ns tgid tid cgroup gpu cmd class foreign_handles foreign_bytes result\n");
		return 0;
	}
	spin_lock(&ring_lock);
	record = ring[(*(loff_t *)v - 1) % RECORDS];
	spin_unlock(&ring_lock);
	seq_printf(out, "%llu %d %d %llu %d 0x%x 0x%x %u %llu %u\n", record.at_ns, record.tgid,
		   record.tid, record.cgroup, record.gpu, record.cmd, record.class,
		   record.foreign_handles, record.foreign_bytes, record.result);
	return 0;
}

static const struct seq_operations audit_seq = {
	.start = audit_start,
	.next = audit_next,
	.stop = audit_stop,
	.show = audit_show,
};

static int audit_open(struct inode *inode, struct file *file)
{
	return seq_open(file, &audit_seq);
}

const struct file_operations nvsim_audit_fops = {
	.owner = THIS_MODULE,
	.open = audit_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = seq_release,
};
