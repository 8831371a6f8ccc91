# SPDX-License-Identifier: Apache-2.0
"""What khook itself says, as plain values: for `spotgpu status` where no agent answers.

Imported lazily by the command, since it stands on the khook room.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from spotgpu_khook.client import Khook
from spotgpu_khook.errors import KhookTimeout
from spotgpu_khook.model import CgroupKey, Fence, Gate, Hold, Key, PidnsKey, Stats, Watch

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
                )
    except TimeoutError as error:
        raise KhookTimeout("status", LIMIT_S) from error


def told(
    gates: list[Gate], watches: list[Watch], holds: list[Hold], fences: list[Fence], stats: Stats
) -> dict[str, object]:
    """The dumps as plain values, in the shape that the agent's own status has."""
    return {
        "version": stats.version,
        "agent": f"port id {stats.agent_portid}" if stats.agent_portid else "none attached",
        "heartbeat_age_ms": stats.heartbeat_age_ns // 10**6 if stats.agent_portid else None,
        "gates": [_gate(gate) for gate in gates],
        "watches": [_watch(watch) for watch in watches],
        "holds": [_hold(hold) for hold in holds],
        "fences": [{"cgroup": fence.cgroup, "calls": fence.calls} for fence in fences],
        "counters": dict(stats.total),
    }


def _gate(gate: Gate) -> dict[str, object]:
    return {
        "id": gate.id,
        "module": gate.module,
        "function": gate.function,
        "classifier": _word(gate.classifier),
        "method": _word(gate.method),
        "state": _word(gate.state),
        "calls": gate.calls,
        "holds": gate.holds,
    }


def _watch(watch: Watch) -> dict[str, object]:
    return {
        "id": watch.id,
        "key": _key(watch.key),
        "state": _word(watch.state),
        "holds": watch.holds,
        "return": watch.return_id or None,
        "deadline_ms": watch.policy.deadline_ms,
        "on_hold": _word(watch.policy.on_hold),
        "release_on": _word(watch.policy.release_on),
        "last_outcome": _word(watch.outcome) if watch.outcome else None,
        "leases": list(watch.leases),
    }


def _hold(hold: Hold) -> dict[str, object]:
    caller = hold.caller
    return {
        "id": hold.id,
        "watch": hold.watch,
        "comm": caller.comm,
        "pid": caller.pid,
        "tid": caller.tid,
        "device": ":".join(map(str, caller.device)),
        "ioctl": f"{caller.ioctl:#x}",
        "class": _word(caller.ioctl_class),
        "age_ms": hold.age_ns // 10**6,
    }


def _key(key: Key) -> str:
    if isinstance(key, CgroupKey):
        return f"cgroup {key.id}"
    return f"pidns {key.inum}" if isinstance(key, PidnsKey) else f"pid {key.pid}"


def _word(value: Enum) -> str:
    return value.name.lower()
