# SPDX-License-Identifier: Apache-2.0
"""The first events of an agent's life: what is, and what the agent before has left.

Three sources, in this order: containerd's containers, the kernel's watches, the state file. Each event is
what would have come if the agent had been there all the time, so the core needs no second way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spotgpu_agent import events as e
from spotgpu_agent import kernel, resolve
from spotgpu_agent.clock import Clock
from spotgpu_agent.effects import Effects
from spotgpu_agent.model import OwnerState, State
from spotgpu_agent.startup import NodeAccess
from spotgpu_agent.state import Saved
from spotgpu_khook.abi import GateState, WatchState
from spotgpu_khook.model import CgroupKey, Gate, Hold, Watch

_log = logging.getLogger(__name__)


async def adopt(
    node: NodeAccess,
    saved: Saved | None,
    clock: Clock,
    effects: Effects,
    state: Callable[[], State],
    dispatch: Callable[[e.Event], None],
) -> None:
    """Rebuild the core's state.

    Args:
        node: what the agent has its hands on.
        saved: the state file of this boot, if there is one.
        clock: of the process.
        effects: for what is to be taken back.
        state: the core's state of this moment.
        dispatch: takes events to the core.

    Raises:
        BackendError: the back-end's dumps can't be read.
    """
    backend = node.backend
    watches, holds, gates = await backend.watches(), await backend.holds(), await backend.gates()
    await _unfence(node, effects, watches)
    for seen in resolve.snapshots(node.config, node.containers):
        dispatch(seen)
    mine = set()
    for owner in state().owners:
        watch = _watch_of(owner, watches)
        if watch is not None:
            mine.add(watch.id)
        for event in inherited(owner, saved, watch, gates, holds, clock.monotonic_ns()):
            dispatch(event)
    for watch in watches:
        if watch.id not in mine:
            _log.warning("a watch of nobody's is taken away", extra={"watch": watch.id})
            await effects.tried(backend.undetect(watch.id), "undetect")


def _watch_of(owner: OwnerState, watches: list[Watch]) -> Watch | None:
    if owner.container is None:
        return None
    return next((watch for watch in watches if watch.key == CgroupKey(owner.container.cgroup)), None)


def inherited(
    owner: OwnerState,
    saved: Saved | None,
    watch: Watch | None,
    gates: list[Gate],
    holds: list[Hold],
    now_ns: int,
) -> list[e.Event]:
    """What the agent before has left of one owner, as events. Pure.

    Args:
        owner: as containerd has it.
        saved: the state file of this boot.
        watch: the owner's, if the kernel has one.
        gates: all of the kernel.
        holds: all of the kernel.
        now_ns: for what nobody dates.
    """
    record = saved.owner(owner.name) if saved is not None else None
    live = bool(gates) and all(gate.state != GateState.LOST for gate in gates)
    events: list[e.Event] = []
    if watch is not None:
        events.append(kernel.adopted(owner, record, watch, live))
    if record is not None and record.container == owner.container:
        events.append(e.Restored(owner.name, record.baseline, record.quarantined, record.unfinished))
    return events + kernel.take_over(owner.name, watch, holds, record, now_ns)


async def _unfence(node: NodeAccess, effects: Effects, watches: list[Watch]) -> None:
    """Take the fences of the agent before away, but for those of a hand-back that goes on."""
    kept = {number for watch in watches if watch.state == WatchState.HOLDING for number in watch.leases}
    for fence in await node.backend.fences():
        if fence.cgroup not in kept:
            await effects.tried(node.backend.unfence(fence.cgroup), "unfence")
