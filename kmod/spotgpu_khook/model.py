# SPDX-License-Identifier: Apache-2.0
"""What khook is told and what it tells, as frozen values.

Times are CLOCK_MONOTONIC in ns; 0: it has not happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotgpu_khook.abi import (
    AtDeadline,
    Classifier,
    Default,
    GateState,
    IoctlClass,
    Method,
    OnHold,
    Outcome,
    ReleaseOn,
    ReturnOn,
    WatchState,
)


@dataclass(frozen=True, slots=True)
class CgroupKey:
    """A cgroup with its descendants. `id`: cgroup v2 id, the inode number of its directory."""

    id: int

    def __str__(self) -> str:
        return f"cgroup {self.id}"


@dataclass(frozen=True, slots=True)
class PidnsKey:
    """A pid namespace with its descendants. `inum`: the inode number of /proc/PID/ns/pid."""

    inum: int

    def __str__(self) -> str:
        return f"pidns {self.inum}"


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """One process. `pid` in the initial pid namespace; `start_ticks`: field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"pid {self.pid} started at {self.start_ticks}"


Key = CgroupKey | PidnsKey | ProcessKey


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """What khook does for one watch.

    Attributes:
        return_on: which classes of ioctl are a return.
        deadline_ms: from the first hold; then `at_deadline` happens.
        on_hold: whether khook kills the lease itself.
        release_on: who lets the owner through.
    """

    return_on: ReturnOn = ReturnOn.COMPUTE
    deadline_ms: int = Default.DEADLINE_MS
    at_deadline: AtDeadline = AtDeadline.RELEASE
    on_hold: OnHold = OnHold.KILL
    release_on: ReleaseOn = ReleaseOn.PROOF


@dataclass(frozen=True, slots=True)
class Gate:
    """An ioctl handler that is armed.

    Attributes:
        dev: of the node it was armed by, as `Caller.dev`.
        module: the driver's name, "" if it is built in.
        function: the name of the handler.
        method: how it is hooked, or was last.
        calls: callers redirected since it was armed.
        holds: calls held now.
        warning: what the kernel had to say of a gate that was armed all the same; only `arm` sets it.
    """

    id: int
    dev: int
    module: str
    function: str
    classifier: Classifier
    method: Method
    state: GateState
    calls: int
    holds: int
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """When the lease was killed and found empty.

    Attributes:
        kill_ns: the first signal; 0 also if nobody was there to kill.
        killed_ns: the end of the first pass.
        empty_ns: the lease was found unpopulated.
        passes: how often every process was looked at.
    """

    kill_ns: int
    killed_ns: int
    empty_ns: int
    passes: int


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch with its current return, or its last (`return_id` 0: there was none yet).

    Attributes:
        holds: calls held now.
        first_ns: the return's first hold.
        release_ns: its end.
        leases: ids of the spot cgroups.
    """

    id: int
    key: Key
    policy: WatchPolicy
    state: WatchState
    holds: int
    return_id: int
    first_ns: int
    eviction: Eviction
    release_ns: int
    outcome: Outcome
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who called what.

    Attributes:
        pid: thread group, tid: thread, both in the initial pid namespace.
        cgroup: cgroup v2 id.
        pidns: inum.
        dev: the device node, by `new_encode_dev`.
        ioctl: the command number.
        gate: id.
    """

    pid: int
    tid: int
    comm: str
    cgroup: int
    pidns: int
    dev: int
    ioctl: int
    ioctl_class: IoctlClass
    gate: int

    @property
    def device(self) -> tuple[int, int]:
        """Major and minor number of the device node."""
        return (self.dev & 0xFFF00) >> 8, (self.dev & 0xFF) | (self.dev >> 12 & 0xFFF00)


@dataclass(frozen=True, slots=True)
class Hold:
    """One call that is held now. `age_ns`: since it fell asleep (a signal lets it start again)."""

    id: int
    watch: int
    return_id: int
    caller: Caller
    age_ns: int


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced cgroup and how many of its calls were refused."""

    cgroup: int
    calls: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the module was loaded, present sizes, and the agent.

    Attributes:
        agent_portid: 0 when no agent is attached.
        heartbeat_age_ns: since the agent's last command.
        now: name -> present number of gates, watches, fences, holds.
        total: name -> how often, by the names of khook.h without KHOOK_A_STAT_, in lower case.
        selftests: passed at load; 0 without the build option.
    """

    version: int
    orphan_ms: int
    heartbeat_ms: int
    agent_portid: int
    heartbeat_age_ns: int
    selftests: int
    now: dict[str, int] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HoldEvent:
    """A return began. One a return, however many calls are held."""

    watch: int
    return_id: int
    hold: int
    first_ns: int
    caller: Caller


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """A return ended. `holds`: calls held in all."""

    watch: int
    return_id: int
    hold: int
    first_ns: int
    caller: Caller
    release_ns: int
    outcome: Outcome
    holds: int
    eviction: Eviction


@dataclass(frozen=True, slots=True)
class EmptyEvent:
    """The lease of a held owner is unpopulated."""

    watch: int
    return_id: int
    eviction: Eviction


@dataclass(frozen=True, slots=True)
class OrphanEvent:
    """khook finishes this return alone."""

    watch: int
    return_id: int


@dataclass(frozen=True, slots=True)
class GateLostEvent:
    """The driver's module went away."""

    gate: int
    module: str


@dataclass(frozen=True, slots=True)
class FencedEvent:
    """A fenced cgroup was refused for the first time."""

    cgroup: int
    pid: int
    tid: int
    comm: str


Event = HoldEvent | ReleaseEvent | EmptyEvent | OrphanEvent | GateLostEvent | FencedEvent
