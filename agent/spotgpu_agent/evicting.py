# SPDX-License-Identifier: Apache-2.0
"""Who is killed when, and by whom, in one drain. Pure.

With `on_hold: kill` the kernel has been killing what the lease names since before the agent read of the hold;
the agent fences, and kills as well only if the cgroups stay populated. All else is the agent's to kill.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spotgpu_agent.commands import Fence, Kill, SetTimer
from spotgpu_agent.events import TimerName
from spotgpu_agent.model import LeaseState, OnHold, Spot
from spotgpu_agent.turn import Turn
from spotgpu_agent.witnesses import MS

KILL_AFTER_NS: Final = (250 * MS, 1000 * MS, 4000 * MS)  # when the cgroups are still populated


def evict(t: Turn, targets: list[Spot], held: bool) -> None:
    """Begin to empty these spot containers; `held`: the kernel holds the owner and kills if it is to."""
    if not targets:
        return
    if not held or t.o.policy.on_hold is OnHold.NOTIFY:
        _with_grace(t, targets)
        return
    unknown = [spot for spot in targets if spot.lease is LeaseState.NONE]
    if unknown:
        kill(t, unknown)
    _fence(t, targets)
    t.do(SetTimer(t.o.name, TimerName.KILL, t.drain.id, t.now + KILL_AFTER_NS[0]))


def _with_grace(t: Turn, targets: list[Spot]) -> None:
    grace_ns = t.o.policy.evict_grace_ns if t.o.policy.on_hold is OnHold.NOTIFY else 0
    if not grace_ns:
        kill(t, targets)
        t.do(SetTimer(t.o.name, TimerName.KILL, t.drain.id, t.now + KILL_AFTER_NS[0]))
        return
    # No fence yet: a container that uses its grace to write a checkpoint needs its device.
    t.set_drain(terminated=True)
    t.do(*(Kill(t.o.name, s.container.cgroup, s.container.path, terminate=True) for s in targets))
    t.do(SetTimer(t.o.name, TimerName.GRACE, t.drain.id, t.now + grace_ns))


def kill(t: Turn, targets: Iterable[Spot]) -> None:
    """SIGKILL by the agent, then the fence: an order that waits for nothing."""
    targets = list(targets)
    t.do(*(Kill(t.o.name, spot.container.cgroup, spot.container.path) for spot in targets))
    t.set_drain(kills=t.drain.kills + 1)
    _fence(t, targets)


def _fence(t: Turn, targets: Iterable[Spot]) -> None:
    for spot in targets:
        now = t.o.spot(spot.container.cgroup)
        if now is not None and not now.fenced:
            t.do(Fence(t.o.name, spot.container.cgroup))
            t.set_spot(spot.container.cgroup, fenced=True)


def pending(t: Turn) -> list[Spot]:
    """Spot containers of the drain that still have processes."""
    return [spot for spot in t.o.spots if spot.container.cgroup in t.drain.cgroups]


def kill_again(t: Turn, name: TimerName) -> None:
    """A timer fired: kill what still has processes."""
    left = pending(t)
    if not left:
        t.why("stale", f"timer {name}: the cgroups are empty")
        return
    slow = ", ".join(spot.container.id for spot in left)
    t.why("kill-again" if name is TimerName.KILL else "grace-over", f"{slow} still has processes")
    kill(t, left)
    if t.drain.kills < len(KILL_AFTER_NS):
        at_ns = t.now + KILL_AFTER_NS[t.drain.kills]
        t.do(SetTimer(t.o.name, TimerName.KILL, t.drain.id, at_ns))
