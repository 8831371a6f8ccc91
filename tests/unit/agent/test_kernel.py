# SPDX-License-Identifier: Apache-2.0
"""The back-end's events and dumps as the core's events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotgpu.names import DeviceState, Outcome, Trigger
from spotgpu_agent import events as e
from spotgpu_agent.adoption import inherited
from spotgpu_agent.core import step
from spotgpu_agent.hold import watch_policy
from spotgpu_agent.kernel import from_dump, from_event, take_over
from spotgpu_agent.model import AtDeadline, HandBack, OnHold, OwnerState, ReleaseOn, ReturnOn, State
from spotgpu_agent.state import Saved, SavedHandBack, project
from spotgpu_khook import abi
from spotgpu_khook import model as k
from tests.unit.agent.worlds import (
    CALLER,
    DEVICE,
    POLICY,
    S,
    SpotLife,
    World,
    lent,
    owner_container,
    owner_state,
    spot_container,
    with_policy,
)

WHO = k.Caller(900, 900, "python", 11, 1, 0xC3FF, 0xC020462B, abi.IoctlClass.COMPUTE, 1)
NEVER = k.Eviction(0, 0, 0, 0)
EVICTED = k.Eviction(11, 12, 13, 2)
GATE = k.Gate(
    1, 0xC3FF, "nvidia", "nvidia_ioctl", abi.Classifier.NVIDIA_RM, abi.Method.FTRACE, abi.GateState.LIVE, 0, 0
)
OWNER = replace(
    owner_state(), container=owner_container(), watch=7, watching=True, availability=DeviceState.LENT
)
STATE = State((owner_state("other"), OWNER))


def watch(state: abi.WatchState, number: int = 0, eviction: k.Eviction = NEVER, **fields: object) -> k.Watch:
    known = k.Watch(
        7, k.CgroupKey(11), k.WatchPolicy(), state, 0, number, 5, eviction, 0, abi.Outcome.UNSPEC, (101,)
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def hold(number: int) -> k.Hold:
    return k.Hold(1, 7, number, WHO, 100)


def test_events_of_a_watch_go_to_its_owner() -> None:
    told = from_event(k.HoldEvent(7, 3, 1, 99, WHO), STATE)
    assert told == [e.Held("dev", 7, 3, 99, CALLER)]
    assert from_event(k.EmptyEvent(7, 3, EVICTED), STATE) == [e.LeaseEmpty("dev", 3, 11, 12, 13)]
    assert from_event(k.OrphanEvent(7, 3), STATE) == [e.Orphaned("dev", 3)]
    released = k.ReleaseEvent(7, 3, 1, 99, WHO, 120, abi.Outcome.DEADLINE_EIO, 4, EVICTED)
    assert from_event(released, STATE) == [
        e.ReturnEnded("dev", 3, Outcome.DEADLINE_EIO, 120, 11, 12, 13, holds=4, passes=2)
    ]


def test_events_of_unknown_watches_are_nobodys() -> None:
    assert from_event(k.HoldEvent(8, 3, 1, 99, WHO), STATE) == []
    assert from_event(k.FencedEvent(101, 1, 1, "x"), STATE) == []


def test_the_end_of_a_return_is_heard_even_when_its_watch_was_given_up() -> None:
    owner = replace(OWNER, watch=None, handback=HandBack(3, Trigger.HOLD, 99, watch=7))
    ended = k.ReleaseEvent(7, 3, 1, 99, WHO, 120, abi.Outcome.UNDETECTED, 1, NEVER)
    assert from_event(ended, State((owner,)))[0].owner == "dev"


def test_a_lost_gate_concerns_everybody() -> None:
    told = from_event(k.GateLostEvent(1, "nvidia"), STATE)
    assert [type(one) for one in told] == [e.GatesLost, e.GatesLost]
    assert [one.owner for one in told] == ["other", "dev"]


@pytest.mark.parametrize(("outcome", "expected"), [(one, one.name.lower()) for one in abi.Outcome if one])
def test_every_outcome_of_the_kernel_has_a_name(outcome: abi.Outcome, expected: str) -> None:
    event = k.ReleaseEvent(7, 3, 1, 99, WHO, 120, outcome, 1, NEVER)
    (told,) = from_event(event, STATE)
    assert isinstance(told, e.ReturnEnded)
    assert told.outcome == expected


def kinds(events: list[e.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


HELD = replace(OWNER, watching=False, handback=HandBack(3, Trigger.HOLD, 99, watch=7))


@pytest.mark.parametrize(
    ("owner", "now", "expected"),
    [
        (OWNER, watch(abi.WatchState.WATCHING), []),
        (OWNER, watch(abi.WatchState.HOLDING, 3), ["Held"]),
        (OWNER, watch(abi.WatchState.HOLDING, 3, EVICTED), ["Held", "LeaseEmpty"]),
        (OWNER, watch(abi.WatchState.OPEN, 3, outcome=abi.Outcome.ORPHAN), ["Held", "ReturnEnded"]),
        (HELD, watch(abi.WatchState.HOLDING, 3), ["Held"]),
        (HELD, watch(abi.WatchState.OPEN, 3, outcome=abi.Outcome.DEADLINE), ["ReturnEnded"]),
        (HELD, watch(abi.WatchState.BLOCKED, 3, outcome=abi.Outcome.DEADLINE_EIO), ["ReturnEnded"]),
        (HELD, watch(abi.WatchState.WATCHING, 3, outcome=abi.Outcome.RELEASED), ["ReturnEnded"]),
    ],
)
def test_a_dump_tells_what_was_missed(owner: OwnerState, now: k.Watch, expected: list[str]) -> None:
    told = from_dump(owner, [now], [hold(3)], 777)
    assert kinds(told) == expected
    for event in told:
        step(State((owner,)), event, 800)  # the core takes it


def test_a_watch_that_is_gone_ends_its_return() -> None:
    assert from_dump(HELD, [], [], 777) == [e.ReturnEnded("dev", 3, Outcome.UNDETECTED, 777)]
    assert from_dump(OWNER, [], [], 777) == []


def saved_while_lent() -> Saved:
    world = lent(World(spots=[SpotLife(spot_container())]))
    return Saved("boot", (project(world.owner),))


def test_a_set_watch_is_trusted_only_with_the_state_file_of_the_same_owner_and_watch() -> None:
    saved = saved_while_lent()
    record = saved.owners[0]
    now = watch(abi.WatchState.WATCHING, id=record.watch)
    live = [GATE]

    def kind(saved: Saved | None, now: k.Watch = now, gates: list[k.Gate] = live) -> e.Adopted:
        first = inherited(replace(owner_state(), container=owner_container()), saved, now, gates, [], 1)[0]
        assert isinstance(first, e.WatchAdopted)
        return first.kind

    assert kind(saved) is e.Adopted.TRUSTED
    assert kind(None) is e.Adopted.UNTRUSTED
    assert kind(saved, replace(now, id=99)) is e.Adopted.UNTRUSTED
    assert kind(saved, gates=[replace(GATE, state=abi.GateState.LOST)]) is e.Adopted.UNTRUSTED
    assert kind(saved, gates=[]) is e.Adopted.UNTRUSTED
    for change in (
        {"watching": False},
        {"quarantined": ((DEVICE, "memory"),)},
        {"container": replace(owner_container(), cgroup=99)},
    ):
        other = replace(saved, owners=(replace(record, **change),))
        assert kind(other) is e.Adopted.UNTRUSTED
    assert kind(saved, replace(now, state=abi.WatchState.HOLDING)) is e.Adopted.HOLDING
    assert kind(saved, replace(now, state=abi.WatchState.OPEN)) is e.Adopted.OPEN
    assert kind(saved, replace(now, state=abi.WatchState.BLOCKED)) is e.Adopted.BLOCKED


def test_what_was_restored_comes_between_the_watch_and_the_hold() -> None:
    record = replace(saved_while_lent().owners[0], handback=SavedHandBack(3, Trigger.HOLD, 5))
    owner = replace(owner_state(), container=owner_container())
    now = watch(abi.WatchState.HOLDING, 3, id=record.watch)
    told = inherited(owner, Saved("boot", (record,)), now, [GATE], [hold(3)], 1)
    assert kinds(told) == ["WatchAdopted", "Restored", "Held"]


def test_a_return_that_ended_while_nobody_was_there_is_finished() -> None:
    record = replace(saved_while_lent().owners[0], handback=SavedHandBack(3, Trigger.HOLD, 5))
    over = watch(abi.WatchState.OPEN, 3, EVICTED, outcome=abi.Outcome.ORPHAN, release_ns=50)
    begun, ended = take_over("dev", over, [], record, 777)
    assert isinstance(begun, e.Held)
    assert begun.first_ns == 5
    assert ended == e.ReturnEnded("dev", 3, Outcome.ORPHAN, 50, 11, 12, 13, passes=2)
    for gone in (None, watch(abi.WatchState.OPEN, 4)):
        lost = take_over("dev", gone, [], record, 777)[1]
        assert isinstance(lost, e.ReturnEnded)
        assert lost.outcome is Outcome.ABORTED


def test_policies_reach_the_kernel() -> None:
    assert watch_policy(POLICY) == k.WatchPolicy()
    other = with_policy(
        deadline_ns=3 * S,
        at_deadline=AtDeadline.EIO,
        return_on=ReturnOn.ANY,
        on_hold=OnHold.NOTIFY,
        release_on=ReleaseOn.EMPTY,
    )
    assert watch_policy(other) == k.WatchPolicy(
        abi.ReturnOn.ANY, 3000, abi.AtDeadline.EIO, abi.OnHold.NOTIFY, abi.ReleaseOn.EMPTY
    )
