# SPDX-License-Identifier: Apache-2.0
"""Where events come from: the back-end, containerd, idle samples. One task each; none waits for another."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from spotgpu.names import DeviceState
from spotgpu_agent import events as e
from spotgpu_agent import kernel, resolve
from spotgpu_agent.clock import Clock
from spotgpu_agent.core import poll_ns
from spotgpu_agent.effects import Effects
from spotgpu_agent.errors import BackendError, ContainerdError, PlatformError
from spotgpu_agent.hold import HoldBackend, Lost
from spotgpu_agent.metrics import Metrics
from spotgpu_agent.model import Arming, State
from spotgpu_agent.startup import NodeAccess
from spotgpu_agent.tasks import NS
from spotgpu_agent.vendor import Node
from spotgpu_khook.model import EmptyEvent, FencedEvent, GateLostEvent, HoldEvent, OrphanEvent

REFRESH_S: Final = 5.0  # containerd is read at least this often
RETRY_S: Final = 1.0
BEATS: Final = 3  # within the time after which the kernel would take us for dead
STATS_S: Final = 5.0
REARM_S: Final = 2.0
_KINDS: Final = {
    HoldEvent: "hold",
    EmptyEvent: "empty",
    OrphanEvent: "orphan",
    GateLostEvent: "gate_lost",
    FencedEvent: "fenced",
}

_log = logging.getLogger(__name__)


async def arm_gates(backend: HoldBackend, nodes: tuple[Node, ...]) -> None:
    """Make gates of the vendor's handlers. Repeats are harmless.

    Raises:
        PlatformError: a node can't be opened.
        BackendError: a handler can't be a gate.
    """
    for node in nodes:
        file = node.open()
        try:
            gate = await backend.arm(file, node.classifier)
        finally:
            os.close(file)
        if gate.warning:
            _log.warning("gate %s: %s", node.path, gate.warning)
        extra = {"node": str(node.path), "function": gate.function, "method": gate.method.name.lower()}
        _log.info("armed", extra=extra)


class Sources:
    """The tasks that feed the core.

    Args:
        node: what the agent has its hands on.
        metrics: where to count.
        clock: of the process.
        effects: does what sources need done too.
        state: the core's state of this moment.
        dispatch: takes events to the core.
        broken: called once when the back-end is gone, with why.
    """

    def __init__(
        self,
        node: NodeAccess,
        metrics: Metrics,
        clock: Clock,
        effects: Effects,
        state: Callable[[], State],
        dispatch: Callable[[e.Event], None],
        broken: Callable[[str], None],
    ) -> None:
        self._node = node
        self._metrics = metrics
        self._clock = clock
        self._effects = effects
        self._state = state
        self._dispatch = dispatch
        self._broken = broken

    def all(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Every source, with its name."""
        idle = [(f"idle samples of {owner.name}", self._sample(owner.name)) for owner in self._state().owners]
        return [
            ("kernel events", self._kernel_events()),
            ("heartbeat", self._heartbeat()),
            ("containerd events", self._containerd_events()),
            ("containers", self._containers()),
            ("rearm", self._rearm()),
            *idle,
        ]

    async def _kernel_events(self) -> None:
        async for event in self._node.backend.events():
            if isinstance(event, Lost):
                self._metrics.event_lost("khook")
                _log.warning("events of the kernel were lost: reading its dumps")
                await self._effects.resync([owner.name for owner in self._state().owners])
                continue
            for told in kernel.from_event(event, self._state()):
                self._dispatch(told)
            self._metrics.event("khook", _KINDS.get(type(event), "release"))
        self._gone("its events ended")

    async def _heartbeat(self) -> None:
        beat_s = self._node.config.heartbeat_ms / 1000 / BEATS
        while True:
            try:
                await self._node.backend.heartbeat()
                stats = await self._node.backend.stats()
            except BackendError as error:
                self._gone(error.message)
                return
            self._metrics.set_khook(stats.now, stats.total, str(stats.version))
            self._metrics.heartbeat(time.time())
            await asyncio.sleep(min(beat_s or STATS_S, STATS_S))

    def _gone(self, why: str) -> None:
        """Nothing can be held any more, so nobody may be lent anything."""
        self._broken(why)
        for owner in self._state().owners:
            self._dispatch(e.GatesLost(owner.name, why))

    async def _containerd_events(self) -> None:
        def changed(kind: str) -> None:
            self._metrics.event("containerd", kind)
            self._effects.refresh.set()

        await self._node.containerd.follow(changed, lambda: self._metrics.event_lost("containerd"))

    async def _containers(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._effects.refresh.wait()
            self._effects.refresh.clear()
            try:
                containers = await self._node.containerd.containers()
            except ContainerdError as error:
                _log.warning("containers can't be read: %s", error.message)
                await asyncio.sleep(RETRY_S)
                continue
            for seen in resolve.snapshots(self._node.config, containers):
                self._dispatch(seen)

    async def _sample(self, name: str) -> None:
        """Idle samples while the owner has its devices; while they are lent, the kernel watches."""
        while True:
            owner = self._state().owner(name)
            if owner is None:
                return
            if (
                owner.availability is DeviceState.ACTIVE
                and owner.arming is Arming.NO
                and owner.drain is None
                and owner.container is not None
            ):
                await self._effects.sample(name, e.Purpose.IDLE)
            await asyncio.sleep(poll_ns(owner.policy) / NS)

    async def _rearm(self) -> None:
        """After the driver was reloaded."""
        while True:
            await asyncio.sleep(REARM_S)
            lost = [owner.name for owner in self._state().owners if not owner.gates]
            if not lost:
                continue
            try:
                await arm_gates(self._node.backend, self._node.nodes)
            except (BackendError, PlatformError) as error:
                _log.warning("gates can't be armed: %s", error)
                continue
            for name in lost:
                self._dispatch(e.GatesArmed(name))
