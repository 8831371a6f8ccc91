# SPDX-License-Identifier: Apache-2.0
"""Every name that crosses a room, spelled once.

Standard library only: all rooms import this module, the container runtime wrapper among them, where start-up
time counts. A name is what other programs (kubelet, Prometheus, Jaeger, a person's alert rule) key on, so a
change here is a breaking change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# Resource and ids -------------------------------------------------------------------------------------------
RESOURCE: Final = "platform/spot-gpu"
SPOT_ID_PREFIX: Final = "spot-"

# Annotations ------------------------------------------------------------------------------------------------
ANNOTATION_PREFIX: Final = "platform.k8s.io/"
# On a pod, `.<container>` is appended.
CONTAINER_DEVICES_FROM: Final = ANNOTATION_PREFIX + "container-devices-from"
POD_DEVICES_FROM: Final = ANNOTATION_PREFIX + "pod-devices-from"
DEVICES: Final = ANNOTATION_PREFIX + "devices"
LEASE: Final = ANNOTATION_PREFIX + "lease"

LEND: Final = ANNOTATION_PREFIX + "lend"
MAX_INACTIVE: Final = ANNOTATION_PREFIX + "max-inactive"
RETURN_ON: Final = ANNOTATION_PREFIX + "return-on"
DEADLINE: Final = ANNOTATION_PREFIX + "deadline"
EVICT_GRACE: Final = ANNOTATION_PREFIX + "evict-grace"

LOWPOWER_SPOT: Final = ANNOTATION_PREFIX + "lowpower-spot"
SPOT_PREFER: Final = ANNOTATION_PREFIX + "spot-prefer"
DEVICE_OWNER: Final = ANNOTATION_PREFIX + "device-owner"

TRACEPARENT_ANNOTATION: Final = "tracing.k8s.io/traceparent"
TRACEPARENT_ENV: Final = "TRACEPARENT"

# Kubernetes -------------------------------------------------------------------------------------------------
API_GROUP: Final = "spotgpu.dev"
API_VERSION: Final = "spotgpu.dev/v1alpha1"
SCHEDULER_NAME: Final = "gang-scheduler"
SPOT_QUEUE: Final = "spot-queue"
NAMESPACE: Final = "spotgpu-system"
PRIORITY_CLASSES: Final = {"spothigh": 3000, "spotmid": 2000, "spotlow": 1000}

# The node ---------------------------------------------------------------------------------------------------
KHOOK_FAMILY: Final = "khook"
KHOOK_FAMILY_VERSION: Final = 1
RUN_DIR: Final = "/run/spotgpu"
RUNTIME_SOCKET: Final = "/run/spotgpu/runtime.sock"
ADMIN_SOCKET: Final = "/run/spotgpu/admin.sock"
CONFIG_FILE: Final = "/etc/spotgpu/config.yaml"
STATE_DIR: Final = "/var/lib/spotgpu"
TRACES_FILE: Final = "/var/log/spotgpu/traces.jsonl"
TRACES_ENV: Final = "SPOTGPU_TRACES"
AGENT_PORT: Final = 9464
SCHEDULER_PORT: Final = 9465
METRIC_PREFIX: Final = "spotgpu_"
OTEL_SCOPE: Final = "spotgpu_agent"


def spot_id(device: str) -> str:
    """The id of a device's spot twin.

    Args:
        device: UUID of a real GPU, `GPU-…`.
    """
    return SPOT_ID_PREFIX + device


class EvictionReason(StrEnum):
    """Why a spot pod is evicted; a Kubernetes Event's reason and a metric label."""

    OWNER_BACK = "OwnerBack"
    OWNER_HINT = "OwnerHint"
    OWNER_STARTING = "OwnerStarting"
    QUEUE_RECLAIM = "QueueReclaim"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    ADMIN = "Admin"


class EvictionMethod(StrEnum):
    """Who sent the signal that emptied the spot cgroup."""

    KHOOK = "khook"  # the kernel, at the first hold
    CGROUP_KILL = "cgroup.kill"  # the agent
    GRACE = "grace"  # SIGTERM first, and it was enough


class Outcome(StrEnum):
    """How a hand-back ended. The first six are khook's own (khook.h, enum khook_outcome)."""

    RELEASED = "released"  # proven free, then let through
    EMPTY = "empty"  # let through by khook once the lease was empty; the agent found the device clean
    DEADLINE = "deadline"  # let through at the deadline, unproven
    DEADLINE_EIO = "deadline_eio"  # failed with EIO at the deadline
    ORPHAN = "orphan"  # khook alone, no agent
    UNDETECTED = "undetected"  # the watch was taken away
    DIRTY = "dirty"  # let through on the empty lease, and a witness failed afterwards
    ABANDONED = "abandoned"  # the owner's container went away while held
    ABORTED = "aborted"  # the agent gave up (an error of its own); khook decided


class Trigger(StrEnum):
    """What told the agent that the owner is back."""

    HOLD = "hold"  # khook holds an ioctl
    HANDLES = "handles"  # the owner has the device open or mapped
    ADMIN = "admin"  # a person said so


class DeviceState(StrEnum):
    """Availability of a device."""

    ACTIVE = "active"
    LENDABLE = "lendable"
    LENT = "lent"
    RETURNING = "returning"


class Witness(StrEnum):
    """What proves a device free."""

    CGROUP = "cgroup"
    HANDLES = "handles"
    MEMORY = "memory"


class Trace(StrEnum):
    """Names of root spans."""

    LEND = "gpu.lend"
    STEAL = "gpu.steal"
    HANDBACK = "gpu.handback"


class Phase(StrEnum):
    """Names of the spans below `gpu.handback`, in the order they happen."""

    OWNER_HOLD = "owner.hold"  # kernel clock, first blocked to released; contains the others
    EVICT_KILL = "evict.kill"
    DRAIN_CGROUP = "drain.cgroup"
    DRAIN_HANDLES = "drain.handles"
    DRAIN_MEMORY = "drain.memory"
    RELEASE = "release"
    POD_DELETE = "pod.delete"  # after the release; the owner does not wait for it


class Attr(StrEnum):
    """Span and log attribute names: semantic conventions 1.44 where they have one, ours under `spotgpu.`."""

    # semantic conventions: hardware, container, process, errors
    HW_ID = "hw.id"  # the GPU's UUID; on the root, as the others, what all devices have in common
    HW_TYPE = "hw.type"
    HW_NAME = "hw.name"
    HW_VENDOR = "hw.vendor"
    HW_DRIVER_VERSION = "hw.driver_version"
    CONTAINER_ID = "container.id"  # the owner's
    CONTAINER_NAME = "container.name"
    HOST_NAME = "host.name"
    PROCESS_PID = "process.pid"
    PROCESS_EXECUTABLE_NAME = "process.executable.name"  # comm
    THREAD_ID = "thread.id"
    ERROR_TYPE = "error.type"
    # ours
    OWNER = "spotgpu.owner"
    DEVICES = "spotgpu.devices"
    TRIGGER = "spotgpu.trigger"
    OUTCOME = "spotgpu.outcome"
    REASON = "spotgpu.eviction.reason"
    METHOD = "spotgpu.eviction.method"
    SPOT_CONTAINERS = "spotgpu.spot.container.ids"
    SPOT_CGROUPS = "spotgpu.spot.cgroup.ids"
    WATCH = "spotgpu.khook.watch"
    RETURN = "spotgpu.khook.return"
    IOCTL = "spotgpu.khook.ioctl"
    IOCTL_CLASS = "spotgpu.khook.class"
    HOLDS = "spotgpu.khook.holds"
    KILL_PASSES = "spotgpu.khook.kill_passes"
    WITNESS_LATE = "spotgpu.witness.late"  # names of the witnesses that came late
    ATTEMPTS = "spotgpu.attempts"  # how often a witness was asked
    HOLDERS = "spotgpu.holders"  # foreign processes with the device open, `comm(pid)`
    MEMORY_USED = "spotgpu.memory.used_bytes"
    MEMORY_BASELINE = "spotgpu.memory.baseline_bytes"
    TOTAL_NS = "spotgpu.total_ns"
    UNEXPLAINED_NS = "spotgpu.unexplained_ns"
    CLAMPED = "spotgpu.spans.clamped"  # spans whose end was before their start
    COMPLETE = "spotgpu.trace.complete"
    RESUMED = "spotgpu.trace.resumed"  # a restarted agent went on in this trace
    CLOCK_ERROR_NS = "spotgpu.clock.error_ns"  # bound on kernel time -> wall time
