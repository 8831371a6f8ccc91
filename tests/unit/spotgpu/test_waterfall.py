# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu import waterfall
from spotgpu.names import Outcome
from spotgpu.traces import Trace
from spotgpu.waterfall import MIN_WIDTH, breakdown, duration, render, rows, sentence, ticks
from tests.unit.spotgpu.samples import MS, any_trace, hand_back, span


@settings(max_examples=60)
@given(any_trace(), st.integers(-5, 300), st.booleans(), st.booleans())
def test_drawing_never_fails_and_fits(trace: Trace, width: int, blocks: bool, colour: bool) -> None:
    text = render(trace, width, blocks, colour)
    plain = re.sub(r"\x1b\[\d*m", "", text)
    assert all(len(line) <= max(width, MIN_WIDTH) for line in plain.splitlines())
    assert all(line.isprintable() for line in plain.split("\n"))
    if not blocks:
        assert plain.isascii()
    if not colour:
        assert "\x1b" not in text


@settings(max_examples=60)
@given(any_trace())
def test_the_parts_add_up_to_the_total(trace: Trace) -> None:
    assert sum(breakdown(trace).values()) == trace.total_ns
    assert all(ns >= 0 for ns in breakdown(trace).values())


def test_a_hand_back_in_80_columns() -> None:
    text = render(hand_back())
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    order = [
        "owner.hold",
        "evict.kill",
        "drain.cgroup",
        "drain.handles",
        "drain.memory",
        "release",
        "pod.delete",
    ]
    assert [name for name in shown if name in order] == order
    assert "owner waited 312 ms: kill 4.15 ms, cgroup 191 ms, handles 4.10 ms, memory" in text
    assert "released: the device was proven free" in text
    assert "dev-box" in text
    assert "2026-11-30 17:40:44.882 UTC" in text
    assert max(map(len, text.splitlines())) <= 80


def bar(text: str, name: str) -> tuple[int, int]:
    """First and last drawn column of a row."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(name)]
    label = len(line) - len(line.lstrip()) + len(name)
    cells = [n for n, char in enumerate(line) if n > label and char in "█▏▎▍▌▋▊▉▐▕░"]
    return cells[0], cells[-1]


def test_bars_are_where_the_time_was() -> None:
    text = render(hand_back(), 120)
    kill, cgroup, handles, memory = (
        bar(text, name) for name in ("evict", "drain.cg", "drain.ha", "drain.me")
    )
    assert kill[0] <= kill[1] <= cgroup[0] + 1
    assert cgroup[1] <= handles[0] + 1
    assert handles[1] <= memory[0] + 1
    assert bar(text, "owner.hold")[0] == kill[0]
    assert (memory[1] - memory[0]) / (cgroup[1] - cgroup[0]) == pytest.approx(112.6 / 190.8, abs=0.05)


def test_unexplained_is_what_no_phase_covers() -> None:
    assert breakdown(hand_back())["unexplained"] == 350_000
    (row,) = [row for row in rows(hand_back()) if row.label == "unexplained"]
    assert row.duration_ns == 350_000
    assert len(row.pieces) == 3


def test_overlapping_phases_share_no_time() -> None:
    root = span("gpu.handback", 0, 10, span_id="a" * 16, parent=None)
    trace = Trace(
        "t", root, (span("drain.memory", 0, 10), span("drain.cgroup", 2, 5), span("evict.kill", 4, 5))
    )
    assert breakdown(trace) == {
        "evict.kill": MS,
        "drain.cgroup": 2 * MS,
        "drain.memory": 7 * MS,
        "unexplained": 0,
    }


def test_many_alike_share_a_row() -> None:
    root = span("gpu.handback", 0, 100, span_id="a" * 16, parent=None)
    many = tuple(span("drain.memory", n, n + 1, span_id=f"{n:016x}") for n in range(0, 64, 2))
    found = [row for row in rows(Trace("t", root, many)) if row.kind == "drain.memory"]
    assert [(row.label, row.duration_ns, len(row.pieces)) for row in found] == [
        ("drain.memory x32", 32 * MS, 32)
    ]


def test_depth_follows_parents_and_a_ring_is_no_trap() -> None:
    root = span("gpu.handback", 0, 9, span_id="a" * 16, parent=None)
    trace = Trace(
        "t",
        root,
        (
            span("a", 0, 1, span_id="1"),
            span("b", 0, 1, span_id="2", parent="1"),
            span("c", 0, 1, span_id="3", parent="4"),
            span("d", 0, 1, span_id="4", parent="3"),
        ),
    )
    assert [(row.label, row.depth) for row in rows(trace)][:5] == [
        ("gpu.handback", 0),
        ("a", 1),
        ("b", 2),
        ("c", 1),
        ("d", 1),
    ]


def test_what_must_not_be_missed_is_said() -> None:
    trace = hand_back(
        status="error",
        attributes={
            "spotgpu.outcome": "deadline",
            "error.type": "deadline",
            "spotgpu.holders": ["stray\x1b[2J(77)"],
            "spotgpu.witness.late": ["memory", "handles"],
            "spotgpu.trace.resumed": True,
            "spotgpu.spans.clamped": 2,
        },
    )
    text = " ".join(render(trace, 160).split())
    for words in (
        "NOT proven free",
        "late witness: memory, handles",
        "device held by stray\\x1b[2J(77)",
        "failed: deadline",
        "agent was restarted",
        "2 spans had an end before their start",
        "gpu.handback !",
    ):
        assert words in text
    assert "\x1b" not in text


def test_every_outcome_is_explained() -> None:
    for outcome in Outcome:
        assert waterfall.explain(hand_back(attributes={"spotgpu.outcome": outcome.value}))


def test_a_hand_back_that_nobody_waited_for() -> None:
    whole = hand_back()
    assert sentence(replace(whole, spans=whole.spans[1:])).startswith("took 312 ms")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (4_150_000, "4.15 ms"),
        (41_500_000, "41.5 ms"),
        (312_400_000, "312 ms"),
        (1_000_000_000, "1.00 s"),
        (75_000_000_000, "75.0 s"),
        (-5, "-5 ns"),
    ],
)
def test_durations(ns: int, text: str) -> None:
    assert duration(ns) == text


@given(st.integers(1, 2**63), st.integers(1, 30))
def test_ticks_are_round_even_and_few(span_ns: int, most: int) -> None:
    marks = ticks(span_ns, most)
    assert marks[0] == 0
    assert len(marks) <= most
    assert marks[-1] <= span_ns
    if len(marks) > 1:
        assert str(marks[1]).rstrip("0") in {"1", "2", "5"}


def test_colour_is_only_where_it_is_wanted() -> None:
    assert "\x1b[31m" in render(hand_back(), colour=True)
    assert "\x1b" not in render(hand_back())


def test_ascii_for_terminals_that_have_nothing_else() -> None:
    text = render(hand_back(), blocks=False)
    assert text.isascii()
    assert "####" in text
