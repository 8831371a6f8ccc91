# SPDX-License-Identifier: Apache-2.0
"""A small model of a node for the core: it carries out commands and makes events of what then is true.

It is no mock of a module: it is the other half of the game, with a kernel that holds, kills and keeps the
deadline, spot containers that die slowly, and a driver that gives memory back slowly, or not. The truth is in
it, so a test can ask at the moment of a release whether the device really was free.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

from spotgpu.names import DeviceState, Outcome
from spotgpu_agent import commands as c
from spotgpu_agent import events as e
from spotgpu_agent.core import poll_ns, step
from spotgpu_agent.model import (
    AtDeadline,
    Caller,
    Holder,
    OnHold,
    OwnerContainer,
    OwnerState,
    Policy,
    ProcessMemory,
    ReleaseOn,
    ReturnOn,
    SpotContainer,
    State,
)

MS = 1_000_000
S = 1_000 * MS
GIB = 1 << 30
DEVICE = "GPU-0"
CALLER = Caller(900, 900, "python", 11, 0xC3FF, 0xC020462B, "compute")
POLICY = Policy(
    deadline_ns=10 * S,
    at_deadline=AtDeadline.RELEASE,
    return_on=ReturnOn.COMPUTE,
    on_hold=OnHold.KILL,
    release_on=ReleaseOn.PROOF,
    evict_grace_ns=0,
    max_inactive_ns=5 * S,
    memory_slack=64 << 20,
    allow_holders=("/system.slice/exporter",),
)


def owner_state(
    name: str = "dev", policy: Policy = POLICY, devices: tuple[str, ...] = (DEVICE,)
) -> OwnerState:
    return OwnerState(name=name, policy=policy, devices=devices)


def owner_container(name: str = "dev", cgroup: int = 11) -> OwnerContainer:
    return OwnerContainer(f"{name}-id", cgroup, f"/default/{name}")


def spot_container(number: int = 1, devices: tuple[str, ...] = (DEVICE,)) -> SpotContainer:
    return SpotContainer(f"spot{number}", 100 + number, f"/default/spot{number}", devices)


def holder(path: str, pid: int = 77, devices: tuple[str, ...] = (DEVICE,), shared: bool = True) -> Holder:
    return Holder(pid, "proc", path, devices, shared)


@dataclass
class SpotLife:
    """How one spot container dies.

    Attributes:
        dies_ns: from the first SIGKILL to the empty cgroup; None: never.
        obeys_term_ns: from SIGTERM to the empty cgroup; None: ignores it.
    """

    container: SpotContainer
    dies_ns: int | None = 50 * MS
    obeys_term_ns: int | None = None
    alive: bool = True
    dying: bool = False
    told: bool = False  # containerd was told


@dataclass
class Release:
    """One time the owner was let through."""

    at_ns: int
    by: Outcome
    free: bool  # the truth


@dataclass
class World:
    """One owner, its spot containers, the kernel and the driver.

    Attributes:
        memory_ns: from the last spot process's death to the memory's return; None: never.
        memory_mute: memory samples that get no answer.
        handles_mute: handle scans that get no answer.
        kernel_kills: khook's kill works.
        khook_lag_ns: how late khook's events are read; cgroup.events is told of in time.
        lost: names of event classes from the kernel that are lost on the way.
        stranger: another process has the device open until this time.
    """

    policy: Policy = POLICY
    spots: list[SpotLife] = field(default_factory=list)
    memory_ns: int | None = 20 * MS
    memory_mute: int = 0
    handles_mute: int = 0
    kernel_kills: bool = True
    khook_lag_ns: int = MS
    lost: frozenset[str] = frozenset()
    stranger_until_ns: int = 0
    refuse_lease: bool = False
    now: int = 1_000 * S
    container: OwnerContainer = field(default_factory=lambda: owner_container())

    def __post_init__(self) -> None:
        self.state = State((owner_state(policy=self.policy),))
        self.queue: list[tuple[int, int, object]] = []
        self.serial = 0
        self.log: list[tuple[int, e.Event, c.Decision]] = []
        self.watch_state = "none"
        self.watches = 0
        self.leases: set[int] = set()
        self.fenced: set[int] = set()
        self.return_id = 0
        self.first_ns = 0
        self.kill_ns = 0
        self.empty_ns = 0
        self.owner_open = False
        self.owner_memory = 0
        self.memory_back_at: int | None = 0
        self.releases: list[Release] = []
        self.finished: list[c.Report] = []
        self.evictions: list[c.CountEviction] = []
        self.tidied: list[str] = []
        self.followed: set[int] = set()

    # The clockwork ------------------------------------------------------------------------------------------

    def at(self, at_ns: int, what: object) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (at_ns, self.serial, what))

    def give(self, event: e.Event) -> None:
        if type(event).__name__ in self.lost:
            return
        decision = step(self.state, event, self.now)
        assert decision.reasons, f"no reason for {event}"
        self.state = decision.state
        self.log.append((self.now, event, decision))
        for command in decision.commands:
            getattr(self, "do_" + type(command).__name__)(command)

    def run(self, for_ns: int) -> None:
        """Let time pass; idle samples come while the owner is ACTIVE, as the runner makes them."""
        until = self.now + for_ns
        self.at(self.now, "poll")
        while self.queue and self.queue[0][0] <= until:
            at_ns, _, what = heapq.heappop(self.queue)
            self.now = max(self.now, at_ns)
            if what == "poll":
                if self.owner.availability is DeviceState.ACTIVE:
                    self.give(self.usage(e.Purpose.IDLE))
                if self.now + poll_ns(self.policy) <= until:
                    self.at(self.now + poll_ns(self.policy), "poll")
            elif callable(what):
                what()
            else:
                self.give(what)  # type: ignore[arg-type]
        self.now = until

    @property
    def owner(self) -> OwnerState:
        return self.state.owners[0]

    def availability(self) -> DeviceState:
        return self.owner.availability

    # What is true -------------------------------------------------------------------------------------------

    def living(self) -> list[SpotLife]:
        return [spot for spot in self.spots if spot.alive]

    def spot_memory(self) -> int:
        if self.living():
            return 4 * GIB
        return 0 if self.memory_back_at is not None and self.now >= self.memory_back_at else 4 * GIB

    def free(self) -> bool:
        return not self.living() and self.spot_memory() == 0 and self.now >= self.stranger_until_ns

    def holders(self) -> tuple[Holder, ...]:
        found = [holder(spot.container.path, 200) for spot in self.living()]
        if self.owner_open:
            found.append(holder("/default/dev", 900))
        if self.now < self.stranger_until_ns:
            found.append(holder("/system.slice/other", 666))
        return tuple(found)

    def used(self) -> tuple[tuple[str, int], ...]:
        return ((DEVICE, self.spot_memory() + self.owner_memory),)

    def usage(self, purpose: e.Purpose) -> e.Usage:
        busy = 90 if self.living() else 0
        return e.Usage("dev", purpose, self.now, self.now, self.holders(), ((DEVICE, busy),), self.used())

    def snapshot(self) -> e.ContainersSeen:
        running = tuple(spot.container for spot in self.living())
        return e.ContainersSeen("dev", self.container, running)

    # The owner and the kernel -------------------------------------------------------------------------------

    def owner_calls(self) -> None:
        """The owner's first compute call."""
        if self.watch_state == "watching":
            self.watch_state = "holding"
            self.return_id += 1
            self.first_ns, self.kill_ns, self.empty_ns = self.now, 0, 0
            if self.policy.on_hold is OnHold.KILL and self.kernel_kills:
                self.kill_ns = self.now
                for spot in self.living():
                    if spot.container.cgroup in self.leases:
                        self.kill(spot, self.now)
            self.at(self.now + self.policy.deadline_ns, self.deadline_for(self.return_id))
            event = e.Held("dev", self.watches, self.return_id, self.first_ns, CALLER)
            self.at(self.now + self.khook_lag_ns, event)
            self.lease_check()
        elif self.watch_state != "holding":
            self.through()

    def through(self) -> None:
        self.owner_open = True
        self.owner_memory = GIB

    def owner_done(self) -> None:
        self.owner_open = False
        self.owner_memory = 0

    def deadline_for(self, number: int) -> object:
        def passes() -> None:
            if self.watch_state == "holding" and self.return_id == number:
                eio = self.policy.at_deadline is AtDeadline.EIO
                self.let_go(Outcome.DEADLINE_EIO if eio else Outcome.DEADLINE)

        return passes

    def lease_check(self) -> None:
        """The kernel's look at the lease, after every death."""
        if self.watch_state != "holding" or self.empty_ns:
            return
        if any(spot.container.cgroup in self.leases for spot in self.living()):
            return
        self.empty_ns = self.now
        event = e.LeaseEmpty("dev", self.return_id, self.kill_ns, self.kill_ns, self.empty_ns)
        self.at(self.now + self.khook_lag_ns, event)
        if self.policy.release_on is ReleaseOn.EMPTY:
            self.let_go(Outcome.EMPTY)

    def let_go(self, outcome: Outcome) -> None:
        self.releases.append(Release(self.now, outcome, self.free()))
        self.watch_state = "blocked" if outcome is Outcome.DEADLINE_EIO else "open"
        if outcome is not Outcome.DEADLINE_EIO:
            self.through()
        event = e.ReturnEnded(
            "dev", self.return_id, outcome, self.now, self.kill_ns, self.kill_ns, self.empty_ns, 1, 1
        )
        self.at(self.now + self.khook_lag_ns, event)

    def kill(self, spot: SpotLife, at_ns: int) -> None:
        if spot.dying or spot.dies_ns is None:
            return
        spot.dying = True
        self.at(at_ns + spot.dies_ns, lambda: self.dead(spot))

    def dead(self, spot: SpotLife) -> None:
        if not spot.alive:
            return
        spot.alive = False
        if not self.living():
            self.memory_back_at = None if self.memory_ns is None else self.now + self.memory_ns
        self.lease_check()
        if spot.container.cgroup in self.followed:
            self.at(self.now + 2 * MS, e.CgroupEmpty("dev", spot.container.cgroup, self.now + 2 * MS))
        self.at(self.now + 30 * MS, lambda: self.give(self.snapshot()))

    # Commands -----------------------------------------------------------------------------------------------

    def do_Detect(self, command: c.Detect) -> None:  # noqa: N802 - named after the command, here and below
        if self.watch_state == "none":
            self.watches += 1
        if self.watch_state != "holding":
            self.watch_state = "watching"
        self.at(self.now + MS, e.WatchSet("dev", self.watches))

    def do_Undetect(self, command: c.Undetect) -> None:  # noqa: N802
        if self.watch_state == "holding":
            self.let_go(Outcome.UNDETECTED)
        self.watch_state = "none"
        self.leases.clear()

    def do_TakeUsage(self, command: c.TakeUsage) -> None:  # noqa: N802
        self.at(self.now + 2 * MS, lambda: self.give(self.usage(command.purpose)))

    def do_Lease(self, command: c.Lease) -> None:  # noqa: N802
        if self.refuse_lease:
            self.at(self.now + MS, e.LeaseFailed("dev", command.cgroup, "no room"))
            return
        self.leases.add(command.cgroup)
        if self.watch_state == "holding" and self.policy.on_hold is OnHold.KILL and self.kernel_kills:
            for spot in self.living():
                if spot.container.cgroup == command.cgroup:
                    self.kill(spot, self.now)
        self.at(self.now + MS, e.LeaseSet("dev", command.cgroup))

    def do_Unlease(self, command: c.Unlease) -> None:  # noqa: N802
        self.leases.discard(command.cgroup)

    def do_Fence(self, command: c.Fence) -> None:  # noqa: N802
        assert command.cgroup not in self.fenced, "fenced twice"
        self.fenced.add(command.cgroup)

    def do_Unfence(self, command: c.Unfence) -> None:  # noqa: N802
        self.fenced.remove(command.cgroup)

    def do_Kill(self, command: c.Kill) -> None:  # noqa: N802
        for spot in self.living():
            if spot.container.cgroup == command.cgroup:
                if not command.terminate:
                    self.kill(spot, self.now)
                elif spot.obeys_term_ns is not None:
                    self.at(self.now + spot.obeys_term_ns, lambda spot=spot: self.dead(spot))
        self.at(self.now + MS, e.Killed("dev", command.cgroup, self.now, command.terminate))

    def do_Follow(self, command: c.Follow) -> None:  # noqa: N802
        assert command.cgroup not in self.followed, "followed twice"
        self.followed.add(command.cgroup)

    def do_Unfollow(self, command: c.Unfollow) -> None:  # noqa: N802
        self.followed.remove(command.cgroup)

    def do_Begin(self, command: c.Begin) -> None:  # noqa: N802
        self.begun = command

    def do_ScanHandles(self, command: c.ScanHandles) -> None:  # noqa: N802
        started = self.now + command.delay_ns

        def scan() -> None:
            found: tuple[Holder, ...] | None = self.holders()
            if self.handles_mute:
                self.handles_mute -= 1
                found = None
            self.give(e.HandlesSeen("dev", command.id, started, self.now, found))

        self.at(started + 2 * MS, scan)

    def do_ReadMemory(self, command: c.ReadMemory) -> None:  # noqa: N802
        started = self.now + command.delay_ns

        def read() -> None:
            used, processes = self.used(), (ProcessMemory(DEVICE, 900, self.owner_memory, "/default/dev"),)
            if self.memory_mute:
                self.memory_mute -= 1
                self.give(e.MemorySeen("dev", command.id, started, self.now, None, None))
            else:
                self.give(e.MemorySeen("dev", command.id, started, self.now, used, processes))

        self.at(started + MS, read)

    def do_Release(self, command: c.Release) -> None:  # noqa: N802
        if self.watch_state == "holding" and command.id == self.return_id:
            self.let_go(Outcome.RELEASED)
        elif self.watch_state == "blocked" and command.id is None:
            self.watch_state = "open"
        elif command.id is not None:
            self.at(self.now + MS, e.ReleaseRefused("dev", command.id, "that return is over"))

    def do_SetTimer(self, command: c.SetTimer) -> None:  # noqa: N802
        self.at(command.at_ns, e.Timer("dev", command.name, command.id))

    def do_Resync(self, command: c.Resync) -> None:  # noqa: N802
        """What the runner makes of a dump."""
        back = self.owner.handback
        if back is None or back.watch is None or back.ended is not None:
            return
        if self.watch_state == "holding":
            event: e.Event = e.Held("dev", self.watches, self.return_id, self.first_ns, CALLER)
        else:
            last = self.releases[-1]
            event = e.ReturnEnded("dev", back.id, last.by, last.at_ns, self.kill_ns, 0, self.empty_ns)

        def give() -> None:
            lost, self.lost = self.lost, frozenset()  # a dump is not lossy
            self.give(event)
            self.lost = lost

        self.at(self.now + MS, give)

    def do_Refresh(self, command: c.Refresh) -> None:  # noqa: N802
        self.at(self.now + MS, lambda: self.give(self.snapshot()))

    def do_Tidy(self, command: c.Tidy) -> None:  # noqa: N802
        self.tidied.append(command.container)

    def do_CountEviction(self, command: c.CountEviction) -> None:  # noqa: N802
        self.evictions.append(command)

    def do_Finish(self, command: c.Finish) -> None:  # noqa: N802
        self.finished.append(command.report)

    def do_Save(self, command: c.Save) -> None:  # noqa: N802
        pass


def lent(world: World) -> World:
    """Take a fresh world to where its spot containers have the owner's device."""
    world.give(world.snapshot())
    world.run(100 * MS)
    assert world.owner.availability is (DeviceState.LENT if world.spots else DeviceState.LENDABLE)
    return world


def with_policy(**changes: object) -> Policy:
    return replace(POLICY, **changes)  # type: ignore[arg-type]
