# SPDX-License-Identifier: Apache-2.0
"""The back-end's events and dumps as the core's events. Pure.

An event names a watch, the core knows owners; a dump says what is, the core wants what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spotgpu.names import Outcome, Trigger
from spotgpu_agent import events as e
from spotgpu_agent.model import Caller, OwnerState, State
from spotgpu_agent.state import SavedOwner
from spotgpu_khook import abi
from spotgpu_khook import model as k

_OUTCOMES: Final = {
    abi.Outcome.RELEASED: Outcome.RELEASED,
    abi.Outcome.EMPTY: Outcome.EMPTY,
    abi.Outcome.DEADLINE: Outcome.DEADLINE,
    abi.Outcome.DEADLINE_EIO: Outcome.DEADLINE_EIO,
    abi.Outcome.ORPHAN: Outcome.ORPHAN,
    abi.Outcome.UNDETECTED: Outcome.UNDETECTED,
}
_NOBODY: Final = Caller(0, 0, "?", 0, 0, 0, "unspec")
_ENDED: Final = (abi.WatchState.OPEN, abi.WatchState.BLOCKED)


def owner_of(state: State, watch: int) -> OwnerState | None:
    """The owner of a watch; also of one that was just given up while its return had not ended."""
    for owner in state.owners:
        if owner.watch == watch or (owner.handback is not None and owner.handback.watch == watch):
            return owner
    return None


def from_event(event: k.Event, state: State) -> list[e.Event]:
    """What an event of the back-end means; nothing, when it is about no watch of ours."""
    if isinstance(event, k.GateLostEvent):
        why = f"module {event.module} went away"
        return [e.GatesLost(owner.name, why) for owner in state.owners]
    if isinstance(event, k.FencedEvent):
        return []
    owner = owner_of(state, event.watch)
    if owner is None:
        return []
    if isinstance(event, k.HoldEvent):
        return [e.Held(owner.name, event.watch, event.return_id, event.first_ns, caller(event.caller))]
    if isinstance(event, k.EmptyEvent):
        return [_lease_empty(owner.name, event.return_id, event.eviction)]
    if isinstance(event, k.OrphanEvent):
        return [e.Orphaned(owner.name, event.return_id)]
    return [_ended(owner.name, event.return_id, event.outcome, event.release_ns, event.eviction, event.holds)]


def from_dump(
    owner: OwnerState, watches: Sequence[k.Watch], holds: Sequence[k.Hold], now_ns: int
) -> list[e.Event]:
    """What was missed of one owner, from what is.

    Args:
        owner: as the core knows it.
        watches: all of the back-end.
        holds: all of the back-end.
        now_ns: for what the dump does not date.
    """
    back = owner.handback if owner.handback is not None and owner.handback.watch is not None else None
    number = back.watch if back is not None else owner.watch
    watch = next((watch for watch in watches if watch.id == number), None)
    if watch is None:
        gone = back is not None and back.ended is None
        return [e.ReturnEnded(owner.name, back.id, Outcome.UNDETECTED, now_ns)] if gone and back else []
    found: list[e.Event] = []
    known = back is not None and back.id == watch.return_id
    if watch.state == abi.WatchState.HOLDING or (watch.state in _ENDED and owner.watching):
        found.append(held(owner.name, watch, holds))
        known = True
    if watch.state == abi.WatchState.HOLDING and watch.eviction.empty_ns:
        found.append(_lease_empty(owner.name, watch.return_id, watch.eviction))
    if watch.state != abi.WatchState.HOLDING and known:
        found.append(
            _ended(owner.name, watch.return_id, watch.outcome, watch.release_ns or now_ns, watch.eviction, 0)
        )
    return found


def adopted(owner: OwnerState, saved: SavedOwner | None, watch: k.Watch, live: bool) -> e.WatchAdopted:
    """What a watch of the agent before is worth.

    Args:
        owner: the owner it watches.
        saved: what the state file of this boot says of it.
        watch: the watch.
        live: the gates are hooked, and were when the agent before ended.
    """
    kinds = {
        abi.WatchState.HOLDING: e.Adopted.HOLDING,
        abi.WatchState.OPEN: e.Adopted.OPEN,
        abi.WatchState.BLOCKED: e.Adopted.BLOCKED,
    }
    kind = kinds.get(watch.state, e.Adopted.UNTRUSTED)
    if kind is e.Adopted.UNTRUSTED and live and saved is not None:
        same = saved.container == owner.container and saved.watch == watch.id
        kind = e.Adopted.TRUSTED if same and saved.watching and not saved.quarantined else kind
    return e.WatchAdopted(owner.name, watch.id, kind, watch.leases)


def take_over(
    owner: str, watch: k.Watch | None, holds: Sequence[k.Hold], saved: SavedOwner | None, now_ns: int
) -> list[e.Event]:
    """A return that the agent before was answering, as if it had begun just now.

    Args:
        owner: name of the owner.
        watch: its watch, if the back-end has one.
        holds: all of the back-end.
        saved: what the state file of this boot says of the owner.
        now_ns: for what nobody dates.
    """
    if watch is not None and watch.state == abi.WatchState.HOLDING:
        empty = [_lease_empty(owner, watch.return_id, watch.eviction)] if watch.eviction.empty_ns else []
        return [held(owner, watch, holds), *empty]
    back = saved.handback if saved is not None else None
    if back is None or back.trigger is not Trigger.HOLD or saved is None:
        return []
    # It ended while nobody was there.
    begun = e.Held(owner, saved.watch or 0, back.id, back.first_ns, _NOBODY)
    if watch is None or watch.return_id != back.id:
        return [begun, e.ReturnEnded(owner, back.id, Outcome.ABORTED, now_ns)]
    release_ns = watch.release_ns or now_ns
    return [begun, _ended(owner, back.id, watch.outcome, release_ns, watch.eviction, 0)]


def held(owner: str, watch: k.Watch, holds: Sequence[k.Hold]) -> e.Held:
    """The hold event of a return, made from dumps."""
    one = next((hold for hold in holds if hold.watch == watch.id), None)
    who = caller(one.caller) if one is not None else _NOBODY
    return e.Held(owner, watch.id, watch.return_id, watch.first_ns, who)


def caller(who: k.Caller) -> Caller:
    """The core's view of a caller."""
    return Caller(who.pid, who.tid, who.comm, who.cgroup, who.dev, who.ioctl, who.ioctl_class.name.lower())


def _lease_empty(owner: str, number: int, eviction: k.Eviction) -> e.LeaseEmpty:
    return e.LeaseEmpty(owner, number, eviction.kill_ns, eviction.killed_ns, eviction.empty_ns)


def _ended(
    owner: str, number: int, outcome: abi.Outcome, release_ns: int, eviction: k.Eviction, holds: int
) -> e.ReturnEnded:
    return e.ReturnEnded(
        owner,
        number,
        _OUTCOMES.get(outcome, Outcome.ABORTED),
        release_ns,
        eviction.kill_ns,
        eviction.killed_ns,
        eviction.empty_ns,
        holds,
        eviction.passes,
    )
