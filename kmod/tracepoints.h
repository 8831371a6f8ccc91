/* SPDX-License-Identifier: GPL-2.0-only */
/* trace - what perf, bpftrace and the probes see. */
/* The macros are laid out as the kernel lays them out. */
/* clang-format off */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM khook

#if !defined(_KHOOK_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _KHOOK_TRACE_H

#include <linux/tracepoint.h>

#include "hold.h"

#define khook_show_outcome(outcome)				\
	__print_symbolic(outcome,				\
			 { KHOOK_OUTCOME_UNSPEC, "overflow" },	\
			 { KHOOK_OUTCOME_RELEASED, "released" },	\
			 { KHOOK_OUTCOME_EMPTY, "empty" },	\
			 { KHOOK_OUTCOME_DEADLINE, "deadline" },	\
			 { KHOOK_OUTCOME_DEADLINE_EIO, "deadline_eio" }, \
			 { KHOOK_OUTCOME_ORPHAN, "orphan" },	\
			 { KHOOK_OUTCOME_UNDETECTED, "undetected" })

/* One call falls asleep; again after a signal. */
TRACE_EVENT(hold,
	TP_PROTO(u32 watch, const struct khook_hold *h),
	TP_ARGS(watch, h),
	TP_STRUCT__entry(
		__field(u32, watch)
		__field(u32, gate)
		__field(u64, return_id)
		__field(u64, hold)
		__field(u64, cgroup)
		__field(u32, pid)
		__field(u32, tid)
		__array(char, comm, TASK_COMM_LEN)
		__field(u32, dev)
		__field(u32, cmd)
		__field(u32, class)
	),
	TP_fast_assign(
		__entry->watch = watch;
		__entry->gate = h->caller.gate;
		__entry->return_id = h->return_id;
		__entry->hold = h->id;
		__entry->cgroup = h->caller.cgroup;
		__entry->pid = h->caller.pid;
		__entry->tid = h->caller.tid;
		memcpy(__entry->comm, h->caller.comm, TASK_COMM_LEN);
		__entry->dev = h->caller.dev;
		__entry->cmd = h->caller.cmd;
		__entry->class = h->caller.class;
	),
	TP_printk("watch=%u return=%llu hold=%llu gate=%u pid=%u tid=%u comm=%s cgroup=%llu dev=%#x cmd=%#x class=%u",
		  __entry->watch, __entry->return_id, __entry->hold, __entry->gate,
		  __entry->pid, __entry->tid, __entry->comm, __entry->cgroup,
		  __entry->dev, __entry->cmd, __entry->class)
);

/* A return ends. */
TRACE_EVENT(release,
	TP_PROTO(u32 watch, const struct khook_return *ret),
	TP_ARGS(watch, ret),
	TP_STRUCT__entry(
		__field(u32, watch)
		__field(u32, outcome)
		__field(u64, return_id)
		__field(u64, first_ns)
		__field(u64, empty_ns)
		__field(u64, release_ns)
		__field(u32, holds)
		__field(u32, passes)
	),
	TP_fast_assign(
		__entry->watch = watch;
		__entry->outcome = ret->outcome;
		__entry->return_id = ret->id;
		__entry->first_ns = ret->first_ns;
		__entry->empty_ns = ret->empty_ns;
		__entry->release_ns = ret->release_ns;
		__entry->holds = ret->holds;
		__entry->passes = ret->passes;
	),
	TP_printk("watch=%u return=%llu outcome=%s waited_ns=%llu holds=%u passes=%u",
		  __entry->watch, __entry->return_id, khook_show_outcome(__entry->outcome),
		  __entry->release_ns - __entry->first_ns, __entry->holds, __entry->passes)
);

/* A fenced caller is refused. */
TRACE_EVENT(fence,
	TP_PROTO(u64 cgroup, const struct khook_caller *caller),
	TP_ARGS(cgroup, caller),
	TP_STRUCT__entry(
		__field(u64, cgroup)
		__field(u32, pid)
		__field(u32, tid)
		__array(char, comm, TASK_COMM_LEN)
	),
	TP_fast_assign(
		__entry->cgroup = cgroup;
		__entry->pid = caller->pid;
		__entry->tid = caller->tid;
		memcpy(__entry->comm, caller->comm, TASK_COMM_LEN);
	),
	TP_printk("cgroup=%llu pid=%u tid=%u comm=%s",
		  __entry->cgroup, __entry->pid, __entry->tid, __entry->comm)
);

/* An owner goes on without proof, or without having been held (overflow). */
TRACE_EVENT(failopen,
	TP_PROTO(u32 watch, u64 return_id, u32 outcome),
	TP_ARGS(watch, return_id, outcome),
	TP_STRUCT__entry(
		__field(u32, watch)
		__field(u32, outcome)
		__field(u64, return_id)
	),
	TP_fast_assign(
		__entry->watch = watch;
		__entry->outcome = outcome;
		__entry->return_id = return_id;
	),
	TP_printk("watch=%u return=%llu why=%s", __entry->watch, __entry->return_id,
		  khook_show_outcome(__entry->outcome))
);

#endif /* _KHOOK_TRACE_H */

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE tracepoints
#include <trace/define_trace.h>
