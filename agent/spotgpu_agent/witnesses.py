# SPDX-License-Identifier: Apache-2.0
"""The three witnesses, judged: whose hold matters, how much memory is too much, who came late. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spotgpu.names import Witness
from spotgpu_agent.model import Drain, Holder, OwnerState, ProcessMemory, amount, below

MS: Final = 1_000_000
MIB: Final = 1 << 20
LATE_NS: Final = 100 * MS  # a witness that comes this long after the one before it is late


def named(holders: Iterable[Holder]) -> str:
    """Holders for a person: `name(pid)`, and where it lives."""
    return ", ".join(f"{holder} in {holder.cgroup or '?'}" for holder in holders)


def foreign_holders(o: OwnerState, holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Holders of one of the owner's devices that are neither the owner nor allowed."""
    allowed = o.policy.allow_holders + ((o.container.path,) if o.container else ())
    mine = frozenset(o.devices)
    return tuple(
        holder
        for holder in holders
        if mine.intersection(holder.devices) and not any(below(holder.cgroup, path) for path in allowed)
    )


def excess(
    o: OwnerState, used: Iterable[tuple[str, int]], processes: Iterable[ProcessMemory]
) -> dict[str, int]:
    """Bytes above baseline and slack by device, the owner's own memory aside.

    Args:
        o: the owner.
        used: bytes in use by device.
        processes: what the driver says of each process; only the owner's are looked at.
    """
    mine: dict[str, int] = {}
    for process in processes:
        if o.container is not None and below(process.cgroup, o.container.path):
            mine[process.device] = mine.get(process.device, 0) + process.used
    over = {
        device: bytes_used - mine.get(device, 0) - amount(o.baseline, device) - o.policy.memory_slack
        for device, bytes_used in used
        if device in o.devices
    }
    return {device: bytes_over for device, bytes_over in over.items() if bytes_over > 0}


def missing_detail(o: OwnerState, d: Drain) -> str:
    """What the first missing witness waits for, for a person."""
    witness = d.missing[0]
    if witness in d.unknown:
        return "no answer"
    if witness is Witness.CGROUP:
        names = [spot.container.id for spot in o.spots if spot.container.cgroup in d.cgroups]
        return f"{', '.join(names) or 'a spot container'} still has processes"
    if witness is Witness.HANDLES:
        return f"{named(d.holders)} has a device open" if d.holders else "not seen yet"
    over = excess(o, d.used, ())
    return (
        ", ".join(f"{device} {size // MIB} MiB over its baseline" for device, size in over.items())
        or "not seen yet"
    )


def late_witnesses(d: Drain) -> tuple[Witness, ...]:
    """Witnesses heard more than LATE_NS after the one before them, and those never heard, in order."""
    heard = {
        Witness.CGROUP: d.empty_ns,
        Witness.HANDLES: d.handles.proven_ns if d.handles else None,
        Witness.MEMORY: d.memory.proven_ns if d.memory else None,
    }
    late = []
    before = d.killed_ns or d.kill_ns or d.began_ns
    for witness, at_ns in heard.items():
        if at_ns is None or at_ns - before > LATE_NS:
            late.append(witness)
        before = max(before, at_ns or before)
    return tuple(late)


def delay_ns(failed: int, first_ns: int, cap_ns: int) -> int:
    """How long to wait before the next sample: doubling from `first_ns` up to `cap_ns` (ns)."""
    return min(first_ns << min(failed - 1, 16), cap_ns) if failed else 0
