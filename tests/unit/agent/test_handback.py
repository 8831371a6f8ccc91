# SPDX-License-Identifier: Apache-2.0
"""The phases of a hand-back: in order, without overlap, and adding up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu.names import Attr, EvictionReason, Outcome, Phase, Trigger, Witness
from spotgpu_agent.clock import Clock
from spotgpu_agent.commands import Begin, Finish, Report
from spotgpu_agent.handback import HandBacks, steps
from spotgpu_agent.metrics import Metrics
from spotgpu_agent.model import Holder, Proof
from tests.unit.agent.worlds import CALLER, DEVICE, MS, owner_state, spot_container

REPORT = Report(
    id=1,
    trigger=Trigger.HOLD,
    reason=EvictionReason.OWNER_BACK,
    outcome=Outcome.RELEASED,
    first_ns=1000 * MS,
    end_ns=1100 * MS,
    kill_ns=1001 * MS,
    killed_ns=1002 * MS,
    empty_ns=1050 * MS,
    handles=Proof(1052 * MS, 1062 * MS, 1),
    memory=Proof(1052 * MS, 1090 * MS, 4),
    release_sent_ns=1091 * MS,
    release_ns=1100 * MS,
    killed_by_agent=False,
    spots=("spot1",),
    late=(),
    missing=(),
    holders=(),
    used=((DEVICE, 7),),
    baseline=((DEVICE, 5),),
    holds=1,
    passes=2,
    error_type=None,
)


def times(report: Report) -> list[tuple[str, int, int]]:
    return [(one.phase.value, one.start_ns // MS - 1000, one.end_ns // MS - 1000) for one in steps(report)]


def test_the_phases_of_a_whole_hand_back() -> None:
    assert times(REPORT) == [
        ("evict.kill", 0, 2),
        ("drain.cgroup", 2, 50),
        ("drain.handles", 52, 62),
        ("drain.memory", 62, 90),
        ("release", 91, 100),
    ]


def test_a_witness_heard_beside_another_counts_from_where_that_ended() -> None:
    early = replace(REPORT, memory=Proof(1052 * MS, 1055 * MS, 1))
    assert ("drain.memory", 62, 62) in times(early)


def test_without_spot_containers_nothing_is_killed_or_drained() -> None:
    alone = replace(REPORT, spots=(), kill_ns=None, killed_ns=None, empty_ns=1000 * MS)
    assert [name for name, _, _ in times(alone)] == ["drain.handles", "drain.memory", "release"]


@pytest.mark.parametrize(
    ("missing", "change"),
    [
        (Witness.CGROUP, {"empty_ns": None, "handles": None, "memory": None}),
        (Witness.HANDLES, {"handles": None, "memory": None}),
        (Witness.MEMORY, {"memory": None}),
    ],
)
def test_the_missing_witness_is_the_phase_that_failed(missing: Witness, change: dict[str, None]) -> None:
    report = replace(REPORT, missing=(missing,), release_sent_ns=None, **change)  # type: ignore[arg-type]
    last = steps(report)[-1]
    assert last.phase.value == f"drain.{missing}"
    assert last.error_type == f"{missing}_unproven"
    assert last.end_ns == report.end_ns


TIME = st.integers(0, 200).map(lambda ms: (1000 + ms) * MS)
PROOF = st.none() | st.tuples(TIME, TIME).map(lambda pair: Proof(min(pair), max(pair), 1))


@settings(deadline=None)
@given(TIME, TIME, TIME, PROOF, PROOF, TIME, TIME)
def test_phases_never_overlap_or_run_backwards(
    kill: int, killed: int, empty: int, handles: Proof | None, memory: Proof | None, sent: int, released: int
) -> None:
    report = replace(
        REPORT,
        kill_ns=kill,
        killed_ns=killed,
        empty_ns=empty,
        handles=handles,
        memory=memory,
        release_sent_ns=sent,
        release_ns=released,
        end_ns=released,
    )
    found = steps(report)
    for one in found:
        if one.phase is not Phase.RELEASE:
            assert one.start_ns <= one.end_ns
    drains = [one for one in found if one.phase.value.startswith("drain.")]
    for before, after in itertools.pairwise(drains):
        assert before.end_ns <= after.start_ns


def handbacks(boot: str = "boot", since_ns: int = 0) -> HandBacks:
    return HandBacks(Metrics(), Clock(), boot, since_ns)


BEGIN = Begin("dev", 1, Trigger.HOLD, 1000 * MS, 7, CALLER, (spot_container(),))


def test_a_hand_back_is_counted_and_its_trace_ended() -> None:
    them = handbacks()
    trace = them.begin(BEGIN, owner_state())
    assert them.traces["dev"] is trace
    assert Attr.RESUMED not in trace.attributes
    held = replace(REPORT, late=(Witness.MEMORY,), holders=(Holder(5, "x", "/y", (DEVICE,)),))
    them.finish(Finish("dev", held), them.take("dev"))
    assert not them.traces
    sample = them.metrics.registry.get_sample_value
    labels = {"outcome": "released", "trigger": "hold"}
    assert sample("spotgpu_owner_returns_total", labels) == 1
    assert sample("spotgpu_owner_blocked_seconds_sum") == pytest.approx(0.1)
    assert sample("spotgpu_witness_late_total", {"witness": "memory"}) == 1
    assert sample("spotgpu_owner_blocked") == 0


def test_the_root_has_what_its_devices_have_in_common() -> None:
    them = handbacks()
    them.hardware = {
        DEVICE: {Attr.HW_ID: DEVICE, Attr.HW_NAME: "H"},
        "b": {Attr.HW_ID: "b", Attr.HW_NAME: "H"},
    }
    assert them.begin(BEGIN, owner_state()).attributes.items() >= {("hw.id", DEVICE), ("hw.name", "H")}
    both = them.begin(BEGIN, replace(owner_state(), devices=(DEVICE, "b"))).attributes
    assert both["hw.name"] == "H"
    assert "hw.id" not in both


def test_an_agent_that_starts_in_a_return_goes_on_in_its_trace() -> None:
    first = handbacks().begin(BEGIN, owner_state())
    again = handbacks(since_ns=1001 * MS).begin(BEGIN, owner_state())
    assert again.ids == first.ids
    assert again.attributes[Attr.RESUMED] is True


@pytest.mark.parametrize(
    "change", [{"first_ns": 999 * MS}, {"id": 2}, {"watch": 8}, {"trigger": Trigger.ADMIN, "watch": None}]
)
def test_another_return_is_another_trace(change: dict[str, Any]) -> None:
    first = handbacks().begin(BEGIN, owner_state())
    assert handbacks().begin(replace(BEGIN, **change), owner_state()).ids != first.ids
    assert handbacks(boot="other").begin(BEGIN, owner_state()).ids != first.ids
