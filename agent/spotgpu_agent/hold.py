# SPDX-License-Identifier: Apache-2.0
"""The seam between the agent and whatever holds an owner's call.

khook, the kernel module, is the first back-end; one without a module may come later. What a back-end can't do
it says in its capabilities. The agent sees the types of spotgpu_khook.model and nothing of netlink.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from spotgpu_agent.errors import BackendError, PlatformError
from spotgpu_agent.model import AtDeadline, OnHold, Policy, ReleaseOn, ReturnOn
from spotgpu_khook import abi
from spotgpu_khook.client import Khook
from spotgpu_khook.errors import EventsLost, KhookDenied, KhookError, KhookMissing, KhookVersion
from spotgpu_khook.model import CgroupKey, Event, Fence, Gate, Hold, Stats, Watch, WatchPolicy

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back-end can do by itself.

    Attributes:
        name: of the back-end.
        kills: kills the lease at the first hold, before the agent has woken.
        deadline: keeps the deadline without the agent.
        orphan: hands back without the agent.
        fences: can keep a cgroup from opening devices.
    """

    name: str
    kills: bool
    deadline: bool
    orphan: bool
    fences: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Events were lost: the dumps say what is true."""


class HoldBackend(Protocol):
    """What holds an owner's call. Every method raises BackendError when it is refused."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do by itself."""

    async def attach(self, orphan_ms: int, heartbeat_ms: int) -> int:
        """Become the one agent; how many returns of the agent before are adopted."""

    async def heartbeat(self) -> None:
        """The agent lives."""

    async def arm(self, fd: int, classifier: str) -> Gate:
        """Make the handler behind a node's fd a gate, or a lost one again. Repeats are harmless."""

    async def detect(self, cgroup: int, policy: Policy) -> Watch:
        """Watch a cgroup; again, when its return has ended. When this returns, no later call of it passes."""

    async def undetect(self, watch: int) -> None:
        """Let the watch's calls through and forget it. Harmless when it is gone."""

    async def lease(self, watch: int, cgroup: int) -> None:
        """Name a spot cgroup on the watch's devices."""

    async def unlease(self, watch: int, cgroup: int) -> None:
        """Take that back. Harmless when it is gone."""

    async def fence(self, cgroup: int) -> None:
        """Let a cgroup open nothing. Harmless when it is fenced."""

    async def unfence(self, cgroup: int) -> None:
        """Take that back. Harmless when it is gone."""

    async def release(self, watch: int, return_id: int | None) -> None:
        """Let a return through; with an id only when it is still the current one."""

    async def gates(self) -> list[Gate]:
        """Every gate."""

    async def watches(self) -> list[Watch]:
        """Every watch."""

    async def holds(self) -> list[Hold]:
        """Every held call."""

    async def fences(self) -> list[Fence]:
        """Every fence."""

    async def stats(self) -> Stats:
        """Counters."""

    def events(self) -> AsyncIterator[Event | Lost]:
        """What happens; ends when the back-end goes away."""

    async def close(self) -> None:
        """End. Holds are then the back-end's own affair, as its policy says."""


_KHOOK: Final = Capabilities("khook", kills=True, deadline=True, orphan=True, fences=True)
_CLASSIFIERS: Final = {
    "any": abi.Classifier.ANY,
    "nvidia_rm": abi.Classifier.NVIDIA_RM,
    "nvidia_uvm": abi.Classifier.NVIDIA_UVM,
}


class KhookBackend:
    """khook as a HoldBackend. Made by connect()."""

    capabilities = _KHOOK

    def __init__(self, khook: Khook) -> None:
        self._khook = khook

    @classmethod
    async def connect(cls) -> KhookBackend:
        """Connect to the module.

        Raises:
            PlatformError: it is not loaded, of another version, or refuses us; with the remedy.
        """
        try:
            return cls(await Khook.connect())
        except (KhookMissing, KhookVersion, KhookDenied) as error:
            raise PlatformError(error.message, "khook", error.remedy) from error
        except KhookError as error:
            raise PlatformError(error.message, "khook", "see the kernel log") from error

    async def attach(self, orphan_ms: int, heartbeat_ms: int) -> int:
        """See HoldBackend.

        Raises:
            PlatformError: another agent is attached.
        """
        try:
            return await self._khook.attach(orphan_ms, heartbeat_ms)
        except KhookError as error:
            if error.errno == errno.EBUSY:
                raise PlatformError(error.message, "khook", "stop the other agent first") from error
            raise _told(error) from error

    async def heartbeat(self) -> None:
        """See HoldBackend."""
        await _ask(self._khook.heartbeat())

    async def arm(self, fd: int, classifier: str) -> Gate:
        """See HoldBackend."""
        return await _ask(self._khook.arm(fd, _CLASSIFIERS[classifier]))

    async def detect(self, cgroup: int, policy: Policy) -> Watch:
        """See HoldBackend."""
        return await _ask(self._khook.detect(CgroupKey(cgroup), watch_policy(policy)))

    async def undetect(self, watch: int) -> None:
        """See HoldBackend."""
        await _harmless(self._khook.undetect(watch), errno.ENOENT)

    async def lease(self, watch: int, cgroup: int) -> None:
        """See HoldBackend."""
        await _harmless(self._khook.lease(watch, cgroup), errno.EEXIST)

    async def unlease(self, watch: int, cgroup: int) -> None:
        """See HoldBackend."""
        await _harmless(self._khook.unlease(watch, cgroup), errno.ENOENT)

    async def fence(self, cgroup: int) -> None:
        """See HoldBackend. A cgroup that is gone needs no fence."""
        await _harmless(self._khook.fence(cgroup), errno.EEXIST, errno.ENOENT)

    async def unfence(self, cgroup: int) -> None:
        """See HoldBackend."""
        await _harmless(self._khook.unfence(cgroup), errno.ENOENT)

    async def release(self, watch: int, return_id: int | None) -> None:
        """See HoldBackend."""
        await _ask(self._khook.release(watch, return_id))

    async def gates(self) -> list[Gate]:
        """See HoldBackend."""
        return await _ask(self._khook.gates())

    async def watches(self) -> list[Watch]:
        """See HoldBackend."""
        return await _ask(self._khook.watches())

    async def holds(self) -> list[Hold]:
        """See HoldBackend."""
        return await _ask(self._khook.holds())

    async def fences(self) -> list[Fence]:
        """See HoldBackend."""
        return await _ask(self._khook.fences())

    async def stats(self) -> Stats:
        """See HoldBackend."""
        return await _ask(self._khook.stats())

    async def events(self) -> AsyncIterator[Event | Lost]:
        """See HoldBackend."""
        stream = aiter(self._khook.events())
        while True:
            try:
                yield await anext(stream)
            except StopAsyncIteration:
                return
            except EventsLost:
                yield Lost()

    async def close(self) -> None:
        """See HoldBackend."""
        await self._khook.close()


def watch_policy(policy: Policy) -> WatchPolicy:
    """The kernel's part of an owner's policy."""
    eio, notify = policy.at_deadline is AtDeadline.EIO, policy.on_hold is OnHold.NOTIFY
    return WatchPolicy(
        return_on=abi.ReturnOn.ANY if policy.return_on is ReturnOn.ANY else abi.ReturnOn.COMPUTE,
        deadline_ms=policy.deadline_ns // 1_000_000,
        at_deadline=abi.AtDeadline.EIO if eio else abi.AtDeadline.RELEASE,
        on_hold=abi.OnHold.NOTIFY if notify else abi.OnHold.KILL,
        release_on=abi.ReleaseOn.EMPTY if policy.release_on is ReleaseOn.EMPTY else abi.ReleaseOn.PROOF,
    )


async def _ask(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except KhookError as error:
        raise _told(error) from error


async def _harmless(call: Awaitable[None], *harmless: int) -> None:
    try:
        await call
    except KhookError as error:
        if error.errno not in harmless:
            raise _told(error) from error


def _told(error: KhookError) -> BackendError:
    return BackendError(error.message, error.errno, "khook", error.remedy)
