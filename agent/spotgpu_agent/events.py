# SPDX-License-Identifier: Apache-2.0
"""What goes into the core: facts, each with the time it was true, each of one owner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotgpu.names import Outcome
from spotgpu_agent.model import Amounts, Caller, Holder, OwnerContainer, ProcessMemory, SpotContainer


class Purpose(StrEnum):
    """Why the owner's use of its devices was sampled."""

    IDLE = "idle"  # is it idle?
    RECOUNT = "recount"  # the watch is set: is it still idle?


class AdminAction(StrEnum):
    """What a person asked for."""

    EVICT = "evict"  # kill the spot containers; the devices stay lendable
    RETURN = "return"  # let the owner through now, evict, active again
    LEND = "lend"  # don't wait for max_inactive; every other condition stays


@dataclass(frozen=True, slots=True)
class ContainersSeen:
    """A complete snapshot of containerd for one owner: its running container, and the running spot ones."""

    owner: str
    container: OwnerContainer | None
    spots: tuple[SpotContainer, ...]


class Adopted(StrEnum):
    """What a watch left by the agent before is worth."""

    TRUSTED = "trusted"  # set, and the state file of this boot says the devices were proven idle under it
    UNTRUSTED = "untrusted"  # set, but nothing says since when
    HOLDING = "holding"  # a return is in it; Held follows
    OPEN = "open"  # a return has ended, everything passes
    BLOCKED = "blocked"  # a return has ended with EIO, everything fails


@dataclass(frozen=True, slots=True)
class WatchAdopted:
    """After a restart: the kernel has kept this watch.

    Attributes:
        leases: cgroup ids the kernel has as its lease.
    """

    owner: str
    watch: int
    kind: Adopted
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """After a restart, from the state file of this boot, when the owner's container is still the same.

    Comes after WatchAdopted and before Held.

    Attributes:
        unfinished: spot containers whose eviction was not over.
    """

    owner: str
    baseline: Amounts
    quarantined: tuple[tuple[str, str], ...]
    unfinished: tuple[SpotContainer, ...]


@dataclass(frozen=True, slots=True)
class WatchSet:
    """The kernel watches the owner from now on."""

    owner: str
    watch: int


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """The kernel refused to watch the owner."""

    owner: str
    message: str


@dataclass(frozen=True, slots=True)
class GatesLost:
    """The driver went away: nothing can be held."""

    owner: str
    message: str


@dataclass(frozen=True, slots=True)
class GatesArmed:
    """The driver's gates are armed (again)."""

    owner: str


@dataclass(frozen=True, slots=True)
class LeaseSet:
    """The kernel knows that this spot cgroup sits on the owner's devices."""

    owner: str
    cgroup: int


@dataclass(frozen=True, slots=True)
class LeaseFailed:
    """The kernel refused a lease."""

    owner: str
    cgroup: int
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """One sample of who uses the owner's devices.

    Attributes:
        started_ns: when the sample began.
        at_ns: when it was complete.
        holders: every process with a node of the vendor open or mapped; None: no answer.
        utilisation: per cent by device; None: no answer.
        memory: bytes by device; None: no answer.
    """

    owner: str
    purpose: Purpose
    started_ns: int
    at_ns: int
    holders: tuple[Holder, ...] | None
    utilisation: Amounts | None
    memory: Amounts | None


@dataclass(frozen=True, slots=True)
class Held:
    """A return began: the kernel holds the owner's first call."""

    owner: str
    watch: int
    id: int
    first_ns: int
    caller: Caller


@dataclass(frozen=True, slots=True)
class LeaseEmpty:
    """The kernel saw every cgroup of the lease unpopulated."""

    owner: str
    id: int
    kill_ns: int
    killed_ns: int
    empty_ns: int


@dataclass(frozen=True, slots=True)
class CgroupEmpty:
    """A spot cgroup is unpopulated or gone."""

    owner: str
    cgroup: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Killed:
    """The agent has killed (or terminated) a spot cgroup; `failed` is why not."""

    owner: str
    cgroup: int
    at_ns: int
    terminate: bool = False
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class HandlesSeen:
    """A scan for a drain. `holders` as in Usage; None: no answer."""

    owner: str
    id: int
    started_ns: int
    at_ns: int
    holders: tuple[Holder, ...] | None


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """A memory sample for a drain.

    Attributes:
        used: bytes by device; None: no answer.
        processes: who has how much; None: no answer.
    """

    owner: str
    id: int
    started_ns: int
    at_ns: int
    used: Amounts | None
    processes: tuple[ProcessMemory, ...] | None


@dataclass(frozen=True, slots=True)
class ReleaseRefused:
    """The kernel refused RELEASE."""

    owner: str
    id: int
    message: str


@dataclass(frozen=True, slots=True)
class ReturnEnded:
    """The kernel ended a return. Zero times have not happened."""

    owner: str
    id: int
    outcome: Outcome
    release_ns: int
    kill_ns: int = 0
    killed_ns: int = 0
    empty_ns: int = 0
    holds: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The kernel took the agent for dead and acts alone on this return."""

    owner: str
    id: int


class TimerName(StrEnum):
    """What a timer is for."""

    KILL = "kill"  # the kernel's kill has not emptied the cgroups yet: kill as well
    GRACE = "grace"  # the grace after SIGTERM is over
    OVERDUE = "overdue"  # the proof is overdue
    RELEASE = "release"  # RELEASE was refused, or its event is missing


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a drain fired."""

    owner: str
    name: TimerName
    id: int


@dataclass(frozen=True, slots=True)
class Admin:
    """A person asked for something."""

    owner: str
    action: AdminAction


Event = (
    ContainersSeen
    | Restored
    | WatchAdopted
    | WatchSet
    | WatchFailed
    | GatesLost
    | GatesArmed
    | LeaseSet
    | LeaseFailed
    | Usage
    | Held
    | LeaseEmpty
    | CgroupEmpty
    | Killed
    | HandlesSeen
    | MemorySeen
    | ReleaseRefused
    | ReturnEnded
    | Orphaned
    | Timer
    | Admin
)
