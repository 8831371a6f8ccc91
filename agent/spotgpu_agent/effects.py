# SPDX-License-Identifier: Apache-2.0
"""Carries out the core's commands. Thin: what is to be done was decided.

Each command that waits for an answer is a task of its own, so no owner waits for another's, and gives its
answer as an event. On the path of a hand-back nothing is opened, started or imported: the cgroup.events files
are open and the children run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from spotgpu_agent import cgroup, kernel
from spotgpu_agent import commands as c
from spotgpu_agent import events as e
from spotgpu_agent.clock import Clock
from spotgpu_agent.errors import BackendError, ContainerdError
from spotgpu_agent.model import State
from spotgpu_agent.startup import NodeAccess
from spotgpu_agent.tasks import NS, Tasks

LOOK_S: Final = 0.1  # a cgroup that is being emptied is also looked at, in case its event was lost

_log = logging.getLogger(__name__)


class Effects:
    """The doer.

    Args:
        node: what the agent has its hands on.
        clock: of the process.
        tasks: where work runs.
        state: the core's state of this moment.
        dispatch: takes events to the core.
    """

    def __init__(
        self,
        node: NodeAccess,
        clock: Clock,
        tasks: Tasks,
        state: Callable[[], State],
        dispatch: Callable[[e.Event], None],
    ) -> None:
        self._node = node
        self._backend = node.backend
        self._clock = clock
        self._tasks = tasks
        self._state = state
        self._dispatch = dispatch
        self._looking = False
        self.follower = cgroup.Follower()
        self.refresh = asyncio.Event()

    def start(self, command: c.Command) -> None:
        """Begin a command."""
        kind = type(command)
        if kind in self._at_once:
            self._at_once[kind](self, command)
        else:
            self._tasks.spawn(self._waits[kind](self, command), kind.__name__)

    # Done at once -------------------------------------------------------------------------------------------

    def _set_timer(self, command: c.SetTimer) -> None:
        self._tasks.at(command.at_ns, self._dispatch, e.Timer(command.owner, command.name, command.id))

    def _follow(self, command: c.Follow) -> None:
        def tell() -> None:
            # Not at once: this may be inside a turn of the core.
            event = e.CgroupEmpty(command.owner, command.cgroup, self._clock.monotonic_ns())
            self._tasks.soon(self._dispatch, event)

        self.follower.follow(command.cgroup, command.path, tell)

    def _unfollow(self, command: c.Unfollow) -> None:
        self.follower.unfollow(command.cgroup)

    def _refresh(self, _command: c.Refresh) -> None:
        self.refresh.set()

    def watch_emptying(self) -> None:
        """Look at the followed cgroups from time to time, while one is being emptied."""
        if not self._looking and any(owner.drain and owner.drain.cgroups for owner in self._state().owners):
            self._looking = True
            self._tasks.later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = False
        self.follower.look()
        self.watch_emptying()

    # With an answer to wait for -----------------------------------------------------------------------------

    async def _detect(self, command: c.Detect) -> None:
        try:
            watch = await self._backend.detect(command.cgroup, command.policy)
        except BackendError as error:
            self._dispatch(e.WatchFailed(command.owner, error.message))
        else:
            self._dispatch(e.WatchSet(command.owner, watch.id))

    async def _undetect(self, command: c.Undetect) -> None:
        await self.tried(self._backend.undetect(command.watch), "undetect")

    async def _lease(self, command: c.Lease) -> None:
        try:
            await self._backend.lease(command.watch, command.cgroup)
        except BackendError as error:
            self._dispatch(e.LeaseFailed(command.owner, command.cgroup, error.message))
        else:
            self._dispatch(e.LeaseSet(command.owner, command.cgroup))

    async def _unlease(self, command: c.Unlease) -> None:
        await self.tried(self._backend.unlease(command.watch, command.cgroup), "unlease")

    async def _fence(self, command: c.Fence) -> None:
        await self.tried(self._backend.fence(command.cgroup), "fence")

    async def _unfence(self, command: c.Unfence) -> None:
        await self.tried(self._backend.unfence(command.cgroup), "unfence")

    async def _release(self, command: c.Release) -> None:
        try:
            await self._backend.release(command.watch, command.id)
        except BackendError as error:
            self._dispatch(e.ReleaseRefused(command.owner, command.id or 0, error.message))

    async def tried(self, call: Coroutine[Any, Any, None], what: str) -> None:
        """A back-end call whose refusal changes nothing: say it."""
        try:
            await call
        except BackendError as error:
            _log.warning("%s: %s", what, error.message, extra={"errno": error.errno})

    async def _kill(self, command: c.Kill) -> None:
        failed = None
        try:
            if command.terminate:
                cgroup.terminate(command.path)
            else:
                cgroup.kill(command.path)
        except OSError as error:
            failed = error.strerror or str(error)
        at_ns = self._clock.monotonic_ns()
        self._dispatch(e.Killed(command.owner, command.cgroup, at_ns, command.terminate, failed))

    async def _take_usage(self, command: c.TakeUsage) -> None:
        await self.sample(command.owner, command.purpose)

    async def sample(self, name: str, purpose: e.Purpose) -> None:
        """Sample an owner's use of its devices."""
        owner = self._state().owner(name)
        if owner is not None:
            self._dispatch(await self._node.hands[name].usage(owner, purpose))

    async def _scan_handles(self, command: c.ScanHandles) -> None:
        await asyncio.sleep(command.delay_ns / NS)
        owner = self._state().owner(command.owner)
        if owner is not None:
            self._dispatch(await self._node.hands[command.owner].handles(owner, command.id))

    async def _read_memory(self, command: c.ReadMemory) -> None:
        await asyncio.sleep(command.delay_ns / NS)
        owner = self._state().owner(command.owner)
        if owner is not None:
            self._dispatch(await self._node.hands[command.owner].memory(owner, command.id))

    async def _resync(self, command: c.Resync) -> None:
        await self.resync([command.owner])

    async def resync(self, names: list[str]) -> None:
        """Read the back-end's dumps, and tell the core what it missed."""
        try:
            watches, holds = await self._backend.watches(), await self._backend.holds()
        except BackendError as error:
            _log.warning("the kernel's dumps can't be read: %s", error.message)
            return
        for name in names:
            owner = self._state().owner(name)
            if owner is not None:
                for event in kernel.from_dump(owner, watches, holds, self._clock.monotonic_ns()):
                    self._dispatch(event)

    async def _tidy(self, command: c.Tidy) -> None:
        try:
            await self._node.containerd.tidy(command.container)
        except ContainerdError as error:
            _log.warning("bookkeeping of %s: %s", command.container, error.message)

    _at_once: Final[dict[type, Callable[[Any, Any], None]]] = {
        c.SetTimer: _set_timer,
        c.Follow: _follow,
        c.Unfollow: _unfollow,
        c.Refresh: _refresh,
    }
    _waits: Final[dict[type, Callable[[Any, Any], Coroutine[Any, Any, None]]]] = {
        c.Detect: _detect,
        c.Undetect: _undetect,
        c.Lease: _lease,
        c.Unlease: _unlease,
        c.Fence: _fence,
        c.Unfence: _unfence,
        c.Release: _release,
        c.Kill: _kill,
        c.TakeUsage: _take_usage,
        c.ScanHandles: _scan_handles,
        c.ReadMemory: _read_memory,
        c.Resync: _resync,
        c.Tidy: _tidy,
    }
