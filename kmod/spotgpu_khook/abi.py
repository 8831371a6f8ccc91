# SPDX-License-Identifier: Apache-2.0
"""The numbers of khook.h by their names there, without the prefix. khook.h explains them.

`tests/unit/khook/test_abi.py` lets gcc print every enumerator of the header and compares, both ways.
"""

from __future__ import annotations

from enum import IntEnum

GENL_NAME = "khook"
GENL_VERSION = 1
MCGRP_EVENTS = "events"


class Limit(IntEnum):
    """enum khook_limit."""

    MAX_GATES = 16
    MAX_WATCHES = 1024
    MAX_FENCES = 1024
    MAX_LEASES = 64
    MAX_HOLDS = 65536
    MAX_DEADLINE_MS = 600000
    MAX_ORPHAN_MS = 600000
    MAX_HEARTBEAT_MS = 600000


class Default(IntEnum):
    """enum khook_default."""

    DEADLINE_MS = 10000
    ORPHAN_MS = 3000
    HEARTBEAT_MS = 0


class Cmd(IntEnum):
    """enum khook_cmd."""

    UNSPEC = 0
    ATTACH = 1
    HEARTBEAT = 2
    ARM = 3
    DISARM = 4
    DETECT = 5
    UNDETECT = 6
    LEASE = 7
    UNLEASE = 8
    FENCE = 9
    UNFENCE = 10
    RELEASE = 11
    EVICT = 12
    GET_GATE = 13
    GET_WATCH = 14
    GET_HOLD = 15
    GET_FENCE = 16
    GET_STATS = 17
    EVENT = 18


class EventKind(IntEnum):
    """enum khook_event."""

    UNSPEC = 0
    HOLD = 1
    RELEASE = 2
    EMPTY = 3
    ORPHAN = 4
    GATE_LOST = 5
    FENCED = 6


class Classifier(IntEnum):
    """enum khook_classifier."""

    UNSPEC = 0
    ANY = 1
    NVIDIA_RM = 2
    NVIDIA_UVM = 3


class IoctlClass(IntEnum):
    """enum khook_class."""

    UNSPEC = 0
    QUERY = 1
    COMPUTE = 2
    UVM = 3


class Method(IntEnum):
    """enum khook_method."""

    AUTO = 0
    FTRACE = 1
    KPROBE = 2


class GateState(IntEnum):
    """enum khook_gate_state."""

    UNSPEC = 0
    ARMED = 1
    LIVE = 2
    LOST = 3


class WatchState(IntEnum):
    """enum khook_watch_state."""

    UNSPEC = 0
    WATCHING = 1
    HOLDING = 2
    OPEN = 3
    BLOCKED = 4


class ReturnOn(IntEnum):
    """enum khook_return_on."""

    COMPUTE = 0
    ANY = 1


class AtDeadline(IntEnum):
    """enum khook_at_deadline."""

    RELEASE = 0
    EIO = 1


class OnHold(IntEnum):
    """enum khook_on_hold."""

    KILL = 0
    NOTIFY = 1


class ReleaseOn(IntEnum):
    """enum khook_release_on."""

    PROOF = 0
    EMPTY = 1


class Outcome(IntEnum):
    """enum khook_outcome."""

    UNSPEC = 0
    RELEASED = 1
    EMPTY = 2
    DEADLINE = 3
    DEADLINE_EIO = 4
    ORPHAN = 5
    UNDETECTED = 6


class Attr(IntEnum):
    """enum khook_attr."""

    UNSPEC = 0
    PAD = 1
    VERSION = 2
    EVENT = 3
    FD = 4
    GATE = 5
    WATCH = 6
    HOLD = 7
    RETURN = 8
    CGROUP = 9
    PIDNS = 10
    PID = 11
    TID = 12
    START_TICKS = 13
    COMM = 14
    DEV = 15
    IOCTL = 16
    CLASS = 17
    CLASSIFIER = 18
    METHOD = 19
    GATE_STATE = 20
    WATCH_STATE = 21
    RETURN_ON = 22
    DEADLINE_MS = 23
    AT_DEADLINE = 24
    ON_HOLD = 25
    RELEASE_ON = 26
    ORPHAN_MS = 27
    HEARTBEAT_MS = 28
    OUTCOME = 29
    FIRST_NS = 30
    KILL_NS = 31
    KILLED_NS = 32
    EMPTY_NS = 33
    RELEASE_NS = 34
    AGE_NS = 35
    HEARTBEAT_AGE_NS = 36
    HOLDS = 37
    PASSES = 38
    CALLS = 39
    ADOPTED = 40
    AGENT_PORTID = 41
    MODULE = 42
    FUNCTION = 43
    LEASE_CGROUP = 44
    STAT_GATES = 45
    STAT_WATCHES = 46
    STAT_FENCES = 47
    STAT_HOLDS = 48
    STAT_RETURNS = 49
    STAT_RELEASED = 50
    STAT_EMPTY = 51
    STAT_DEADLINE = 52
    STAT_DEADLINE_EIO = 53
    STAT_ORPHAN = 54
    STAT_UNDETECTED = 55
    STAT_OVERFLOW = 56
    STAT_RESTARTED = 57
    STAT_FENCED = 58
    STAT_KILLED = 59
    STAT_EVENTS_LOST = 60
    STAT_SELFTESTS = 61
