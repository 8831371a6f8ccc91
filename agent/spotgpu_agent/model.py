# SPDX-License-Identifier: Apache-2.0
"""What the agent knows: policies, containers, holders, and the state that the core turns over.

Everything is frozen and made of plain values, so a state can be compared, written as JSON and replayed.
Times are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from spotgpu.names import DeviceState, EvictionReason, Outcome, Trigger, Witness

Amounts = tuple[tuple[str, int], ...]  # device UUID -> amount; a tuple so that it stays frozen


class ReturnOn(StrEnum):
    """Which ioctls are a return."""

    COMPUTE = "compute"
    ANY = "any"


class AtDeadline(StrEnum):
    """What the kernel does with the owner's calls when the deadline passes."""

    RELEASE = "release"
    EIO = "eio"


class OnHold(StrEnum):
    """Who kills the spot containers at the first hold."""

    KILL = "kill"
    NOTIFY = "notify"


class ReleaseOn(StrEnum):
    """What lets the owner through: the agent's proof, or the empty lease."""

    PROOF = "proof"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Policy:
    """How one owner's devices are lent and handed back.

    Attributes:
        deadline_ns: from the first hold; then the kernel does `at_deadline`.
        evict_grace_ns: with `notify`: time between SIGTERM and SIGKILL.
        max_inactive_ns: how long the owner must be idle before its devices are lendable again.
        memory_slack: bytes above the baseline that still count as free.
        allow_holders: cgroup paths (with what is below them) that may have a lent device open.
    """

    deadline_ns: int
    at_deadline: AtDeadline
    return_on: ReturnOn
    on_hold: OnHold
    release_on: ReleaseOn
    evict_grace_ns: int
    max_inactive_ns: int
    memory_slack: int
    allow_holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerContainer:
    """The owner's running container.

    Attributes:
        id: containerd's id.
        cgroup: cgroup v2 id (inode number of its directory).
        path: cgroup path from the root of the hierarchy, `/default/owner`.
    """

    id: str
    cgroup: int
    path: str


@dataclass(frozen=True, slots=True)
class SpotContainer:
    """A running spot container on an owner's devices.

    Attributes:
        id: containerd's id.
        cgroup: cgroup v2 id.
        path: cgroup path.
        devices: UUIDs it may use, all of one owner.
        refused: why it may not be lent anything; None when it may.
    """

    id: str
    cgroup: int
    path: str
    devices: tuple[str, ...]
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a device node open or mapped.

    Attributes:
        pid: in the initial pid namespace.
        comm: its name.
        cgroup: its cgroup path.
        devices: UUIDs of the devices whose own nodes it has.
        shared: it has a node that serves all devices (nvidiactl, nvidia-uvm).
        mapped: a mapping, not an open file, shows it.
    """

    pid: int
    comm: str
    cgroup: str
    devices: tuple[str, ...]
    shared: bool = False
    mapped: bool = False

    def __str__(self) -> str:
        return f"{self.comm}({self.pid})"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Device memory of one process as the driver accounts it.

    Attributes:
        device: UUID.
        pid: in the initial pid namespace.
        used: bytes.
        cgroup: its cgroup path; empty when the process is gone.
    """

    device: str
    pid: int
    used: int
    cgroup: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made the first held call."""

    pid: int
    tid: int
    comm: str
    cgroup: int
    device_number: int
    ioctl: int
    ioctl_class: str


class LeaseState(StrEnum):
    """Whether the kernel knows of a spot container's lease."""

    NONE = "none"
    ASKED = "asked"
    SET = "set"


@dataclass(frozen=True, slots=True)
class Spot:
    """A spot container as the core follows it, until it neither runs nor has processes.

    Attributes:
        running: containerd's last word.
        empty: its cgroup was seen unpopulated.
        ended_ns: when, if that was outside of any eviction.
        lease: whether the kernel knows.
        evicted: it is to die (or is dead) by our hand, so it is never leased again.
        fenced: a fence was asked for.
        tidied: containerd was told; kept only until its snapshots agree.
    """

    container: SpotContainer
    running: bool = True
    empty: bool = False
    ended_ns: int | None = None
    lease: LeaseState = LeaseState.NONE
    evicted: bool = False
    fenced: bool = False
    tidied: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """One witness, heard.

    Attributes:
        started_ns: when waiting for it began.
        proven_ns: when the sample that proved it was complete.
        attempts: samples it took.
    """

    started_ns: int
    proven_ns: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The way to the proof that the devices are free; after a hold, or after any other eviction.

    Attributes:
        id: khook's return id; negative when no hold is behind it.
        began_ns: the first hold, or the decision to evict.
        deadline_ns: when the proof is overdue.
        cgroups: spot cgroups not yet seen empty.
        spots: container ids evicted in it.
        kill_ns: first signal.
        killed_ns: last signal of the first pass.
        empty_ns: when the last of the cgroups was empty.
        scan_ns: when the first handle scan was asked for.
        read_ns: when the first memory sample was asked for.
        scanning: a handle scan is under way.
        reading: a memory sample is under way.
        scans: handle scans that did not prove it.
        reads: memory samples that did not prove it.
        kills: times the agent itself has killed.
        killed_by_agent: the agent's signal came first.
        terminated: SIGTERM was sent and its grace runs.
        holders: foreign holders of the last scan.
        used: memory of the last sample, bytes by device.
        unknown: witnesses whose last sample had no answer.
        overdue: the deadline passed without proof; samples go on slowly.
    """

    id: int
    reason: EvictionReason
    began_ns: int
    deadline_ns: int
    cgroups: tuple[int, ...] = ()
    spots: tuple[str, ...] = ()
    kill_ns: int | None = None
    killed_ns: int | None = None
    empty_ns: int | None = None
    scan_ns: int | None = None
    read_ns: int | None = None
    handles: Proof | None = None
    memory: Proof | None = None
    scanning: bool = False
    reading: bool = False
    scans: int = 0
    reads: int = 0
    kills: int = 0
    killed_by_agent: bool = False
    terminated: bool = False
    holders: tuple[Holder, ...] = ()
    used: Amounts = ()
    unknown: tuple[Witness, ...] = ()
    overdue: bool = False

    @property
    def missing(self) -> tuple[Witness, ...]:
        """Witnesses not heard yet, in order."""
        heard = {
            Witness.CGROUP: self.empty_ns is not None,
            Witness.HANDLES: self.handles is not None,
            Witness.MEMORY: self.memory is not None,
        }
        return tuple(witness for witness, yes in heard.items() if not yes)

    @property
    def proven(self) -> bool:
        """All three witnesses were heard."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class Ended:
    """How the kernel ended a return."""

    outcome: Outcome
    release_ns: int
    holds: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class HandBack:
    """A return that is being answered; its proof is the Drain with the same id.

    Attributes:
        id: khook's return id; negative when no hold is behind it.
        trigger: what told of the return.
        first_ns: the first blocked call, or the decision.
        watch: khook's watch; None without a hold.
        caller: of the first held call.
        release_sent_ns: when RELEASE was asked for.
        releases: how often.
        ended: the kernel has let the owner through (or failed it); the devices are still being verified.
    """

    id: int
    trigger: Trigger
    first_ns: int
    watch: int | None = None
    caller: Caller | None = None
    release_sent_ns: int | None = None
    releases: int = 0
    ended: Ended | None = None


class Arming(StrEnum):
    """Where an idle owner is on its way to lendable."""

    NO = "no"
    DETECTING = "detecting"
    RECOUNTING = "recounting"


@dataclass(frozen=True, slots=True)
class OwnerState:
    """All that is known of one owner and its devices.

    Attributes:
        availability: of all its devices; they are lent and handed back together.
        container: None while it does not run.
        watch: khook's, None when there is none.
        watching: the watch is set and has caught every call since the owner was proven idle.
        blocked: the deadline's policy was EIO and its calls still fail.
        gates: the driver's gates are armed.
        arming: on the way from ACTIVE to LENDABLE.
        eager: the first idle sample is enough (agent or owner just started: no history to wait for).
        idle_since_ns: since when every sample has been idle; None when the last was not.
        sampled_ns: when the last sample was taken.
        baseline: device memory in use when nobody uses it.
        quarantined: device -> why it is not to be lent.
        evictions: eviction counter, for ids of drains without a hold.
    """

    name: str
    policy: Policy
    devices: tuple[str, ...]
    availability: DeviceState = DeviceState.ACTIVE
    container: OwnerContainer | None = None
    watch: int | None = None
    watching: bool = False
    blocked: bool = False
    gates: bool = True
    arming: Arming = Arming.NO
    eager: bool = True
    idle_since_ns: int | None = None
    sampled_ns: int | None = None
    spots: tuple[Spot, ...] = ()
    handback: HandBack | None = None
    drain: Drain | None = None
    baseline: Amounts = ()
    quarantined: tuple[tuple[str, str], ...] = ()
    evictions: int = 0

    def spot(self, cgroup: int) -> Spot | None:
        """The spot container with this cgroup id."""
        return next((spot for spot in self.spots if spot.container.cgroup == cgroup), None)


@dataclass(frozen=True, slots=True)
class State:
    """All owners of the node, in the order of the configuration."""

    owners: tuple[OwnerState, ...] = field(default=())

    def owner(self, name: str) -> OwnerState | None:
        """The owner of this name."""
        return next((owner for owner in self.owners if owner.name == name), None)

    def turned(self, owner: OwnerState) -> State:
        """This state with one owner replaced."""
        return replace(self, owners=tuple(owner if old.name == owner.name else old for old in self.owners))


def amount(amounts: Amounts, device: str, default: int = 0) -> int:
    """The amount of one device."""
    return next((value for name, value in amounts if name == device), default)


def below(path: str, ancestor: str) -> bool:
    """Whether a cgroup path is `ancestor` or below it; both from the root of the hierarchy."""
    root = ancestor.rstrip("/")
    return path == root or path.startswith(root + "/")
