# SPDX-License-Identifier: Apache-2.0
"""What khook itself says, as plain values: for `spotgpu status` where no agent answers.

Imported lazily by the command, since it stands on the rooms of khook and the agent.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from spotgpu_agent import show
from spotgpu_khook.client import Khook
from spotgpu_khook.errors import KhookTimeout
from spotgpu_khook.model import Fence, Gate, Hold, Stats, Watch

LIMIT_S: Final = 5.0


def dump() -> dict[str, object]:
    """Gates, watches, holds, fences and counters.

    Raises:
        KhookError: the module is not loaded, of another version, or refuses us.
    """
    return asyncio.run(_dump())


async def _dump() -> dict[str, object]:
    try:
        async with asyncio.timeout(LIMIT_S):
            async with await Khook.connect() as khook:
                return told(
                    await khook.gates(),
                    await khook.watches(),
                    await khook.holds(),
                    await khook.fences(),
                    await khook.stats(),
                    time.monotonic_ns(),
                )
    except TimeoutError as error:
        raise KhookTimeout("status", LIMIT_S) from error


def told(
    gates: list[Gate], watches: list[Watch], holds: list[Hold], fences: list[Fence], stats: Stats, now_ns: int
) -> dict[str, object]:
    """The dumps as plain values, in the shape that the agent's own status has.

    Args:
        gates: of khook, as are the others.
        watches: each with its current return.
        holds: calls held now.
        fences: fenced cgroups.
        stats: counters.
        now_ns: CLOCK_MONOTONIC, for ages.
    """
    return {
        "version": stats.version,
        "agent": f"port id {stats.agent_portid}" if stats.agent_portid else "none attached",
        "heartbeat_age_ms": stats.heartbeat_age_ns // 10**6 if stats.agent_portid else None,
        "gates": [show.gate(gate) for gate in gates],
        "watches": [show.watch(watch, now_ns) for watch in watches],
        "holds": [show.hold(hold) for hold in holds],
        "fences": [show.fence(fence) for fence in fences],
        "counters": dict(stats.total),
    }
