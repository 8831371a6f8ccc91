# SPDX-License-Identifier: Apache-2.0
"""The core: (state, event, now) -> (state, commands, reasons). No input, no output, no clock.

This file knows the life of an owner's devices: when they may be lent, and what ends that. returning.py knows
the hand-back.

    ACTIVE --idle sample, DETECT, recount--> LENDABLE --spot container--> LENT
       ^                                        |  hold                     |  hold
       +---------------- RETURNING <------------+---------------------------+

Two rules stand above all: what is not known counts as in use, and one owner's event never touches another
owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from spotgpu.names import DeviceState, EvictionReason, Outcome, Trigger
from spotgpu_agent import returning
from spotgpu_agent.commands import Decision, Detect, Follow, Lease, Reason, Save, TakeUsage, Undetect, Unlease
from spotgpu_agent.events import (
    Admin,
    AdminAction,
    Adopted,
    CgroupEmpty,
    ContainersSeen,
    Event,
    GatesArmed,
    GatesLost,
    HandlesSeen,
    Held,
    Killed,
    LeaseEmpty,
    LeaseFailed,
    LeaseSet,
    MemorySeen,
    Orphaned,
    Purpose,
    ReleaseRefused,
    Restored,
    ReturnEnded,
    Timer,
    Usage,
    WatchAdopted,
    WatchFailed,
    WatchSet,
)
from spotgpu_agent.model import (
    Amounts,
    Arming,
    Holder,
    LeaseState,
    OwnerContainer,
    OwnerState,
    Policy,
    Spot,
    SpotContainer,
    State,
    below,
)
from spotgpu_agent.turn import Turn
from spotgpu_agent.witnesses import foreign_holders, named

POLL_MIN_NS: Final = 200_000_000
POLL_MAX_NS: Final = 5_000_000_000
POLLS_PER_IDLE: Final = 5  # idle samples wanted within max_inactive


def step(state: State, event: Event, now_ns: int) -> Decision:
    """Decide what one event means.

    Args:
        state: of all owners.
        event: a fact; names its owner.
        now_ns: CLOCK_MONOTONIC, for timers and for what the event does not date.

    Returns:
        The state after it, what is to be done, in order, and at least one reason.
    """
    owner = state.owner(event.owner)
    if owner is None:
        return Decision(
            state, (), (Reason(event.owner, "unknown-owner", f"{type(event).__name__}: no such owner"),)
        )
    turn = Turn(owner, now_ns)
    _HANDLERS[type(event)](turn, event)
    return Decision(state.turned(turn.o), tuple(turn.commands), tuple(turn.reasons))


def poll_ns(policy: Policy) -> int:
    """Time between idle samples of an ACTIVE owner, ns."""
    return max(POLL_MIN_NS, min(POLL_MAX_NS, policy.max_inactive_ns // POLLS_PER_IDLE))


def stale_ns(policy: Policy) -> int:
    """A gap between idle samples above this breaks the idle time: nobody looked."""
    return 4 * poll_ns(policy) + 2_000_000_000


# Containers -------------------------------------------------------------------------------------------------


def _containers_seen(t: Turn, e: ContainersSeen) -> None:
    if e.container != t.o.container:
        if t.o.container is not None:
            _owner_gone(t)
        if e.container is not None:
            _owner_found(t, e.container)
    _spots_seen(t, e.spots)
    if not t.reasons:
        t.why("containers", "nothing new in containerd")


def _owner_found(t: Turn, container: OwnerContainer) -> None:
    t.set(container=container, eager=True, idle_since_ns=None, sampled_ns=None)
    t.why("owner-found", f"container {container.id} at {container.path}")
    t.do(Save(t.o.name))


def _owner_gone(t: Turn) -> None:
    t.why("owner-gone", "the owner's container does not run any more")
    if t.o.watch is not None:
        t.do(Undetect(t.o.name, t.o.watch))
    back = t.o.handback
    if back is not None and back.ended is None:
        returning.finish(t, Outcome.ABANDONED, t.now, "owner_gone")
    t.set(
        container=None,
        watch=None,
        watching=False,
        blocked=False,
        arming=Arming.NO,
        eager=False,
        idle_since_ns=None,
        availability=DeviceState.ACTIVE if t.o.drain is None else t.o.availability,
    )
    t.set_spots(lambda spot: replace(spot, lease=LeaseState.NONE))
    if any(not spot.evicted for spot in t.o.spots):
        why = "no owner container to watch: the next one could start unwatched"
        returning.begin_eviction(t, EvictionReason.OWNER_STARTING, why)
    t.do(Save(t.o.name))


def _spots_seen(t: Turn, seen: tuple[SpotContainer, ...]) -> None:
    running = {container.cgroup for container in seen}
    for spot in t.o.spots:
        if spot.container.cgroup not in running:
            _spot_stopped(t, spot)
    known = {spot.container.cgroup for spot in t.o.spots}
    for container in seen:
        if container.cgroup not in known:
            _spot_started(t, container)


def _spot_stopped(t: Turn, spot: Spot) -> None:
    if spot.running:
        t.why("spot-stopped", f"spot container {spot.container.id} does not run any more")
    if not spot.empty or (spot.evicted and not spot.tidied):
        # Processes may outlive a container's first one; an evicted one is tidied up at the end of its drain.
        t.set_spot(spot.container.cgroup, running=False)
        return
    if not spot.tidied:
        t.forget(spot)
    t.set_spots(lambda other: None if other.container.cgroup == spot.container.cgroup else other)
    if t.o.availability is DeviceState.LENT and not t.o.spots:
        t.set(availability=DeviceState.LENDABLE)
        t.do(Save(t.o.name))


def _spot_started(t: Turn, container: SpotContainer) -> None:
    t.set(spots=(*t.o.spots, Spot(container)))
    t.do(Follow(t.o.name, container.cgroup, container.path))
    t.why("spot-found", f"spot container {container.id} at {container.path}")
    if t.o.drain is not None:
        returning.join(t, t.o.spots[-1])
    elif container.refused is not None:
        returning.begin_eviction(t, EvictionReason.ADMIN, f"{container.id} {container.refused}")
    elif t.o.container is None:
        returning.begin_eviction(t, EvictionReason.OWNER_STARTING, "the owner's container does not run")
    elif t.o.availability in (DeviceState.LENDABLE, DeviceState.LENT):
        _lend(t)
    elif t.o.arming is not Arming.NO or t.o.eager:
        t.why("spot-waits", f"{container.id}: whether the owner is idle is being looked at")
    else:
        returning.begin_eviction(
            t, EvictionReason.OWNER_BACK, f"{container.id} runs on devices their owner has"
        )


def _lend(t: Turn) -> None:
    """Lease every spot container that may have the devices."""
    if t.o.watch is None:
        raise AssertionError("lending without a watch")
    for spot in t.o.spots:
        if spot.lease is LeaseState.NONE and not spot.evicted and not spot.empty:
            t.do(Lease(t.o.name, t.o.watch, spot.container.cgroup))
            t.set_spot(spot.container.cgroup, lease=LeaseState.ASKED)
    leased = [spot.container.id for spot in t.o.spots if spot.lease is not LeaseState.NONE]
    t.set(availability=DeviceState.LENT if leased else DeviceState.LENDABLE)
    t.why(
        "lent" if leased else "lendable",
        f"lent to {', '.join(leased)}" if leased else "no spot container yet",
    )
    t.do(Save(t.o.name))


def _lease_set(t: Turn, e: LeaseSet) -> None:
    t.set_spot(e.cgroup, lease=LeaseState.SET)
    t.why("lease-set", f"the kernel knows of spot cgroup {e.cgroup}")


def _lease_failed(t: Turn, e: LeaseFailed) -> None:
    t.why("lease-failed", f"spot cgroup {e.cgroup}: {e.message}", alert=True)
    spot = t.o.spot(e.cgroup)
    if spot is None or spot.empty:
        return
    t.set_spot(e.cgroup, lease=LeaseState.NONE)
    if not spot.evicted:
        returning.begin_eviction(t, EvictionReason.DEVICE_UNHEALTHY, "the kernel can't know of this lease")


# From idle to lendable --------------------------------------------------------------------------------------


def owners_holders(o: OwnerState, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
    """Holders that are the owner's own processes, of any node of the vendor."""
    if o.container is None:
        return ()
    path = o.container.path
    return tuple(holder for holder in holders if below(holder.cgroup, path))


def _strangers(o: OwnerState, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
    """Foreign holders that are no running spot container either."""
    spots = [spot.container.path for spot in o.spots]
    return tuple(
        holder
        for holder in foreign_holders(o, holders)
        if not any(below(holder.cgroup, path) for path in spots)
    )


def busy(o: OwnerState, e: Usage) -> tuple[str, str] | None:
    """Why the owner's devices count as in use, as (code, text); None when the sample shows them idle."""
    if e.holders is None:
        return "usage-unknown", "the handle scan gave no answer: in use"
    if mine := owners_holders(o, e.holders):
        return "owner-active", f"{named(mine)} has a device node open"
    if others := _strangers(o, e.holders):
        return "stranger-active", f"{named(others)} has a device open"
    if e.memory is None or e.utilisation is None:
        return "usage-unknown", "the driver's library gave no answer: in use"
    if any(not spot.empty for spot in o.spots):
        return None  # utilisation and memory are the spot container's
    known = dict(e.utilisation)
    working = [f"{device} {known.get(device, 'unknown')}" for device in o.devices if known.get(device) != 0]
    return ("device-working", f"utilisation: {', '.join(working)}") if working else None


def _usage(t: Turn, e: Usage) -> None:
    if e.purpose is Purpose.RECOUNT:
        _recounted(t, e)
    elif t.o.availability is not DeviceState.ACTIVE or t.o.arming is not Arming.NO or t.o.drain is not None:
        t.why("sample-unused", f"the owner is {t.o.availability}")
    elif t.o.container is None or not t.o.gates:
        t.why("sample-unused", "no owner container" if t.o.container is None else "no gates")
    else:
        _idle_sample(t, e)


def _idle_sample(t: Turn, e: Usage) -> None:
    why = busy(t.o, e)
    if why is not None:
        _not_idle(t, e, why)
        return
    last = t.o.sampled_ns
    since = t.o.idle_since_ns
    if since is None or last is None or e.started_ns - last > stale_ns(t.o.policy):
        since = e.started_ns
    t.set(idle_since_ns=since, sampled_ns=e.at_ns)
    idle_ns = e.at_ns - since
    if not t.o.eager and idle_ns < t.o.policy.max_inactive_ns:
        t.why("idle", f"idle for {idle_ns / 1e9:.1f} s of {t.o.policy.max_inactive_ns / 1e9:.1f} s")
        return
    if t.o.container is None:
        raise AssertionError("an idle sample without a container")
    t.set(arming=Arming.DETECTING)
    t.why("idle-enough", f"idle for {idle_ns / 1e9:.1f} s: watch the owner, then count again")
    t.do(Detect(t.o.name, t.o.container.cgroup, t.o.policy))


def _not_idle(t: Turn, e: Usage, why: tuple[str, str]) -> None:
    """The owner (or nobody knows who) uses the devices: nobody else may."""
    t.set(eager=False, idle_since_ns=None, sampled_ns=e.at_ns, arming=Arming.NO)
    t.why(*why)
    if any(not spot.evicted and not spot.empty for spot in t.o.spots):
        trigger = Trigger.HANDLES if why[0] == "owner-active" else None
        returning.begin_eviction(t, EvictionReason.OWNER_BACK, why[1], trigger)


def _watch_set(t: Turn, e: WatchSet) -> None:
    if t.o.arming is not Arming.DETECTING:
        t.why("watch-unwanted", f"watch {e.watch} came too late: taken away")
        if t.o.watch != e.watch:
            t.do(Undetect(t.o.name, e.watch))
        return
    t.set(watch=e.watch, arming=Arming.RECOUNTING)
    t.why("watching", f"watch {e.watch} is set: count again")
    t.do(TakeUsage(t.o.name, Purpose.RECOUNT))


def _watch_failed(t: Turn, e: WatchFailed) -> None:
    t.set(arming=Arming.NO, idle_since_ns=None, eager=False)
    t.why("watch-failed", e.message, alert=True)
    if any(not spot.evicted and not spot.empty for spot in t.o.spots):
        returning.begin_eviction(t, EvictionReason.OWNER_BACK, "the owner can't be watched")


def _recounted(t: Turn, e: Usage) -> None:
    if t.o.arming is not Arming.RECOUNTING:
        t.why("sample-unused", "the recount is not wanted any more")
        return
    t.set(arming=Arming.NO)
    why = busy(t.o, e)
    if why is not None:
        # Someone got in before the watch was set, and a live context makes no call that could be held.
        _unwatch(t)
        _not_idle(t, e, why)
        return
    occupied = any(not spot.empty for spot in t.o.spots)
    if not occupied and e.memory is not None:
        t.set(baseline=_of(t.o, e.memory))
    t.set(watching=True, eager=False)
    _lend(t)


def _of(o: OwnerState, amounts: Amounts) -> Amounts:
    return tuple((device, value) for device, value in amounts if device in o.devices)


def _unwatch(t: Turn) -> None:
    if t.o.watch is not None:
        t.do(Undetect(t.o.name, t.o.watch))
    t.set(watch=None, watching=False, blocked=False)
    t.set_spots(lambda spot: replace(spot, lease=LeaseState.NONE))


# After a restart, and the kernel's word ---------------------------------------------------------------------


def _restored(t: Turn, e: Restored) -> None:
    t.set(baseline=_of(t.o, e.baseline), eager=False)
    t.why("restored", f"{len(e.unfinished)} evictions unfinished, {len(e.quarantined)} devices quarantined")
    known = {spot.container.cgroup for spot in t.o.spots}
    for container in e.unfinished:
        if container.cgroup in known:
            t.set_spot(container.cgroup, evicted=True)
        else:
            t.set(spots=(*t.o.spots, Spot(container, running=False, evicted=True)))
            t.do(Follow(t.o.name, container.cgroup, container.path))
    stays = t.o.availability is DeviceState.LENT and not e.unfinished
    if not stays and any(not spot.empty for spot in t.o.spots):
        returning.begin_eviction(t, EvictionReason.OWNER_BACK, "what the agent before began is finished")
    if e.quarantined:
        t.set(quarantined=e.quarantined)
        returning.resume_quarantine(t)


def _watch_adopted(t: Turn, e: WatchAdopted) -> None:
    t.set(watch=e.watch)
    t.set_spots(
        lambda spot: replace(spot, lease=LeaseState.SET) if spot.container.cgroup in e.leases else spot
    )
    known = {spot.container.cgroup for spot in t.o.spots}
    t.do(*(Unlease(t.o.name, e.watch, cgroup) for cgroup in e.leases if cgroup not in known))
    t.why("adopted", f"watch {e.watch} of the agent before: {e.kind}")
    if e.kind is Adopted.TRUSTED:
        t.set(watching=True, eager=False)
        _lend(t)
    elif e.kind is Adopted.UNTRUSTED:
        _unwatch(t)
    elif e.kind is Adopted.BLOCKED:
        t.set(blocked=True, eager=False)
        returning.begin_eviction(
            t, EvictionReason.OWNER_BACK, "the owner's calls fail until the devices are free"
        )
    elif e.kind is Adopted.OPEN:
        t.set(eager=False)
        if any(not spot.empty for spot in t.o.spots):
            returning.begin_eviction(
                t, EvictionReason.OWNER_BACK, "the owner was let through while nobody looked"
            )


def _gates_lost(t: Turn, e: GatesLost) -> None:
    t.why("gates-lost", e.message, alert=True)
    t.set(gates=False, arming=Arming.NO, idle_since_ns=None, eager=False)
    if t.o.handback is not None and t.o.handback.ended is None:
        return  # the kernel lets the owner through and says so
    _unwatch(t)
    if t.o.drain is None:
        t.set(availability=DeviceState.ACTIVE)
    if any(not spot.evicted for spot in t.o.spots):
        returning.begin_eviction(
            t, EvictionReason.DEVICE_UNHEALTHY, "the driver went away: nothing can be held"
        )


def _gates_armed(t: Turn, _e: GatesArmed) -> None:
    t.set(gates=True)
    t.why("gates-armed", "the driver's gates are armed")


def _orphaned(t: Turn, e: Orphaned) -> None:
    t.why("orphaned", f"the kernel acts alone on return {e.id}: the heartbeat was late", alert=True)


# A person's word --------------------------------------------------------------------------------------------


def _admin(t: Turn, e: Admin) -> None:
    if e.action is AdminAction.LEND:
        t.set(eager=True)
        t.why("admin-lend", "the next idle sample is enough")
    elif e.action is AdminAction.EVICT:
        if any(not spot.empty for spot in t.o.spots):
            returning.begin_eviction(t, EvictionReason.ADMIN, "an administrator evicts")
        else:
            t.why("admin-evict", "no spot container to evict")
    else:
        _admin_return(t)


def _admin_return(t: Turn) -> None:
    t.why("admin-return", "an administrator gives the devices back")
    held = t.o.handback is not None and t.o.handback.ended is None and t.o.handback.watch is not None
    t.set(arming=Arming.NO, eager=False, idle_since_ns=None, watching=False)
    if held and t.o.watch is not None:
        t.do(Undetect(t.o.name, t.o.watch))  # its end comes as an event
        return
    _unwatch(t)
    if any(not spot.empty for spot in t.o.spots):
        returning.begin_eviction(t, EvictionReason.ADMIN, "an administrator evicts", Trigger.ADMIN)
    elif t.o.drain is None:
        t.set(availability=DeviceState.ACTIVE)
    t.do(Save(t.o.name))


_HANDLERS: Final[dict[type, Callable[[Turn, Any], None]]] = {
    ContainersSeen: _containers_seen,
    Restored: _restored,
    WatchAdopted: _watch_adopted,
    WatchSet: _watch_set,
    WatchFailed: _watch_failed,
    GatesLost: _gates_lost,
    GatesArmed: _gates_armed,
    LeaseSet: _lease_set,
    LeaseFailed: _lease_failed,
    Usage: _usage,
    Held: returning.begin_return,
    LeaseEmpty: returning.note_lease_empty,
    CgroupEmpty: returning.note_cgroup_empty,
    Killed: returning.note_killed,
    HandlesSeen: returning.note_handles,
    MemorySeen: returning.note_memory,
    ReleaseRefused: returning.note_refused,
    ReturnEnded: returning.end_return,
    Orphaned: _orphaned,
    Timer: returning.note_timer,
    Admin: _admin,
}
