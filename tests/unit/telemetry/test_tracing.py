# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spotgpu.names import Attr, Outcome, Phase
from spotgpu_agent import tracing
from spotgpu_agent.clock import Clock
from spotgpu_agent.tracing import HandBackTrace, derived_ids

MS = 1_000_000
STEAL = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def hand_back(first: Any = 1000 * MS) -> HandBackTrace:
    """One whole hand-back of 100 ms with 4 ms that no phase explains."""
    trace = HandBackTrace.begin(
        first,
        {Attr.OWNER: "dev-box", Attr.HW_ID: "GPU-1"},
        links=[STEAL, "nonsense"],
        ids=derived_ids(uuid4()),
    )
    trace.phase(Phase.OWNER_HOLD, first, first + 100 * MS, {Attr.PROCESS_PID: 7})
    trace.phase(Phase.EVICT_KILL, first + 1 * MS, first + 3 * MS)
    trace.phase(Phase.DRAIN_CGROUP, first + 3 * MS, first + 50 * MS)
    trace.phase(Phase.DRAIN_HANDLES, first + 50 * MS, first + 55 * MS)
    trace.phase(Phase.DRAIN_MEMORY, first + 54 * MS, first + 95 * MS)
    trace.phase(Phase.RELEASE, first + 98 * MS, first + 100 * MS)
    return trace


def spans_of(exported: InMemorySpanExporter) -> list[Any]:
    return list(exported.get_finished_spans())


def by_name(exported: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in spans_of(exported)}


def test_spans_have_kernel_times_to_the_nanosecond_and_one_parent(exported: InMemorySpanExporter) -> None:
    trace = hand_back(first=1_000_000_007)
    offset = trace.offset
    trace.event("owner.signal", 1_000_000_123, {"signal": "SIGUSR1"})
    trace.finish(1_000_000_007 + 100 * MS, Outcome.RELEASED)
    spans = by_name(exported)
    root = spans.pop("gpu.handback")
    assert set(spans) == set(Phase) - {Phase.POD_DELETE}
    assert root.parent is None
    assert root.start_time == offset.to_wall_ns(1_000_000_007)
    assert root.end_time - root.start_time == 100 * MS
    assert {span.parent.span_id for span in spans.values()} == {root.context.span_id}
    assert {span.context.trace_id for span in spans.values()} == {root.context.trace_id}
    assert spans[Phase.DRAIN_MEMORY].start_time == offset.to_wall_ns(1_000_000_007 + 54 * MS)
    assert [(event.name, event.timestamp) for event in root.events] == [
        ("owner.signal", offset.to_wall_ns(1_000_000_123))
    ]
    assert root.status.status_code is StatusCode.UNSET
    assert Attr.ERROR_TYPE not in root.attributes


def test_phases_add_up_to_the_total(exported: InMemorySpanExporter) -> None:
    summary = hand_back().finish(1100 * MS, Outcome.RELEASED)
    assert summary.total_ns == 100 * MS
    assert summary.unexplained_ns == 4 * MS  # 1 before the kill, 3 before the release; overlaps count once
    assert summary.phases_ns[Phase.DRAIN_CGROUP] == 47 * MS
    assert summary.complete
    root = by_name(exported)["gpu.handback"]
    assert root.attributes[Attr.UNEXPLAINED_NS] == 4 * MS
    assert root.attributes[Attr.TOTAL_NS] == 100 * MS
    assert root.attributes[Attr.COMPLETE] is True
    assert root.attributes[Attr.OUTCOME] == "released"


def test_much_unexplained_time_is_an_incomplete_trace(exported: InMemorySpanExporter) -> None:
    trace = HandBackTrace.begin(0, {}, ids=derived_ids(uuid4()))
    trace.phase(Phase.EVICT_KILL, 0, 80 * MS)
    assert not trace.finish(100 * MS, Outcome.RELEASED).complete


def test_the_root_has_the_ids_that_were_handed_out(exported: InMemorySpanExporter) -> None:
    trace = hand_back()
    trace.finish(1100 * MS, Outcome.RELEASED)
    root = by_name(exported)["gpu.handback"]
    assert (trace.trace_id, trace.span_id) == (
        f"{root.context.trace_id:032x}",
        f"{root.context.span_id:016x}",
    )
    assert root.context.trace_flags & 1
    assert len({span.context.span_id for span in spans_of(exported)}) == 7


def test_ids_are_derived_from_what_they_name(exported: InMemorySpanExporter) -> None:
    ids = derived_ids("boot", "dev", 7, 1)
    assert ids == derived_ids("boot", "dev", 7, 1)
    assert ids != derived_ids("boot", "dev", 71)
    HandBackTrace.begin(0, {}, ids=ids).finish(1, Outcome.RELEASED)
    context = by_name(exported)["gpu.handback"].context
    assert (context.trace_id, context.span_id) == ids


def test_links_lead_to_other_traces_and_nonsense_is_left_out(exported: InMemorySpanExporter) -> None:
    hand_back().finish(1100 * MS, Outcome.RELEASED)
    (link,) = by_name(exported)["gpu.handback"].links
    assert f"{link.context.trace_id:032x}" == STEAL.split("-")[1]


def test_a_negative_span_is_clamped_and_counted(exported: InMemorySpanExporter) -> None:
    before = tracing.STATS.clamped
    trace = HandBackTrace.begin(10 * MS, {}, ids=derived_ids(uuid4()))
    trace.phase(Phase.EVICT_KILL, 20 * MS, 19 * MS)
    summary = trace.finish(5 * MS, Outcome.ABORTED, error_type="agent_error")
    spans = by_name(exported)
    assert all(span.end_time >= span.start_time for span in spans.values())
    assert (summary.total_ns, summary.clamped, summary.complete) == (0, 2, False)
    assert tracing.STATS.clamped == before + 2


def test_a_failure_has_one_error_type_and_status(exported: InMemorySpanExporter) -> None:
    trace = HandBackTrace.begin(0, {}, ids=derived_ids(uuid4()))
    trace.phase(Phase.DRAIN_MEMORY, 0, MS, error_type="timeout")
    trace.finish(MS, Outcome.DEADLINE, error_type="deadline")
    spans = by_name(exported)
    assert spans["gpu.handback"].status.status_code is StatusCode.ERROR
    assert spans["gpu.handback"].attributes[Attr.ERROR_TYPE] == "deadline"
    assert spans[Phase.DRAIN_MEMORY].attributes[Attr.ERROR_TYPE] == "timeout"


def test_finishing_twice_makes_one_trace(exported: InMemorySpanExporter) -> None:
    trace = hand_back()
    first = trace.finish(1100 * MS, Outcome.RELEASED)
    assert trace.finish(1200 * MS, Outcome.DEADLINE) is first
    assert len(spans_of(exported)) == 7


def test_an_unknown_outcome_is_refused(exported: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="perhaps"):
        hand_back().finish(1100 * MS, "perhaps")


def test_a_trace_is_bounded(exported: InMemorySpanExporter) -> None:
    before = tracing.STATS.overflow
    trace = HandBackTrace.begin(0, {}, ids=derived_ids(uuid4()))
    for n in range(tracing.MAX_PHASES + 10):
        trace.phase(Phase.DRAIN_HANDLES, n, n + 1)
        trace.event("tick", n)
    assert not trace.finish(MS, Outcome.RELEASED).complete
    assert len(spans_of(exported)) == tracing.MAX_PHASES + 1
    assert tracing.STATS.overflow == before + 10 + 10 + tracing.MAX_PHASES - tracing.MAX_EVENTS


_value = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.text()),
    st.sets(st.text()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attributes=st.dictionaries(st.text(), _value),
    steps=st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(0, 200), st.integers(0, 200))),
    end=st.integers(0, 200),
)
def test_the_sums_hold_for_any_phases_and_attributes(
    exported: InMemorySpanExporter, attributes: Any, steps: Any, end: Any
) -> None:
    exported.clear()
    trace = HandBackTrace.begin(50, attributes, ids=derived_ids(uuid4()))
    for name, start, until in steps:
        trace.phase(name, start, until, attributes)
    summary = trace.finish(end, Outcome.RELEASED)
    covered = {at for name, start, until in steps if name != Phase.OWNER_HOLD for at in range(start, until)}
    assert summary.unexplained_ns == summary.total_ns - len(covered & set(range(50, end)))
    assert all(span.end_time >= span.start_time for span in spans_of(exported))


def test_one_trace_has_one_offset(exported: InMemorySpanExporter) -> None:
    wall = [10**18]
    clock = Clock(wall=lambda: wall[0], every_ns=0)
    trace = HandBackTrace.begin(time.monotonic_ns(), {}, clock=clock, ids=derived_ids(uuid4()))
    start = trace.first_ns
    wall[0] += 3600 * 10**9  # the wall clock is stepped in the middle
    trace.phase(Phase.EVICT_KILL, start, start + MS)
    trace.finish(start + MS, Outcome.RELEASED)
    for span in spans_of(exported):
        assert span.end_time - span.start_time == MS
