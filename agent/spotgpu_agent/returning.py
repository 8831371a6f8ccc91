# SPDX-License-Identifier: Apache-2.0
"""The hand-back, decided: evict, hear three witnesses, release. Pure.

A drain is the way to the proof; a hand-back is a drain that somebody waits for. The witnesses, in order: the
spot cgroups are empty, no foreign process has a device open or mapped, device memory is back to its baseline.
A sample counts only when it began after the cgroups were empty; one without an answer proves nothing. Handles
and memory are asked for at the same time: neither needs the other, and the owner waits for both.

After the deadline the owner is through, but the drain goes on, slowly: the same proof lifts the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from spotgpu.names import DeviceState, EvictionMethod, EvictionReason, Outcome, Trigger, Witness
from spotgpu_agent import evicting
from spotgpu_agent.commands import (
    Begin,
    CountEviction,
    Finish,
    Lease,
    ReadMemory,
    Refresh,
    Release,
    Report,
    Resync,
    Save,
    ScanHandles,
    SetTimer,
    Tidy,
)
from spotgpu_agent.events import (
    CgroupEmpty,
    HandlesSeen,
    Held,
    Killed,
    LeaseEmpty,
    MemorySeen,
    ReleaseRefused,
    ReturnEnded,
    Timer,
    TimerName,
)
from spotgpu_agent.model import Arming, Drain, Ended, HandBack, LeaseState, OnHold, OwnerState, Proof, Spot
from spotgpu_agent.turn import Turn
from spotgpu_agent.witnesses import (
    MIB,
    MS,
    delay_ns,
    excess,
    foreign_holders,
    late_witnesses,
    missing_detail,
    named,
)

READ_FIRST_NS, READ_CAP_NS = 5 * MS, 50 * MS  # between memory samples while the owner waits
SCAN_FIRST_NS, SCAN_CAP_NS = 10 * MS, 100 * MS  # between handle scans, which cost more
SLOW_CAP_NS: Final = 1000 * MS  # between samples when the owner is through
IDLE_CAP_NS: Final = 5000 * MS  # between samples of a quarantine, which may last for days
DEADLINE_SLACK_NS: Final = 1000 * MS  # the deadline is the kernel's; this long after it the agent asks
RELEASE_AGAIN_NS: Final = 1000 * MS
MAX_RELEASES: Final = 5

# Outcomes after which the devices are still to be verified; the others leave them unproven for good reason.
_VERIFIED_AFTERWARDS: Final = (Outcome.EMPTY, Outcome.ORPHAN, Outcome.RELEASED)


# Beginnings -------------------------------------------------------------------------------------------------


def begin_return(t: Turn, e: Held) -> None:
    """The kernel holds the owner: answer it."""
    known = t.o.handback
    if known is not None and known.id == e.id:
        _known_hold(t, known)
        return
    if known is not None:
        finish(t, Outcome.ABORTED, t.now, "superseded")
    t.set(watch=e.watch, watching=False, arming=Arming.NO)
    t.why("owner-back", f"{e.caller.comm}({e.caller.pid}) is held at ioctl {e.caller.ioctl:#x}")
    back = HandBack(e.id, Trigger.HOLD, e.first_ns, e.watch, e.caller)
    _start(t, e.id, EvictionReason.OWNER_BACK, e.first_ns, back)


def _known_hold(t: Turn, back: HandBack) -> None:
    """The hold came again, from a dump: if RELEASE was sent, it has not arrived."""
    if back.release_sent_ns is not None and t.drain.proven and back.ended is None:
        t.why("still-held", f"return {back.id} is still held after RELEASE")
        _release(t)
    else:
        t.why("hold-known", f"return {back.id} is being answered")


def begin_eviction(t: Turn, reason: EvictionReason, why: str, trigger: Trigger | None = None) -> None:
    """Evict every spot container of the owner without a hold; with a trigger it is a hand-back.

    Args:
        t: the turn.
        reason: for the eviction metric and the pod's event.
        why: for a person.
        trigger: what told of the owner's return, if it is one.
    """
    if t.o.drain is not None:
        t.why("evict", why)
        _join(t, t.o.spots)
        return
    number = t.o.evictions + 1
    t.set(evictions=number)
    t.why("evict", why)
    back = HandBack(-number, trigger, t.now) if trigger is not None else None
    _start(t, -number, reason, t.now, back)


def resume_quarantine(t: Turn) -> None:
    """A quarantine of the agent before goes on: nobody waits, but only the proof ends it."""
    kept = t.o.quarantined
    begin_eviction(t, EvictionReason.DEVICE_UNHEALTHY, "the quarantine of the agent before goes on")
    if t.o.drain is not None:
        t.set_drain(overdue=True)
    t.set(quarantined=kept, availability=DeviceState.ACTIVE)


def _start(t: Turn, number: int, reason: EvictionReason, began_ns: int, back: HandBack | None) -> None:
    held = back is not None and back.trigger is Trigger.HOLD
    alive = [spot for spot in t.o.spots if not spot.empty]
    # The kernel kills at the hold; that a cgroup is empty may be heard of before the hold is.
    dead = [spot for spot in t.o.spots if held and (spot.ended_ns or 0) >= began_ns]
    targets = [*alive, *dead]
    drain = Drain(
        id=number,
        reason=reason,
        began_ns=began_ns,
        deadline_ns=began_ns + t.o.policy.deadline_ns + (DEADLINE_SLACK_NS if held else 0),
        cgroups=tuple(spot.container.cgroup for spot in targets),
        spots=tuple(spot.container.id for spot in targets),
        empty_ns=None if targets else began_ns,
    )
    t.set(drain=drain, handback=back, availability=DeviceState.RETURNING)
    if back is not None:
        containers = tuple(spot.container for spot in targets)
        t.do(Begin(t.o.name, number, back.trigger, back.first_ns, back.watch, back.caller, containers))
    t.set_spots(lambda spot: replace(spot, evicted=True))
    evicting.evict(t, alive, held)
    for spot in dead:
        _emptied(t, spot, spot.ended_ns or began_ns)
    t.do(SetTimer(t.o.name, TimerName.OVERDUE, number, drain.deadline_ns))
    advance(t)
    t.do(Save(t.o.name))


def join(t: Turn, spot: Spot) -> None:
    """A spot container appeared on devices that are being drained: it goes the same way."""
    back = t.o.handback
    if back is not None and back.watch is not None and back.ended is None and spot.lease is LeaseState.NONE:
        t.do(Lease(t.o.name, back.watch, spot.container.cgroup))
        t.set_spot(spot.container.cgroup, lease=LeaseState.ASKED)
    _join(t, [spot])


def _join(t: Turn, spots: Iterable[Spot]) -> None:
    """Add spot containers to the drain under way. What was proven of the devices is proven no more."""
    new = [spot for spot in spots if not spot.empty and spot.container.cgroup not in t.drain.cgroups]
    if not new:
        return
    t.set_drain(
        cgroups=t.drain.cgroups + tuple(spot.container.cgroup for spot in new),
        spots=t.drain.spots
        + tuple(spot.container.id for spot in new if spot.container.id not in t.drain.spots),
        empty_ns=None,
        handles=None,
        memory=None,
    )
    for spot in new:
        t.set_spot(spot.container.cgroup, evicted=True)
    evicting.kill(t, new)


# Evicting ---------------------------------------------------------------------------------------------------


def note_killed(t: Turn, e: Killed) -> None:
    """The agent's own signal went out (or not)."""
    if e.failed is not None:
        t.why("kill-failed", f"spot cgroup {e.cgroup}: {e.failed}", alert=True)
        return
    t.why("killed", f"{'SIGTERM' if e.terminate else 'SIGKILL'} to spot cgroup {e.cgroup}")
    d = t.o.drain
    if d is None:
        return
    if d.kill_ns is None:
        t.set_drain(kill_ns=e.at_ns, killed_by_agent=True)
    if d.empty_ns is None:
        t.set_drain(killed_ns=max(e.at_ns, d.killed_ns or 0))


# Witness 1: the spot cgroups are empty ----------------------------------------------------------------------


def note_lease_empty(t: Turn, e: LeaseEmpty) -> None:
    """The kernel saw the lease unpopulated."""
    d = t.o.drain
    if d is None or d.id != e.id:
        t.why("stale", f"the lease of return {e.id} is empty, but that return is over")
        return
    _heard_kernel(t, e.kill_ns, e.killed_ns, e.empty_ns)
    t.why("lease-empty", "the kernel saw the spot cgroups empty")
    advance(t)


def _heard_kernel(t: Turn, kill_ns: int, killed_ns: int, empty_ns: int) -> None:
    """Take the kernel's times for its own kill and for the empty lease. Zero: it has not happened."""
    d = t.drain
    if kill_ns and (d.kill_ns is None or kill_ns <= d.kill_ns):
        t.set_drain(kill_ns=kill_ns, killed_ns=killed_ns or None, killed_by_agent=False)
    if not empty_ns:
        return
    leased = [spot for spot in evicting.pending(t) if spot.lease is LeaseState.SET]
    for spot in leased:
        _emptied(t, spot, empty_ns)
    only_leased = all(spot.lease is LeaseState.SET for spot in t.o.spots if spot.container.id in d.spots)
    if not t.drain.cgroups and only_leased and d.spots:
        # The kernel's own time is the truth; the agent's file event came up to 10 ms later.
        t.set_drain(empty_ns=min(empty_ns, t.drain.empty_ns or empty_ns))


def note_cgroup_empty(t: Turn, e: CgroupEmpty) -> None:
    """A spot cgroup is unpopulated: in a drain a witness, otherwise the natural end of a spot container."""
    spot = t.o.spot(e.cgroup)
    if spot is None or spot.empty:
        t.why("stale", f"cgroup {e.cgroup} is empty, as known")
        return
    if t.o.drain is not None and e.cgroup in t.o.drain.cgroups:
        _emptied(t, spot, e.at_ns)
        t.why("cgroup-empty", f"spot container {spot.container.id} has no processes")
        advance(t)
        return
    t.set_spot(e.cgroup, empty=True, ended_ns=e.at_ns)
    t.why("spot-ended", f"spot container {spot.container.id} has no processes")
    t.do(Refresh(t.o.name))


def _emptied(t: Turn, spot: Spot, at_ns: int) -> None:
    cgroup = spot.container.cgroup
    t.set_spot(cgroup, empty=True)
    left = tuple(other for other in t.drain.cgroups if other != cgroup)
    t.set_drain(cgroups=left)
    d = t.drain
    if not left:
        t.set_drain(empty_ns=max(at_ns, d.began_ns))
    method = EvictionMethod.KHOOK
    if d.terminated and not d.kills:
        method = EvictionMethod.GRACE
    elif d.killed_by_agent or spot.lease is LeaseState.NONE or not _kernel_kills(t.o):
        method = EvictionMethod.CGROUP_KILL
    duration = max(0, at_ns - (d.kill_ns or d.began_ns))
    t.do(CountEviction(t.o.name, d.id, spot.container.id, d.reason, method, duration))


def _kernel_kills(o: OwnerState) -> bool:
    held = o.handback is not None and o.handback.trigger is Trigger.HOLD
    return held and o.policy.on_hold is OnHold.KILL


# Witness 2: nobody else has a device open or mapped ---------------------------------------------------------


def note_handles(t: Turn, e: HandlesSeen) -> None:
    """A scan came back."""
    d = t.o.drain
    if d is None or d.id != e.id:
        t.why("stale", f"a handle scan of {e.id}, which is over")
        return
    t.set_drain(scanning=False)
    if d.empty_ns is None or e.started_ns < d.empty_ns:
        t.why("handles-too-old", "the scan began before the cgroups were empty")
    elif e.holders is None:
        t.set_drain(scans=d.scans + 1, unknown=_with(d.unknown, Witness.HANDLES))
        t.why("handles-unknown", "the handle scan gave no answer")
    elif foreign := foreign_holders(t.o, e.holders):
        new = set(foreign) - set(d.holders)
        t.set_drain(scans=d.scans + 1, holders=foreign, unknown=_without(d.unknown, Witness.HANDLES))
        t.why("handles-held", f"{named(foreign)} has a device open", alert=bool(new))
        if new:
            t.do(Refresh(t.o.name))  # it may be a spot container that containerd has not told of yet
    else:
        proof = Proof(d.scan_ns or e.started_ns, e.at_ns, d.scans + 1)
        t.set_drain(handles=proof, holders=(), unknown=_without(d.unknown, Witness.HANDLES))
        t.why("handles-proven", "no foreign process has a device open or mapped")
    advance(t)


# Witness 3: device memory is back to its baseline -----------------------------------------------------------


def note_memory(t: Turn, e: MemorySeen) -> None:
    """A memory sample came back."""
    d = t.o.drain
    if d is None or d.id != e.id:
        t.why("stale", f"a memory sample of {e.id}, which is over")
        return
    t.set_drain(reading=False)
    if d.empty_ns is None or e.started_ns < d.empty_ns:
        t.why("memory-too-old", "the sample began before the cgroups were empty")
    elif e.used is None or not set(t.o.devices) <= {device for device, _ in e.used}:
        t.set_drain(reads=d.reads + 1, unknown=_with(d.unknown, Witness.MEMORY))
        t.why("memory-unknown", "the driver's library gave no answer")
    elif over := excess(t.o, e.used, e.processes or ()):
        t.set_drain(reads=d.reads + 1, used=e.used, unknown=_without(d.unknown, Witness.MEMORY))
        worst = ", ".join(f"{device} {bytes_over // MIB} MiB over" for device, bytes_over in over.items())
        t.why("memory-in-use", worst)
    else:
        proof = Proof(d.read_ns or e.started_ns, e.at_ns, d.reads + 1)
        t.set_drain(memory=proof, used=e.used, unknown=_without(d.unknown, Witness.MEMORY))
        t.why("memory-proven", "device memory is back to its baseline")
    advance(t)


# Going on ---------------------------------------------------------------------------------------------------


def advance(t: Turn) -> None:
    """Do whatever the drain can do next."""
    d = t.drain
    if d.empty_ns is None:
        return
    if d.handles is None and not d.scanning:
        t.do(ScanHandles(t.o.name, d.id, delay_ns(d.scans, SCAN_FIRST_NS, _cap_ns(t.o, SCAN_CAP_NS))))
        t.set_drain(scanning=True, scan_ns=d.scan_ns or t.now)
    if d.memory is None and not d.reading:
        t.do(ReadMemory(t.o.name, d.id, delay_ns(d.reads, READ_FIRST_NS, _cap_ns(t.o, READ_CAP_NS))))
        t.set_drain(reading=True, read_ns=d.read_ns or t.now)
    if d.proven:
        _proven(t)


def _cap_ns(o: OwnerState, hurried_ns: int) -> int:
    """The longest time between two samples: short while the owner waits."""
    if o.drain is not None and o.drain.overdue:
        return IDLE_CAP_NS
    return SLOW_CAP_NS if o.handback is not None and o.handback.ended is not None else hurried_ns


def _proven(t: Turn) -> None:
    back = t.o.handback
    if back is None:
        t.why("proven", "the devices are free")
        settle(t)
    elif back.ended is not None:
        finish(t, back.ended.outcome, back.ended.release_ns)
        settle(t)
    elif back.watch is None:
        finish(t, Outcome.RELEASED, t.now)
        settle(t)
    elif back.release_sent_ns is None:
        t.why("proven", "the devices are free: release")
        _release(t)


def _release(t: Turn) -> None:
    back = t.handback
    if back.watch is None:
        raise AssertionError("a release without a watch")
    t.do(Release(t.o.name, back.watch, back.id))
    t.set_handback(release_sent_ns=back.release_sent_ns or t.now, releases=back.releases + 1)
    t.do(SetTimer(t.o.name, TimerName.RELEASE, back.id, t.now + RELEASE_AGAIN_NS))


def note_refused(t: Turn, e: ReleaseRefused) -> None:
    """The kernel refused RELEASE: most likely the return has ended and its event is on the way."""
    t.why("release-refused", e.message)
    if t.o.handback is not None and t.o.handback.id == e.id:
        t.do(Resync(t.o.name))


def note_timer(t: Turn, e: Timer) -> None:
    """A timer of a drain fired."""
    d = t.o.drain
    if d is None or d.id != e.id:
        t.why("stale", f"timer {e.name} of {e.id}, which is over")
    elif e.name is TimerName.OVERDUE:
        _overdue(t)
    elif e.name is TimerName.RELEASE:
        _release_again(t)
    else:
        evicting.kill_again(t, e.name)


def _release_again(t: Turn) -> None:
    back = t.o.handback
    if back is None or back.ended is not None or back.release_sent_ns is None:
        t.why("stale", "timer release: the return has ended")
        return
    t.do(Resync(t.o.name))
    gone = back.releases >= MAX_RELEASES
    t.why("release-unseen", f"no end of return {back.id} after {back.releases} RELEASE", alert=gone)
    if not gone and t.drain.proven:
        _release(t)


# Ends -------------------------------------------------------------------------------------------------------


def end_return(t: Turn, e: ReturnEnded) -> None:
    """The kernel let the owner through, or failed its calls."""
    back, d = t.o.handback, t.o.drain
    if back is None or d is None or back.id != e.id or back.ended is not None:
        t.why("stale", f"return {e.id} ended ({e.outcome}), as known")
        return
    _heard_kernel(t, e.kill_ns, e.killed_ns, e.empty_ns)
    gone = e.outcome is Outcome.UNDETECTED
    t.set(
        watching=False,
        watch=None if gone else t.o.watch,
        blocked=e.outcome is Outcome.DEADLINE_EIO,
        availability=DeviceState.ACTIVE,
        eager=False,
        idle_since_ns=None,
    )
    t.set_handback(ended=Ended(e.outcome, e.release_ns, e.holds, e.passes))
    t.why("return-ended", f"return {e.id}: {e.outcome}")
    if t.drain.proven:
        finish(t, e.outcome, e.release_ns)
        settle(t)
    elif e.outcome in _VERIFIED_AFTERWARDS:
        advance(t)
    else:
        _unproven(t, e.outcome, e.release_ns)
        advance(t)


def _overdue(t: Turn) -> None:
    """The proof is overdue."""
    back, d = t.o.handback, t.drain
    if back is not None and back.watch is not None and back.ended is None:
        t.why("kernel-overdue", f"no end of return {back.id} at its deadline", alert=True)
        t.do(Resync(t.o.name), SetTimer(t.o.name, TimerName.OVERDUE, d.id, t.now + DEADLINE_SLACK_NS))
    elif back is not None and back.ended is not None:
        _unproven(t, Outcome.DIRTY, back.ended.release_ns)
    elif back is not None:
        _unproven(t, Outcome.DEADLINE, t.now)
    elif not d.overdue:
        _quarantine(t)
    else:
        t.why("stale", "timer overdue: known")


def _unproven(t: Turn, outcome: Outcome, end_ns: int) -> None:
    finish(t, outcome, end_ns, f"{t.drain.missing[0]}_unproven")
    _quarantine(t)


def _quarantine(t: Turn) -> None:
    """The devices are not to be lent until the drain has its proof after all."""
    d = t.drain
    why = f"{d.missing[0]}: {missing_detail(t.o, d)}"
    devices = t.o.devices
    if d.missing == (Witness.MEMORY,) and d.used:
        devices = tuple(excess(t.o, d.used, ())) or devices
    t.set_drain(overdue=True)
    t.set(
        quarantined=tuple((device, why) for device in devices),
        availability=DeviceState.ACTIVE,
        watching=False,
    )
    t.why("quarantined", f"{', '.join(devices)}: {why}", alert=True)
    _tidy(t)
    t.do(Save(t.o.name))


def finish(t: Turn, outcome: Outcome, end_ns: int, error_type: str | None = None) -> None:
    """The hand-back is over; the drain may not be."""
    report = _report(t, outcome, end_ns, error_type)
    t.do(Finish(t.o.name, report))
    text = f"{outcome} after {(end_ns - report.first_ns) / MS:.1f} ms"
    if report.missing:
        text += f", {report.missing[0]} unproven: {missing_detail(t.o, t.drain)}"
    t.why("hand-back", text, alert=error_type is not None)
    t.set(handback=None)


def _report(t: Turn, outcome: Outcome, end_ns: int, error_type: str | None) -> Report:
    d, back = t.drain, t.handback
    ended = back.ended
    return Report(
        id=back.id,
        trigger=back.trigger,
        reason=d.reason,
        outcome=outcome,
        first_ns=back.first_ns,
        end_ns=end_ns,
        kill_ns=d.kill_ns,
        killed_ns=d.killed_ns,
        empty_ns=d.empty_ns,
        handles=d.handles,
        memory=d.memory,
        release_sent_ns=back.release_sent_ns,
        release_ns=ended.release_ns if ended else None,
        killed_by_agent=d.killed_by_agent,
        spots=d.spots,
        late=late_witnesses(d),
        missing=d.missing,
        holders=d.holders,
        used=d.used,
        baseline=t.o.baseline,
        holds=ended.holds if ended else 0,
        passes=ended.passes if ended else 0,
        error_type=error_type,
    )


def settle(t: Turn) -> None:
    """The devices are proven free and nobody is held: tidy up, and say what they are now."""
    d = t.drain
    if t.o.quarantined:
        t.why(
            "quarantine-over",
            f"{', '.join(device for device, _ in t.o.quarantined)}: proven free",
            alert=True,
        )
    if t.o.blocked and t.o.watch is not None:
        t.do(Release(t.o.name, t.o.watch, None))
    _tidy(t)
    lendable = t.o.watching and t.o.arming is Arming.NO and t.o.gates
    t.set(
        drain=None,
        blocked=False,
        quarantined=(),
        availability=DeviceState.LENDABLE if lendable else DeviceState.ACTIVE,
    )
    t.why("settled", f"{d.reason}: the devices are {t.o.availability}")
    t.do(Save(t.o.name))


def _tidy(t: Turn) -> None:
    """Bookkeeping of the evicted spot containers that are dead: never before the owner is through."""
    for spot in t.o.spots:
        if not (spot.evicted and spot.empty) or spot.tidied:
            continue
        t.forget(spot)
        t.do(Tidy(t.o.name, spot.container.id))
        t.set_spot(spot.container.cgroup, lease=LeaseState.NONE, fenced=False, tidied=True)
    t.set_spots(lambda spot: None if spot.tidied and not spot.running else spot)


def _with(witnesses: tuple[Witness, ...], witness: Witness) -> tuple[Witness, ...]:
    return witnesses if witness in witnesses else (*witnesses, witness)


def _without(witnesses: tuple[Witness, ...], witness: Witness) -> tuple[Witness, ...]:
    return tuple(other for other in witnesses if other != witness)
