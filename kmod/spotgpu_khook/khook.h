/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * khook - the generic netlink family that holds an owner's GPU ioctl.
 *
 * This header is the manual and the only copy of the ABI. abi.py mirrors the
 * enumerators by name and a test compares every value.
 *
 * Words
 * -----
 *   gate    an ioctl handler of a driver that khook can stop callers in. It is
 *           named by an open fd of a device node: khook takes the file's
 *           f_op->unlocked_ioctl (and ->compat_ioctl where that is another
 *           function, and ->open), so no device number or symbol is needed.
 *           All nodes that share the handler share the gate.
 *   watch   whose calls are stopped: a cgroup, a pid namespace or one process.
 *   hold    one ioctl khook is keeping asleep.
 *   return  the time from a watch's first hold until it is let through. A
 *           return has one KHOOK_EVENT_HOLD and one KHOOK_EVENT_RELEASE,
 *           however many threads are held.
 *   lease   the spot cgroups that sit on the watch's devices.
 *   fence   a spot cgroup that may open and ioctl nothing on any gate.
 *   agent   the one socket that is told of returns and whose death is noticed.
 *
 * Life of a watch
 * ---------------
 *                    first matching ioctl
 *   WATCHING ---------------------------------> HOLDING
 *      ^                                           |
 *      |  DETECT again (same key)                  |  RELEASE, lease empty,
 *      |                                           |  deadline, orphaned
 *      +------------- OPEN <-----------------------+
 *                      \__ or BLOCKED, when the deadline's policy is EIO
 *
 *   OPEN passes everything; BLOCKED fails matching ioctls with EIO at once,
 *   until RELEASE (to OPEN), DETECT (to WATCHING) or UNDETECT.
 *
 * What a held caller sees
 * -----------------------
 *   It sleeps interruptibly *before* the driver's handler has run. A signal
 *   gets -ERESTARTNOINTR, so its handler runs and the ioctl goes back to
 *   waiting whatever SA_RESTART says; SIGKILL ends it; SIGSTOP, ptrace and the
 *   v2 freezer work. The driver's handler runs exactly once, after release.
 *
 * Who lets go
 * -----------
 *   1. the agent: KHOOK_CMD_RELEASE;
 *   2. khook, when the lease is empty and the watch says KHOOK_RELEASE_ON_EMPTY;
 *   3. khook, at deadline_ms after the first hold (KHOOK_DEADLINE_RELEASE lets
 *      the owner through, KHOOK_DEADLINE_EIO fails its calls);
 *   4. khook, when no agent has been attached for orphan_ms (its socket closed,
 *      or heartbeat_ms passed without a command): it kills what the lease
 *      names, waits until those cgroups are empty (deadline still running) and
 *      lets the owner through.
 *   5. khook, on KHOOK_CMD_UNDETECT; and when the gate of a hold is lost, which
 *      a held call prevents by having the device open unless the driver is
 *      careless: that call fails with ENODEV.
 *
 * Rules of the protocol
 * ---------------------
 *   - Every command needs CAP_NET_ADMIN in the initial user namespace, dumps
 *     too. Joining the multicast group needs it too, where the kernel can say so.
 *   - Parsing is strict: unknown attributes, wrong lengths and stray flags are
 *     -EINVAL, values out of bounds -ERANGE. Every refusal of khook's own has an
 *     extack sentence; netlink's EPERM (capability) and EOPNOTSUPP (no such
 *     command) have none.
 *   - Nothing in a command waits for a hold, so no command can be blocked by one.
 *   - Events are lossy (ENOBUFS). GET_WATCH and GET_HOLD dumps rebuild the truth.
 *   - Times are CLOCK_MONOTONIC, in ns. Zero means "has not happened".
 */
#ifndef _UAPI_KHOOK_H
#define _UAPI_KHOOK_H

/* clang-format off */

#include <linux/types.h>

#define KHOOK_GENL_NAME		"khook"
#define KHOOK_GENL_VERSION	1
#define KHOOK_MCGRP_EVENTS	"events"

/* Bounds. A command that would pass one is refused with ENOSPC. */
enum khook_limit {
	KHOOK_MAX_GATES = 16,
	KHOOK_MAX_WATCHES = 1024,
	KHOOK_MAX_FENCES = 1024,
	KHOOK_MAX_LEASES = 64,		/* spot cgroups of one watch */
	KHOOK_MAX_HOLDS = 65536,	/* above it, callers pass and failopen counts */
	KHOOK_MAX_DEADLINE_MS = 600000,
	KHOOK_MAX_ORPHAN_MS = 600000,
	KHOOK_MAX_HEARTBEAT_MS = 600000,
};

/* What an attribute that is left out means; of the others, the value 0. */
enum khook_default {
	KHOOK_DEFAULT_DEADLINE_MS = 10000,
	KHOOK_DEFAULT_ORPHAN_MS = 3000,
	KHOOK_DEFAULT_HEARTBEAT_MS = 0,
};

/**
 * enum khook_cmd - commands
 *
 * Attributes in [] may be left out. All commands below are also a heartbeat
 * when the attached agent sends them.
 *
 * @KHOOK_CMD_UNSPEC: unused.
 * @KHOOK_CMD_ATTACH: make the sending socket the agent. Holds left by an agent
 *	that died within orphan_ms are adopted. EBUSY while another is attached,
 *	unless its heartbeat is late.
 *	[KHOOK_A_ORPHAN_MS], [KHOOK_A_HEARTBEAT_MS] set the policy for this agent.
 *	Reply: KHOOK_A_VERSION, KHOOK_A_ADOPTED (returns adopted).
 * @KHOOK_CMD_HEARTBEAT: nothing but a heartbeat. ENOTCONN if not the agent.
 * @KHOOK_CMD_ARM: KHOOK_A_FD, KHOOK_A_CLASSIFIER, [KHOOK_A_METHOD]. Reply: the
 *	gate as in GET_GATE. Arming an armed gate with the same classifier is a
 *	no-op with the same reply; with another one EEXIST. The function is hooked
 *	at once, to try it with a call that the driver never sees, and then only
 *	while something is watched (not OPEN) or fenced, and a second longer. A
 *	LOST gate of the same module and function is armed anew under its id. If
 *	->open can't be hooked (the driver has none of its own), the ack says so:
 *	a fence will refuse ioctls only.
 *	EBADF/ENOTTY: no such fd / not a character device with an ioctl handler;
 *	EBUSY: the function already has another IPMODIFY user (a livepatch), or
 *	ftrace_enabled is 0; EOPNOTSUPP: it can't be hooked by that method or the
 *	trial saw no call.
 * @KHOOK_CMD_DISARM: KHOOK_A_GATE or KHOOK_A_FD. EBUSY while it has holds. Waits
 *	for RCU tasks if it is LIVE.
 * @KHOOK_CMD_DETECT: one of KHOOK_A_CGROUP, KHOOK_A_PIDNS, KHOOK_A_PID (with
 *	KHOOK_A_START_TICKS); [KHOOK_A_RETURN_ON], [KHOOK_A_DEADLINE_MS],
 *	[KHOOK_A_AT_DEADLINE], [KHOOK_A_ON_HOLD], [KHOOK_A_RELEASE_ON]. Starts a
 *	watch, or sets an existing one (same key) to these values and, if it is
 *	OPEN or BLOCKED, to WATCHING. Reply: the watch as in GET_WATCH. When the
 *	reply has come the gates are live: no later ioctl of the key passes.
 *	EINVAL for the initial pid namespace and the root cgroup (the node would
 *	freeze) and for a cgroup that is, holds or is in a fenced one; EPERM for
 *	the sender itself, ENOENT/ESRCH for an unknown key. A caller in several
 *	watches is held by each, in the order of their ids.
 * @KHOOK_CMD_UNDETECT: KHOOK_A_WATCH. Lets its holds through and forgets it.
 * @KHOOK_CMD_LEASE: KHOOK_A_WATCH, KHOOK_A_CGROUP. Names a spot cgroup (with its
 *	descendants) on the watch's devices. May be sent while HOLDING. EINVAL if
 *	the cgroup is the watch's own, an ancestor or a descendant of it, the root,
 *	or holds the sender.
 * @KHOOK_CMD_UNLEASE: KHOOK_A_WATCH, KHOOK_A_CGROUP.
 * @KHOOK_CMD_FENCE: KHOOK_A_CGROUP. Its calls and opens fail with ENODEV. Same
 *	refusals as LEASE, where any watched cgroup counts as the watch's own;
 *	EEXIST if fenced.
 * @KHOOK_CMD_UNFENCE: KHOOK_A_CGROUP.
 * @KHOOK_CMD_RELEASE: KHOOK_A_WATCH: let the whole return through, the watch is
 *	OPEN (harmless when it is OPEN already); or KHOOK_A_HOLD: let that one call
 *	through, the watch stays as it is. [KHOOK_A_RETURN] with a watch: only if
 *	that return is still the current one, else ESTALE.
 *	Without KHOOK_A_RETURN it also opens a watch that is WATCHING or BLOCKED.
 * @KHOOK_CMD_EVICT: KHOOK_A_WATCH: kill the lease now, without a hold (a hint),
 *	until it is empty, for deadline_ms at most.
 * @KHOOK_CMD_GET_GATE: dump. Each: KHOOK_A_GATE, _DEV, _MODULE, _FUNCTION,
 *	_CLASSIFIER, _METHOD, _GATE_STATE, _CALLS (redirected), _HOLDS.
 * @KHOOK_CMD_GET_WATCH: dump. Each: KHOOK_A_WATCH, its key, its policy,
 *	_WATCH_STATE, _RETURN, _HOLDS, _FIRST_NS, _KILL_NS, _KILLED_NS, _EMPTY_NS,
 *	_PASSES, _RELEASE_NS, _OUTCOME, and one KHOOK_A_LEASE_CGROUP per lease.
 * @KHOOK_CMD_GET_HOLD: dump. Each: KHOOK_A_HOLD, _WATCH, _RETURN, and what
 *	EVENT_HOLD says of the caller, _AGE_NS since it fell asleep. A signal ends
 *	a hold; the call that starts again is another one of the same return.
 * @KHOOK_CMD_GET_FENCE: dump. Each: KHOOK_A_CGROUP, _CALLS (refused).
 * @KHOOK_CMD_GET_STATS: do. Reply: KHOOK_A_VERSION, _STAT_*, the policy,
 *	KHOOK_A_AGENT_PORTID (0: none), KHOOK_A_HEARTBEAT_AGE_NS.
 * @KHOOK_CMD_EVENT: sent by khook, unicast to the agent and multicast to the
 *	group "events" of the agent's network namespace (the initial one while
 *	there is no agent).
 */
enum khook_cmd {
	KHOOK_CMD_UNSPEC,
	KHOOK_CMD_ATTACH,
	KHOOK_CMD_HEARTBEAT,
	KHOOK_CMD_ARM,
	KHOOK_CMD_DISARM,
	KHOOK_CMD_DETECT,
	KHOOK_CMD_UNDETECT,
	KHOOK_CMD_LEASE,
	KHOOK_CMD_UNLEASE,
	KHOOK_CMD_FENCE,
	KHOOK_CMD_UNFENCE,
	KHOOK_CMD_RELEASE,
	KHOOK_CMD_EVICT,
	KHOOK_CMD_GET_GATE,
	KHOOK_CMD_GET_WATCH,
	KHOOK_CMD_GET_HOLD,
	KHOOK_CMD_GET_FENCE,
	KHOOK_CMD_GET_STATS,
	KHOOK_CMD_EVENT,
	__KHOOK_CMD_MAX,
};
#define KHOOK_CMD_MAX (__KHOOK_CMD_MAX - 1)

/**
 * enum khook_event - value of KHOOK_A_EVENT
 *
 * @KHOOK_EVENT_UNSPEC: unused.
 * @KHOOK_EVENT_HOLD: a return began. KHOOK_A_WATCH, _RETURN, _HOLD, _FIRST_NS,
 *	_PID, _TID (initial pid namespace), _COMM, _CGROUP, _PIDNS, _DEV, _IOCTL,
 *	_CLASS, _GATE.
 * @KHOOK_EVENT_RELEASE: a return ended. The same as HOLD for its first caller,
 *	and _RELEASE_NS, _OUTCOME, _HOLDS (calls held in all), _KILL_NS (first
 *	signal), _KILLED_NS (first pass done), _EMPTY_NS (lease unpopulated), _PASSES.
 * @KHOOK_EVENT_EMPTY: the lease of a HOLDING watch is unpopulated. KHOOK_A_WATCH,
 *	_RETURN, _KILL_NS, _KILLED_NS, _EMPTY_NS, _PASSES. Not sent where that ends
 *	the return (RELEASE has the same), nor for a watch without a lease; sent
 *	again when a lease named meanwhile is empty too.
 * @KHOOK_EVENT_ORPHAN: khook acts alone, no agent. KHOOK_A_WATCH, _RETURN.
 * @KHOOK_EVENT_GATE_LOST: the driver's module went away. KHOOK_A_GATE, _MODULE.
 * @KHOOK_EVENT_FENCED: a fenced cgroup was refused for the first time.
 *	KHOOK_A_CGROUP, _PID, _TID, _COMM.
 */
enum khook_event {
	KHOOK_EVENT_UNSPEC,
	KHOOK_EVENT_HOLD,
	KHOOK_EVENT_RELEASE,
	KHOOK_EVENT_EMPTY,
	KHOOK_EVENT_ORPHAN,
	KHOOK_EVENT_GATE_LOST,
	KHOOK_EVENT_FENCED,
};

/* KHOOK_A_CLASSIFIER: which ioctls of a gate count as what. */
enum khook_classifier {
	KHOOK_CLASSIFIER_UNSPEC,
	KHOOK_CLASSIFIER_ANY,		/* every ioctl is COMPUTE */
	KHOOK_CLASSIFIER_NVIDIA_RM,	/* /dev/nvidiaN, /dev/nvidiactl */
	KHOOK_CLASSIFIER_NVIDIA_UVM,	/* /dev/nvidia-uvm: every ioctl is UVM */
};

/* KHOOK_A_CLASS: what one ioctl is. KHOOK_RETURN_ON_COMPUTE holds COMPUTE and UVM. */
enum khook_class {
	KHOOK_CLASS_UNSPEC,
	KHOOK_CLASS_QUERY,
	KHOOK_CLASS_COMPUTE,
	KHOOK_CLASS_UVM,
};

/* KHOOK_A_METHOD: how a gate's function is hooked. AUTO tries FTRACE, then KPROBE. */
enum khook_method {
	KHOOK_METHOD_AUTO,
	KHOOK_METHOD_FTRACE,
	KHOOK_METHOD_KPROBE,
};

/* KHOOK_A_GATE_STATE */
enum khook_gate_state {
	KHOOK_GATE_UNSPEC,
	KHOOK_GATE_ARMED,	/* ready, the function is untouched: nothing is watched */
	KHOOK_GATE_LIVE,	/* hooked */
	KHOOK_GATE_LOST,	/* the driver's module is gone */
};

/* KHOOK_A_WATCH_STATE */
enum khook_watch_state {
	KHOOK_WATCH_UNSPEC,
	KHOOK_WATCH_WATCHING,
	KHOOK_WATCH_HOLDING,
	KHOOK_WATCH_OPEN,
	KHOOK_WATCH_BLOCKED,
};

/* KHOOK_A_RETURN_ON: which classes are a return. */
enum khook_return_on {
	KHOOK_RETURN_ON_COMPUTE,
	KHOOK_RETURN_ON_ANY,
};

/* KHOOK_A_AT_DEADLINE */
enum khook_at_deadline {
	KHOOK_DEADLINE_RELEASE,
	KHOOK_DEADLINE_EIO,
};

/* KHOOK_A_ON_HOLD */
enum khook_on_hold {
	KHOOK_ON_HOLD_KILL,	/* SIGKILL to the lease, repeated until it is empty */
	KHOOK_ON_HOLD_NOTIFY,	/* the agent decides */
};

/* KHOOK_A_RELEASE_ON */
enum khook_release_on {
	KHOOK_RELEASE_ON_PROOF,	/* the agent says */
	KHOOK_RELEASE_ON_EMPTY,	/* khook, once the lease is unpopulated */
};

/* KHOOK_A_OUTCOME: why a return ended. */
enum khook_outcome {
	KHOOK_OUTCOME_UNSPEC,
	KHOOK_OUTCOME_RELEASED,		/* by RELEASE */
	KHOOK_OUTCOME_EMPTY,		/* by the empty lease */
	KHOOK_OUTCOME_DEADLINE,		/* let through at the deadline */
	KHOOK_OUTCOME_DEADLINE_EIO,	/* failed with EIO at the deadline */
	KHOOK_OUTCOME_ORPHAN,		/* by khook alone, lease empty, no agent */
	KHOOK_OUTCOME_UNDETECTED,	/* by UNDETECT */
};

/**
 * enum khook_attr - attributes
 *
 * Types: u32 unless a comment says otherwise. u64 need no alignment.
 */
enum khook_attr {
	KHOOK_A_UNSPEC,
	KHOOK_A_PAD,
	KHOOK_A_VERSION,
	KHOOK_A_EVENT,
	KHOOK_A_FD,		/* s32 >= 0, of the sender */
	KHOOK_A_GATE,		/* id, from 1 */
	KHOOK_A_WATCH,		/* id, from 1, never reused */
	KHOOK_A_HOLD,		/* u64 id */
	KHOOK_A_RETURN,		/* u64 id, from 1, never reused */
	KHOOK_A_CGROUP,		/* u64, cgroup v2 id (inode number of its directory) */
	KHOOK_A_PIDNS,		/* inum of /proc/PID/ns/pid */
	KHOOK_A_PID,		/* initial pid namespace, thread group id */
	KHOOK_A_TID,
	KHOOK_A_START_TICKS,	/* u64, field 22 of /proc/PID/stat */
	KHOOK_A_COMM,		/* string */
	KHOOK_A_DEV,		/* u32, new_encode_dev(): major << 8 | minor for small ones */
	KHOOK_A_IOCTL,		/* the command number */
	KHOOK_A_CLASS,
	KHOOK_A_CLASSIFIER,
	KHOOK_A_METHOD,
	KHOOK_A_GATE_STATE,
	KHOOK_A_WATCH_STATE,
	KHOOK_A_RETURN_ON,
	KHOOK_A_DEADLINE_MS,
	KHOOK_A_AT_DEADLINE,
	KHOOK_A_ON_HOLD,
	KHOOK_A_RELEASE_ON,
	KHOOK_A_ORPHAN_MS,
	KHOOK_A_HEARTBEAT_MS,	/* 0: the socket's life is the only sign */
	KHOOK_A_OUTCOME,
	KHOOK_A_FIRST_NS,	/* u64 */
	KHOOK_A_KILL_NS,	/* u64 */
	KHOOK_A_KILLED_NS,	/* u64 */
	KHOOK_A_EMPTY_NS,	/* u64 */
	KHOOK_A_RELEASE_NS,	/* u64 */
	KHOOK_A_AGE_NS,		/* u64 */
	KHOOK_A_HEARTBEAT_AGE_NS,	/* u64 */
	KHOOK_A_HOLDS,
	KHOOK_A_PASSES,
	KHOOK_A_CALLS,		/* u64 */
	KHOOK_A_ADOPTED,
	KHOOK_A_AGENT_PORTID,
	KHOOK_A_MODULE,		/* string */
	KHOOK_A_FUNCTION,	/* string */
	KHOOK_A_LEASE_CGROUP,	/* u64, one a lease */
	KHOOK_A_STAT_GATES,
	KHOOK_A_STAT_WATCHES,
	KHOOK_A_STAT_FENCES,
	KHOOK_A_STAT_HOLDS,
	KHOOK_A_STAT_RETURNS,		/* u64, and so all below */
	KHOOK_A_STAT_RELEASED,
	KHOOK_A_STAT_EMPTY,
	KHOOK_A_STAT_DEADLINE,
	KHOOK_A_STAT_DEADLINE_EIO,
	KHOOK_A_STAT_ORPHAN,
	KHOOK_A_STAT_UNDETECTED,
	KHOOK_A_STAT_OVERFLOW,		/* passed because a table was full */
	KHOOK_A_STAT_RESTARTED,		/* holds ended by a signal */
	KHOOK_A_STAT_FENCED,		/* calls refused by a fence */
	KHOOK_A_STAT_KILLED,		/* signals sent */
	KHOOK_A_STAT_EVENTS_LOST,
	KHOOK_A_STAT_SELFTESTS,		/* u32, passed at load; 0 without the build option */
	__KHOOK_A_MAX,
};
#define KHOOK_A_MAX (__KHOOK_A_MAX - 1)

#endif /* _UAPI_KHOOK_H */
