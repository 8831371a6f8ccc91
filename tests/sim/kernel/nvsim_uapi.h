/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The simulated GPU's system calls: numbers and layouts.
 *
 * The numbers and the structures of the frontend, of RM_ALLOC, RM_FREE,
 * RM_CONTROL, RM_MAP_MEMORY and of UVM are the real driver's. The commands
 * named NVSIM_CTRL_* and the doorbell page are the simulator's own: only the
 * libraries in ../user read them, a gate only ever sees their envelope.
 */
#ifndef NVSIM_UAPI_H
#define NVSIM_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NVSIM_MAX_GPUS 16

#define NV_MAJOR 195
#define NV_MINOR_CTL 255
#define NV_IOCTL_MAGIC 'F'

/* Escapes: the number of an _IOWR('F', number, structure). */
#define NV_ESC_RM_FREE 0x29
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_RM_ALLOC 0x2b
#define NV_ESC_RM_MAP_MEMORY 0x4e
#define NV_ESC_CARD_INFO 200
#define NV_ESC_REGISTER_FD 201
#define NV_ESC_CHECK_VERSION_STR 210
#define NV_ESC_XFER_CMD 211
#define NV_ESC_ATTACH_GPUS_TO_FD 212
#define NV_ESC_SYS_PARAMS 214
#define NV_ESC_WAIT_OPEN_COMPLETE 218

#define NV_IOCTL(number, type) _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, (number), sizeof(type))

/* UVM commands are bare numbers, no _IOC encoding. */
#define UVM_INITIALIZE 0x30000001
#define UVM_DEINITIALIZE 0x30000002
#define UVM_REGISTER_GPU_VASPACE 25
#define UVM_REGISTER_CHANNEL 27
#define UVM_MAP_EXTERNAL_ALLOCATION 33
#define UVM_REGISTER_GPU 37
#define UVM_MM_INITIALIZE 75

/* Classes of RM_ALLOC. */
#define NV01_ROOT 0x0
#define NV01_ROOT_CLIENT 0x41
#define NV01_MEMORY_LOCAL_USER 0x40
#define NV01_DEVICE_0 0x80
#define NV20_SUBDEVICE_0 0x2080
#define FERMI_VASPACE_A 0x90f1
#define KEPLER_CHANNEL_GROUP_A 0xa06c
#define AMPERE_CHANNEL_GPFIFO_A 0xc56f
#define AMPERE_COMPUTE_A 0xc6c0

/* Status words written into the structures. */
#define NV_OK 0x00
#define NV_ERR_GPU_IS_LOST 0x0f
#define NV_ERR_ILLEGAL_ACTION 0x16
#define NV_ERR_INSERT_DUPLICATE_NAME 0x19
#define NV_ERR_INSUFFICIENT_RESOURCES 0x1a
#define NV_ERR_INVALID_ARGUMENT 0x1f
#define NV_ERR_INVALID_CLASS 0x22
#define NV_ERR_INVALID_CLIENT 0x23
#define NV_ERR_INVALID_COMMAND 0x24
#define NV_ERR_INVALID_DEVICE 0x26
#define NV_ERR_INVALID_OBJECT_HANDLE 0x33
#define NV_ERR_INVALID_OBJECT_PARENT 0x36
#define NV_ERR_INVALID_STATE 0x40
#define NV_ERR_NO_MEMORY 0x51
#define NV_ERR_OBJECT_NOT_FOUND 0x57

struct nv_pci_info {
	__u32 domain;
	__u8 bus;
	__u8 slot;
	__u8 function;
	__u16 vendor_id;
	__u16 device_id;
};

/* NV_ESC_CARD_INFO takes an array of these, one a card. */
struct nv_card_info {
	__u8 valid;
	struct nv_pci_info pci_info;
	__u32 gpu_id;
	__u16 interrupt_line;
	__aligned_u64 reg_address;
	__aligned_u64 reg_size;
	__aligned_u64 fb_address;
	__aligned_u64 fb_size;
	__u32 minor_number;
	__u8 dev_name[10];
};

struct nv_register_fd {
	__s32 ctl_fd;
};

struct nv_check_version {
	__u32 cmd; /* 0: strict, 0x32 ('2'): query only */
	__u32 reply; /* 1: recognised */
	char version[64];
};

struct nv_xfer {
	__u32 cmd;
	__u32 size;
	__aligned_u64 ptr;
};

struct nv_sys_params {
	__aligned_u64 memblock_size;
};

struct nv_wait_open_complete {
	__s32 rc;
	__u32 adapter_status;
};

/* NVOS00 */
struct nv_rm_free {
	__u32 root;
	__u32 parent;
	__u32 object;
	__u32 status;
};

/* NVOS21; the class sits at byte 12 here and in NVOS64. */
struct nv_rm_alloc {
	__u32 root;
	__u32 parent;
	__u32 object;
	__u32 class;
	__aligned_u64 params;
	__u32 params_size;
	__u32 status;
};

/* NVOS64 */
struct nv_rm_alloc_rights {
	__u32 root;
	__u32 parent;
	__u32 object;
	__u32 class;
	__aligned_u64 params;
	__aligned_u64 rights;
	__u32 params_size;
	__u32 flags;
	__u32 status;
};

/* NVOS54 */
struct nv_rm_control {
	__u32 client;
	__u32 object;
	__u32 cmd;
	__u32 flags;
	__aligned_u64 params;
	__u32 params_size;
	__u32 status;
};

/*
 * NVOS33 with the descriptor of /dev/nvidiaN that will be mapped. linear_address
 * comes back as the offset to give to one mmap(2), which maps from the start.
 */
struct nv_rm_map_memory {
	__u32 client;
	__u32 device;
	__u32 memory;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 linear_address;
	__u32 status;
	__u32 flags;
	__s32 fd;
};

/* Parameters of RM_ALLOC, the leading part that is read. */
struct nv_alloc_device {
	__u32 device_id;
	__u32 client_share;
	__u32 target_client;
	__u32 target_device;
	__u32 flags;
	__aligned_u64 va_space_size;
	__aligned_u64 va_start;
	__aligned_u64 va_limit;
	__u32 va_mode;
};

struct nv_alloc_channel_group {
	__u32 error;
	__u32 ecc_error;
	__u32 vaspace;
	__u32 engine_type;
};

struct nv_alloc_memory {
	__u32 owner;
	__u32 type;
	__u32 flags;
	__u32 width;
	__u32 height;
	__s32 pitch;
	__u32 attr;
	__u32 attr2;
	__u32 format;
	__u32 compr_covg;
	__u32 zcull_covg;
	__aligned_u64 range_lo;
	__aligned_u64 range_hi;
	__aligned_u64 size;
	__aligned_u64 alignment;
};

struct uvm_initialize {
	__aligned_u64 flags;
	__u32 status;
};

struct uvm_deinitialize {
	__u32 status;
};

struct uvm_mm_initialize {
	__s32 uvm_fd;
	__u32 status;
};

struct uvm_register_gpu {
	__u8 uuid[16];
	__u8 numa_enabled;
	__s32 numa_node;
	__s32 ctl_fd;
	__u32 client;
	__u32 smc_part;
	__u32 status;
};

struct uvm_register_gpu_vaspace {
	__u8 uuid[16];
	__s32 ctl_fd;
	__u32 client;
	__u32 vaspace;
	__u32 status;
};

struct uvm_register_channel {
	__u8 uuid[16];
	__s32 ctl_fd;
	__u32 client;
	__u32 channel;
	__aligned_u64 base;
	__aligned_u64 length;
	__u32 status;
};

struct uvm_gpu_mapping {
	__u8 uuid[16];
	__u32 mapping_type;
	__u32 caching_type;
	__u32 format_type;
	__u32 element_bits;
	__u32 compression_type;
};

#define UVM_MAX_GPUS 256

struct uvm_map_external {
	__aligned_u64 base;
	__aligned_u64 length;
	__aligned_u64 offset;
	struct uvm_gpu_mapping gpus[UVM_MAX_GPUS];
	__aligned_u64 gpus_count;
	__s32 ctl_fd;
	__u32 client;
	__u32 memory;
	__u32 status;
};

/* RM_CONTROL commands of the simulator; none makes a context. */
#define NVSIM_CTRL_SYSTEM 0x0000f001 /* on a root client */
#define NVSIM_CTRL_EVENT_REGISTER 0x0000f002 /* on a root client */
#define NVSIM_CTRL_EVENT_READ 0x0000f003 /* on a root client */
#define NVSIM_CTRL_GPU_INFO 0x2080f001 /* on a subdevice */
#define NVSIM_CTRL_GPU_STATE 0x2080f002 /* on a subdevice */
#define NVSIM_CTRL_GPU_PROCESSES 0x2080f003 /* on a subdevice */

struct nvsim_system {
	__u32 gpus;
	__u32 reserved;
	char driver_version[64];
};

struct nvsim_event_register {
	__u32 gpu; /* index */
	__u32 reserved;
	__u64 types; /* NVML event type bits; 8 is a critical Xid */
};

struct nvsim_event_read {
	__u32 valid; /* 0: the queue is empty */
	__u32 gpu;
	__u64 type;
	__u64 data; /* the Xid */
};

struct nvsim_gpu_info {
	__u32 index;
	__u32 minor;
	__u32 pci_domain;
	__u32 pci_bus;
	__u32 pci_device;
	__u32 pci_id; /* device << 16 | vendor */
	__u32 pci_subsystem_id;
	__s32 numa_node;
	__u64 memory_bytes;
	__u8 uuid[16];
	char name[64];
};

struct nvsim_gpu_state {
	__u64 total_bytes;
	__u64 reserved_bytes;
	__u64 used_bytes; /* reserved not included */
	__u32 utilisation_percent; /* over the last second */
	__u32 contexts;
	__u32 lost;
	__u32 reserved;
};

#define NVSIM_MAX_PROCESSES 256

struct nvsim_process {
	__u32 pid;
	__u32 compute; /* 1: has a context */
	__u64 bytes;
};

struct nvsim_gpu_processes {
	__u32 count;
	__u32 reserved;
	struct nvsim_process list[NVSIM_MAX_PROCESSES];
};

/*
 * The doorbell page of a channel. The owner writes `submitted` (work units so
 * far) and `put` (launches so far, after filling ring[put % N]); the engine
 * writes `completed`, `get` and `status`. No system call is involved.
 */
#define NVSIM_RING 32
#define NVSIM_OP_ADD_U32 1 /* memory[2][i] = memory[0][i] + memory[1][i] */

struct nvsim_launch {
	__u32 op;
	__u32 count; /* elements */
	__u32 memory[3]; /* handles of the same client */
	__u32 reserved;
	__u64 offset[3]; /* bytes, multiple of 4 */
	__u64 reserved2[2];
};

struct nvsim_doorbell {
	__u64 submitted;
	__u64 completed;
	__u64 put;
	__u64 get;
	__u64 status; /* first NV_ERR_* of a launch */
	__u64 reserved[3];
	struct nvsim_launch ring[NVSIM_RING];
};

#endif
