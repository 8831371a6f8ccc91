/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The simulated GPU, inside.
 *
 * Locks, outermost first:
 *   client->lock      the objects of one root client
 *   gpu->engine_lock  the channels the engine serves
 *   nvsim_state       open files, charges, guards: who has what on which GPU
 *   xarray and spin locks, leaves
 * Nobody sleeps for a teardown or a fault with nvsim_state or engine_lock held.
 */
#ifndef NVSIM_H
#define NVSIM_H

#include <linux/atomic.h>
#include <linux/cgroup.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uuid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "nvsim_uapi.h"

#define NVSIM_MAX_CLIENTS 8192
#define NVSIM_MAX_OBJECTS 1024 /* of one client */
#define NVSIM_MAX_MAPPINGS 1024 /* tokens of one open file */
#define NVSIM_MAX_FILES 65536
#define NVSIM_SAMPLES 128
#define NVSIM_EVENTS 64 /* queued on one open file; the oldest is dropped */

/* Who did it: the cgroup and process at the time. */
struct nvsim_owner {
	struct cgroup *cgroup;
	struct pid *pid;
	char comm[TASK_COMM_LEN];
};

struct nvsim_sample {
	u64 at_ns;
	u64 busy_ns;
};

struct nvsim_gpu {
	int index;
	uuid_t uuid;
	u32 domain;
	u32 bus;
	u32 slot;
	int numa_node;
	u64 memory_bytes;

	/* under nvsim_state */
	u64 used_bytes;
	u32 contexts;
	struct list_head charges;
	u64 leak_limit_bytes;
	u64 leaked_bytes;

	/* faults, changed by debugfs at any time */
	bool block;
	bool stuck;
	bool lost;

	struct mutex engine_lock; /* channels, and the tick */
	struct list_head channels;
	struct delayed_work tick;
	u64 last_tick_ns;

	spinlock_t sample_lock;
	struct nvsim_sample samples[NVSIM_SAMPLES];
	unsigned int next_sample;
};

enum nvsim_node { NVSIM_NODE_GPU, NVSIM_NODE_CTL, NVSIM_NODE_UVM, NVSIM_NODE_UVM_TOOLS };

struct nvsim_file {
	enum nvsim_node node;
	struct nvsim_gpu *gpu; /* of /dev/nvidiaN */
	struct nvsim_owner owner;

	struct list_head list; /* of all open files, under nvsim_state */
	u32 devices[NVSIM_MAX_GPUS]; /* uses of each GPU, under nvsim_state */

	struct mutex lock; /* clients, ctl, initialised */
	struct list_head clients;
	struct file *ctl; /* REGISTER_FD; holds a reference */
	bool initialised; /* uvm */

	struct xarray mappings; /* tokens of RM_MAP_MEMORY */

	spinlock_t event_lock;
	wait_queue_head_t event_wait;
	u64 event_types[NVSIM_MAX_GPUS];
	struct nvsim_event_read events[NVSIM_EVENTS];
	unsigned int event_head;
	unsigned int event_count;
};

struct nvsim_client {
	struct kref ref;
	u32 handle;
	struct nvsim_file *file;
	struct list_head list; /* of file->clients */
	struct mutex lock;
	bool dead;
	unsigned int count;
	struct xarray objects;
};

/* Device memory somebody holds; outlives its object when it comes back late. */
struct nvsim_charge {
	struct list_head list; /* of gpu->charges, under nvsim_state */
	struct nvsim_gpu *gpu;
	struct nvsim_owner owner;
	u64 bytes;
	bool context;
	enum { NVSIM_CHARGE_LIVE, NVSIM_CHARGE_LATE, NVSIM_CHARGE_LEAKED } state;
	unsigned long due; /* jiffies, when late */
};

struct nvsim_object {
	struct kref ref;
	u32 handle;
	u32 parent;
	u32 class;
	struct nvsim_client *client;
	struct nvsim_gpu *gpu;
	struct nvsim_charge *charge;

	/* what can be mapped: a doorbell or device memory */
	u64 size;
	struct xarray pages;

	/* channel */
	struct list_head channel; /* of gpu->channels, under engine_lock */
	u64 seen; /* submitted, at the last tick */
};

/* gpu.c */
extern struct nvsim_gpu nvsim_gpus[NVSIM_MAX_GPUS];
extern int nvsim_gpu_count;
extern char *nvsim_driver_version;
extern char *nvsim_gpu_name;
extern unsigned int nvsim_reserved_mib;
int nvsim_gpu_init(void);
void nvsim_gpu_exit(void);
struct nvsim_gpu *nvsim_gpu_get(unsigned int index);
struct nvsim_gpu *nvsim_gpu_by_uuid(const u8 uuid[16]);
u32 nvsim_gpu_id(const struct nvsim_gpu *gpu);

/* memory.c */
extern unsigned int nvsim_ctx_mib;
struct nvsim_charge *nvsim_charge_take(struct nvsim_gpu *gpu, const struct nvsim_owner *owner,
				       u64 bytes, bool context);
void nvsim_charge_release(struct nvsim_charge *charge);
void nvsim_leak_set(struct nvsim_gpu *gpu, u64 bytes);
void nvsim_processes(struct nvsim_gpu *gpu, struct nvsim_gpu_processes *out,
		     struct pid_namespace *ns);
void nvsim_memory_exit(void);

/* file.c */
extern struct mutex nvsim_state;
extern struct list_head nvsim_files;
void nvsim_owner_get(struct nvsim_owner *owner);
void nvsim_owner_copy(struct nvsim_owner *to, const struct nvsim_owner *from);
void nvsim_owner_put(struct nvsim_owner *owner);
struct nvsim_file *nvsim_file_open(enum nvsim_node node, struct nvsim_gpu *gpu);
void nvsim_file_close(struct nvsim_file *nvfile);
void nvsim_file_use(struct nvsim_file *nvfile, struct nvsim_gpu *gpu, int uses);

/* client.c */
u32 nvsim_client_create(struct nvsim_file *nvfile, u32 *handle);
struct nvsim_client *nvsim_client_find(struct nvsim_file *nvfile, u32 handle);
void nvsim_client_put(struct nvsim_client *client);
u32 nvsim_client_destroy(struct nvsim_file *nvfile, u32 handle);
void nvsim_client_destroy_all(struct nvsim_file *nvfile);
void nvsim_client_exit(void);

/* object.c */
struct nvsim_object *nvsim_object_new(struct nvsim_client *client, struct nvsim_gpu *gpu,
				      u32 handle, u32 parent, u32 class);
u32 nvsim_object_add(struct nvsim_object *object);
struct nvsim_object *nvsim_object_find(struct nvsim_client *client, u32 handle);
void nvsim_object_put(struct nvsim_object *object);
struct page *nvsim_object_page(struct nvsim_object *object, unsigned long index);
void nvsim_object_teardown(struct nvsim_client *client, u32 root, bool closing);

/* alloc.c */
bool nvsim_class_is_compute(u32 class);
u32 nvsim_alloc(struct nvsim_file *nvfile, struct nv_rm_alloc *args);

/* control.c */
int nvsim_control(struct nvsim_file *nvfile, struct nv_rm_control *args);

/* rm.c, uvm.c */
extern const struct file_operations nvidia_fops;
extern const struct file_operations uvm_fops;
struct file *nvsim_ctl_get(int fd);

/* mapping.c */
u32 nvsim_mapping_create(struct nvsim_file *nvfile, struct nv_rm_map_memory *args);
int nvsim_mapping_mmap(struct nvsim_file *nvfile, struct vm_area_struct *vma);
void nvsim_mapping_destroy_all(struct nvsim_file *nvfile);

/* engine.c */
extern struct workqueue_struct *nvsim_wq;
int nvsim_engine_init(void);
void nvsim_engine_exit(void);
void nvsim_engine_tick(struct work_struct *work);
void nvsim_engine_add(struct nvsim_object *channel);
void nvsim_engine_remove(struct nvsim_object *channel);
u32 nvsim_engine_utilisation(struct nvsim_gpu *gpu);

/* fault.c */
void nvsim_fault_wait_blocked(const struct nvsim_gpu *gpu);
void nvsim_fault_wait_teardown(unsigned long gpus, unsigned int contexts, u64 bytes, bool closing);
void nvsim_fault_set(bool *flag, bool value);

/* event.c */
u32 nvsim_event_register(struct nvsim_file *nvfile, const struct nvsim_event_register *args);
void nvsim_event_read(struct nvsim_file *nvfile, struct nvsim_event_read *out);
bool nvsim_event_pending(struct nvsim_file *nvfile);
void nvsim_event_xid(struct nvsim_gpu *gpu, u64 xid);

/* audit.c: one record a compute-class operation */
struct nvsim_audit {
	u64 at_ns;
	u64 cgroup;
	u64 foreign_bytes;
	u32 foreign_handles;
	u32 cmd;
	u32 class;
	u32 result;
	int gpu; /* -1: the operation names none */
	pid_t tgid;
	pid_t tid;
};

int nvsim_audit_init(void);
void nvsim_audit_exit(void);
void nvsim_audit_add(const struct nvsim_audit *record);
extern const struct file_operations nvsim_audit_fops;

/* guard.c */
void nvsim_guard_check(struct nvsim_gpu *gpu, u32 cmd, u32 class, struct nvsim_audit *record);
int nvsim_guard_command(char *text);
void nvsim_guard_show(struct seq_file *out);
void nvsim_guard_exit(void);

/* counter.c */
enum nvsim_counter {
	NVSIM_ALLOC_ROOT,
	NVSIM_ALLOC_DEVICE,
	NVSIM_ALLOC_SUBDEVICE,
	NVSIM_ALLOC_VASPACE,
	NVSIM_ALLOC_CHANNEL_GROUP,
	NVSIM_ALLOC_GPFIFO,
	NVSIM_ALLOC_COMPUTE,
	NVSIM_ALLOC_MEMORY,
	NVSIM_ALLOC_UNKNOWN,
	NVSIM_ALLOC_FAILED,
	NVSIM_RM_FREE,
	NVSIM_RM_CONTROL,
	NVSIM_RM_MAP,
	NVSIM_FRONTEND,
	NVSIM_UVM_INITIALIZE,
	NVSIM_UVM_DEINITIALIZE,
	NVSIM_UVM_MM_INITIALIZE,
	NVSIM_UVM_REGISTER_GPU,
	NVSIM_UVM_REGISTER_GPU_VASPACE,
	NVSIM_UVM_REGISTER_CHANNEL,
	NVSIM_UVM_MAP_EXTERNAL,
	NVSIM_UVM_UNKNOWN,
	NVSIM_UVM_FAILED,
	NVSIM_COMPUTE,
	NVSIM_OPEN,
	NVSIM_CLOSE,
	NVSIM_LAUNCH,
	NVSIM_COUNT_NATIVE,
	NVSIM_COUNT_COMPAT,
	NVSIM_COUNT_PLAIN,
	NVSIM_COUNTERS,
};

s64 nvsim_counter_add(enum nvsim_counter counter);
void nvsim_counter_show(struct seq_file *out);

/* count.c, node.c, debug.c */
int nvsim_count_init(void);
void nvsim_count_exit(void);
int nvsim_node_init(void);
void nvsim_node_exit(void);
int nvsim_debug_init(void);
void nvsim_debug_exit(void);

#endif
