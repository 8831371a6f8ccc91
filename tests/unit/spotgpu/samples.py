# SPDX-License-Identifier: Apache-2.0
"""Traces to draw: one whole hand-back, and any that hypothesis can think of."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from spotgpu.names import Phase
from spotgpu.traces import Span, Trace

MS = 1_000_000
BASE = 1_796_060_444_882_816_807
TRACE_ID = "9808f0654693c934367aafbb924cda6e"
ROOT_ID = "a" * 16


def span(name: str, start_ms: float, end_ms: float, **more: Any) -> Span:
    """A span below ROOT_ID, its times in ms after BASE."""
    given = {"trace_id": TRACE_ID, "span_id": name.ljust(16)[:16], "parent": ROOT_ID, **more}
    return Span(name=name, start_ns=BASE + round(start_ms * MS), end_ns=BASE + round(end_ms * MS), **given)


def hand_back(trace_id: str = TRACE_ID, **root: Any) -> Trace:
    """312.4 ms, of which 350 µs are in no phase."""
    attributes = {
        "spotgpu.owner": "dev-box",
        "spotgpu.trigger": "hold",
        "spotgpu.outcome": "released",
        "spotgpu.devices": ["GPU-1a2b3c4d-0000-1111-2222-333344445555"],
        **root.pop("attributes", {}),
    }
    made = span(
        "gpu.handback",
        0,
        312.4,
        span_id=ROOT_ID,
        parent=None,
        trace_id=trace_id,
        attributes=attributes,
        **root,
    )
    times = {
        Phase.OWNER_HOLD: (0, 312.4),
        Phase.EVICT_KILL: (0.05, 4.2),
        Phase.DRAIN_CGROUP: (4.2, 195),
        Phase.DRAIN_HANDLES: (195, 199.1),
        Phase.DRAIN_MEMORY: (199.2, 311.8),
        Phase.RELEASE: (312, 312.4),
        Phase.POD_DELETE: (312.4, 330),
    }
    return Trace(
        trace_id, made, tuple(span(name.value, *pair, trace_id=trace_id) for name, pair in times.items())
    )


def lines(trace: Trace) -> str:
    """As the agent writes it: the root last."""
    return "".join(
        json.dumps(asdict(each), separators=(",", ":")) + "\n" for each in (*trace.spans, trace.root)
    )


def write(path: Path, *traces: Trace) -> Path:
    path.write_text("".join(map(lines, traces)))
    return path


_ns = st.one_of(st.integers(0, 1000), st.integers(0, 2**63))
_text = st.one_of(st.sampled_from([*Phase, "gpu.handback"]), st.text(max_size=40))
_value = st.one_of(
    st.text(max_size=40),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(max_size=9), max_size=4),
    st.none(),
)
_attributes = st.dictionaries(
    st.one_of(
        st.text(max_size=9),
        st.sampled_from(
            [
                "spotgpu.outcome",
                "spotgpu.devices",
                "spotgpu.witness.late",
                "spotgpu.holders",
                "error.type",
                "spotgpu.clock.error_ns",
                "spotgpu.spans.clamped",
                "spotgpu.trace.complete",
                "spotgpu.owner",
                "hw.id",
            ]
        ),
    ),
    _value,
    max_size=5,
)


@st.composite
def any_trace(draw: st.DrawFn) -> Trace:
    """Any trace that parse_span() lets through, however odd."""
    ids = st.sampled_from(["r", "1", "2", "3", "4"])

    def one(span_id: str, parent: str | None) -> Span:
        start = draw(_ns)
        return Span(
            "t" * 32,
            span_id,
            parent,
            draw(_text),
            start,
            start + draw(_ns),
            draw(_attributes),
            tuple(draw(st.lists(_attributes, max_size=2))),
            tuple(draw(st.lists(_attributes, max_size=2))),
            draw(st.sampled_from(["unset", "ok", "error", "?"])),
            draw(_attributes),
        )

    root = one("r", None)
    below = [one(draw(ids), draw(ids)) for _ in range(draw(st.integers(0, 12)))]
    return Trace("t" * 32, root, tuple(below))
