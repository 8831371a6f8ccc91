# SPDX-License-Identifier: Apache-2.0
"""States and dumps as rows for `spotgpu status` and /statusz. Pure."""

from __future__ import annotations

from typing import Final

from spotgpu.names import DeviceState
from spotgpu_agent.model import OwnerState
from spotgpu_khook import model as k

MS: Final = 1_000_000


def devices(owner: OwnerState) -> list[dict[str, object]]:
    """One row a device."""
    why = dict(owner.quarantined)
    return [
        {
            "device": device,
            "owner": owner.name,
            "state": owner.availability.value,
            "healthy": device not in why,
            "reason": why.get(device, ""),
        }
        for device in owner.devices
    ]


def owner(one: OwnerState, busy: str) -> dict[str, object]:
    """One row for an owner; `busy`: why its devices were last not found lendable."""
    drain = one.drain
    return {
        "name": one.name,
        "state": one.availability.value,
        "container": one.container.id if one.container is not None else None,
        "devices": list(one.devices),
        "watch": one.watch,
        "why": busy if one.availability is DeviceState.ACTIVE else "",
        "waits_for": [witness.value for witness in drain.missing] if drain is not None else [],
        "holders": [str(holder) for holder in drain.holders] if drain is not None else [],
    }


def leases(one: OwnerState) -> list[dict[str, object]]:
    """One row a device lent to a spot container."""
    return [
        {
            "device": device,
            "owner": one.name,
            "container": spot.container.id,
            "cgroup": spot.container.cgroup,
            "state": "evicting" if spot.evicted else "lent" if spot.lease == "set" else "asked",
        }
        for spot in one.spots
        if not spot.tidied
        for device in spot.container.devices
    ]


def gate(one: k.Gate) -> dict[str, object]:
    """One row for a gate."""
    return {
        "id": one.id,
        "dev": one.dev,
        "module": one.module,
        "function": one.function,
        "classifier": one.classifier.name.lower(),
        "method": one.method.name.lower(),
        "state": one.state.name.lower(),
        "calls": one.calls,
        "holds": one.holds,
    }


def watch(one: k.Watch, now_ns: int) -> dict[str, object]:
    """One row for a watch; `held_ms` of the return that is under way."""
    holding = one.first_ns if one.holds else 0
    return {
        "id": one.id,
        "key": str(one.key),
        "state": one.state.name.lower(),
        "holds": one.holds,
        "held_ms": (now_ns - holding) // MS if holding else 0,
        "deadline_ms": one.policy.deadline_ms,
        "on_hold": one.policy.on_hold.name.lower(),
        "release_on": one.policy.release_on.name.lower(),
        "leases": list(one.leases),
    }


def hold(one: k.Hold) -> dict[str, object]:
    """One row for a held call."""
    return {
        "id": one.id,
        "watch": one.watch,
        "comm": one.caller.comm,
        "pid": one.caller.pid,
        "tid": one.caller.tid,
        "ioctl": f"{one.caller.ioctl:#x}",
        "klass": one.caller.ioctl_class.name.lower(),
        "age_ms": one.age_ns // MS,
    }


def fence(one: k.Fence) -> dict[str, object]:
    """One row for a fence."""
    return {"cgroup": one.cgroup, "calls": one.calls}
