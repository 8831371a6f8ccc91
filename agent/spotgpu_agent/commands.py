# SPDX-License-Identifier: Apache-2.0
"""What comes out of the core: commands for the effects, reasons for people, and the report of a hand-back."""

from __future__ import annotations

from dataclasses import dataclass

from spotgpu.names import EvictionMethod, EvictionReason, Outcome, Trigger, Witness
from spotgpu_agent.events import Purpose, TimerName
from spotgpu_agent.model import Amounts, Caller, Holder, Policy, Proof, SpotContainer, State


@dataclass(frozen=True, slots=True)
class Detect:
    """Watch this cgroup. Answer: WatchSet or WatchFailed."""

    owner: str
    cgroup: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class Undetect:
    """Forget the watch, let its holds through."""

    owner: str
    watch: int


@dataclass(frozen=True, slots=True)
class TakeUsage:
    """Sample the use of the devices now. Answer: Usage. (While ACTIVE, idle samples come by themselves.)"""

    owner: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Lease:
    """Tell the kernel that a spot cgroup sits on the watch's devices. Answer: LeaseSet or LeaseFailed."""

    owner: str
    watch: int
    cgroup: int


@dataclass(frozen=True, slots=True)
class Unlease:
    """Take that back."""

    owner: str
    watch: int
    cgroup: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The cgroup may open and ioctl nothing new on any gate."""

    owner: str
    cgroup: int


@dataclass(frozen=True, slots=True)
class Unfence:
    """Take that back."""

    owner: str
    cgroup: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL everything in the cgroup; with `terminate`, SIGTERM its processes. Answer: Killed."""

    owner: str
    cgroup: int
    path: str
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """Say when the cgroup is empty (CgroupEmpty), from now until Unfollow."""

    owner: str
    cgroup: int
    path: str


@dataclass(frozen=True, slots=True)
class Unfollow:
    """The cgroup matters no more."""

    owner: str
    cgroup: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A hand-back begins: its trace too."""

    owner: str
    id: int
    trigger: Trigger
    first_ns: int
    watch: int | None
    caller: Caller | None
    spots: tuple[SpotContainer, ...]


@dataclass(frozen=True, slots=True)
class ScanHandles:
    """Who has the devices open or mapped? After a delay. Answer: HandlesSeen."""

    owner: str
    id: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """How much device memory is in use? After a delay. Answer: MemorySeen."""

    owner: str
    id: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let the owner through. Answer: ReturnEnded, or ReleaseRefused. `id` None: whatever return it is in."""

    owner: str
    watch: int
    id: int | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send Timer at this time."""

    owner: str
    name: TimerName
    id: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Resync:
    """Read the kernel's watches and holds anew; an event may be lost."""

    owner: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Read containerd anew, without waiting for its events."""

    owner: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """The container's processes are gone: tell containerd (Kill, Delete of its task). Nobody waits for it."""

    owner: str
    container: str


@dataclass(frozen=True, slots=True)
class CountEviction:
    """A spot container was evicted."""

    owner: str
    id: int
    container: str
    reason: EvictionReason
    method: EvictionMethod
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Report:
    """What one hand-back came to: the trace, the metrics and the log are made of it.

    Attributes:
        first_ns: first blocked call, or the decision.
        end_ns: the owner was let through; without a hold, the proof (or its end).
        late: witnesses that came late, in order.
        missing: witnesses never heard.
        error_type: low-cardinality failure, None when proven.
    """

    id: int
    trigger: Trigger
    reason: EvictionReason
    outcome: Outcome
    first_ns: int
    end_ns: int
    kill_ns: int | None
    killed_ns: int | None
    empty_ns: int | None
    handles: Proof | None
    memory: Proof | None
    release_sent_ns: int | None
    release_ns: int | None
    killed_by_agent: bool
    spots: tuple[str, ...]
    late: tuple[Witness, ...]
    missing: tuple[Witness, ...]
    holders: tuple[Holder, ...]
    used: Amounts
    baseline: Amounts
    holds: int
    passes: int
    error_type: str | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The hand-back is over."""

    owner: str
    report: Report


@dataclass(frozen=True, slots=True)
class Save:
    """Write the state file. Nobody waits for it."""

    owner: str


Command = (
    Detect
    | Undetect
    | TakeUsage
    | Lease
    | Unlease
    | Fence
    | Unfence
    | Kill
    | Follow
    | Unfollow
    | Begin
    | ScanHandles
    | ReadMemory
    | Release
    | SetTimer
    | Resync
    | Refresh
    | Tidy
    | CountEviction
    | Finish
    | Save
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the core did what it did (or nothing).

    Attributes:
        code: constant, `owner-active`.
        text: for a person, with names and numbers.
        alert: someone should look at it.
    """

    owner: str
    code: str
    text: str
    alert: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes of one event."""

    state: State
    commands: tuple[Command, ...]
    reasons: tuple[Reason, ...]
