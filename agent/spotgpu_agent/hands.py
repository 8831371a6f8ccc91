# SPDX-License-Identifier: Apache-2.0
"""What looks at one owner's devices: its handle scan and its NVML, each a child process of its own.

One pair an owner, so that a device that hangs keeps nobody else's witnesses from speaking.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from spotgpu_agent.clock import Clock
from spotgpu_agent.events import HandlesSeen, MemorySeen, Purpose, Usage
from spotgpu_agent.model import OwnerState, amount
from spotgpu_agent.nvml import Nvml
from spotgpu_agent.scanner import Scanner

SAMPLE_MIN_S, SAMPLE_MAX_S = 1.0, 5.0
NS: Final = 1e9


@dataclass(slots=True)
class Hands:
    """The samplers of one owner.

    Attributes:
        owner: its name.
        ours: pids of the agent and all its children, which are no holders.
    """

    owner: str
    scanner: Scanner
    nvml: Nvml
    clock: Clock
    ours: Callable[[], Iterable[int]]

    async def usage(self, o: OwnerState, purpose: Purpose) -> Usage:
        """Who uses the devices, and how much. Handles and library are asked at the same time."""
        started_ns = self.clock.monotonic_ns()
        limit_s = _limit_s(o)
        holders, usage = await asyncio.gather(
            self.scanner.scan(self.ours(), limit_s), self.nvml.usage(o.devices, limit_s)
        )
        memory, utilisation = usage if usage is not None else (None, None)
        return Usage(self.owner, purpose, started_ns, self.clock.monotonic_ns(), holders, utilisation, memory)

    async def handles(self, o: OwnerState, number: int) -> HandlesSeen:
        """Who has the devices open or mapped."""
        started_ns = self.clock.monotonic_ns()
        holders = await self.scanner.scan(self.ours(), _limit_s(o))
        return HandlesSeen(self.owner, number, started_ns, self.clock.monotonic_ns(), holders)

    async def memory(self, o: OwnerState, number: int) -> MemorySeen:
        """How much device memory is in use."""
        started_ns = self.clock.monotonic_ns()
        limits = {device: amount(o.baseline, device) + o.policy.memory_slack for device in o.devices}
        read = await self.nvml.memory(limits, _limit_s(o))
        used, processes = read if read is not None else (None, None)
        return MemorySeen(self.owner, number, started_ns, self.clock.monotonic_ns(), used, processes)

    def pids(self) -> tuple[int, ...]:
        """Pids of the children."""
        return self.scanner.child.pids() + self.nvml.child.pids()

    def closing(self) -> None:
        """The agent stops: a question that is broken off is no fault of a child."""
        self.scanner.child.closing()
        self.nvml.child.closing()

    async def close(self) -> None:
        """End the children."""
        await asyncio.gather(self.scanner.close(), self.nvml.close())


def _limit_s(o: OwnerState) -> float:
    """Time for one sample: enough for a slow node, and leaving time for another before the deadline."""
    return max(SAMPLE_MIN_S, min(SAMPLE_MAX_S, o.policy.deadline_ns / NS / 2))


def own_pids(hands: Iterable[Hands]) -> list[int]:
    """Pids of this process and of all children."""
    return [os.getpid(), *(pid for hand in hands for pid in hand.pids())]
