# SPDX-License-Identifier: Apache-2.0
"""Traces on a real kernel: its clock is ours, recording costs the owner nothing, the file is drawn."""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from opentelemetry import trace

from spotgpu.names import Attr, Outcome, Phase
from spotgpu_agent.clock import Clock
from spotgpu_agent.telemetry import setup
from spotgpu_agent.tracing import HandBackTrace, TraceStats, derived_ids

TRACEFS = Path("/sys/kernel/tracing")
MS = 1_000_000


def test_kernel_stamps_are_on_our_clock() -> None:
    """A stamp that the kernel makes with its `mono` clock (as khook does) lies between two reads of ours."""
    clock = Clock()
    before_clock = re.findall(r"\[(\w+)\]", (TRACEFS / "trace_clock").read_text())[0]
    (TRACEFS / "trace_clock").write_text("mono")
    try:
        before, wall_before = clock.monotonic_ns(), time.time_ns()
        (TRACEFS / "trace_marker").write_text("spotgpu-clock-test")
        after, wall_after = clock.monotonic_ns(), time.time_ns()
        (line,) = [
            each for each in (TRACEFS / "trace").read_text().splitlines() if "spotgpu-clock-test" in each
        ]
    finally:
        (TRACEFS / "trace_clock").write_text(before_clock)
    stamp = re.findall(r" (\d+)\.(\d{6}): ", line)[0]
    kernel_ns = int(stamp[0]) * 10**9 + int(stamp[1]) * 1000
    assert before - 1000 <= kernel_ns <= after
    offset = clock.offset()
    slack = 1000 + offset.error_ns
    assert wall_before - slack <= offset.to_wall_ns(kernel_ns) <= wall_after + slack


def recorded() -> HandBackTrace:
    first = time.monotonic_ns()
    made = HandBackTrace.begin(
        first, {Attr.OWNER: "dev-box", Attr.DEVICES: ["GPU-1"]}, ids=derived_ids(uuid4())
    )
    for n, name in enumerate(Phase):
        made.phase(name, first + n * MS, first + (n + 1) * MS, {Attr.HOLDS: n})
    return made


def test_a_silent_collector_costs_the_owner_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulation is some twenty times slower: the recorder stands before the release, finish() after it."""
    stats = TraceStats()
    with socket.socket() as black_hole:
        black_hole.bind(("127.0.0.1", 0))
        black_hole.listen()
        endpoint = f"http://127.0.0.1:{black_hole.getsockname()[1]}"
        telemetry = setup(
            tmp_path / "traces.jsonl",
            "guest",
            "test",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
            stats=stats,
            install=False,
        )
        monkeypatch.setattr(trace, "get_tracer", telemetry.provider.get_tracer)
        in_front, behind = [], []
        for _ in range(100):
            began = time.perf_counter()
            made = recorded()
            middle = time.perf_counter()
            made.finish(time.monotonic_ns(), Outcome.RELEASED)
            in_front.append(middle - began)
            behind.append(time.perf_counter() - middle)
            time.sleep(0.02)
        began = time.perf_counter()
        telemetry.shutdown(2.0)
        ended = time.perf_counter() - began
    medians = [round(statistics.median(times) * 1e6) for times in (in_front, behind)]
    print(f"before the release {medians[0]} us, after it {medians[1]} us (medians)")
    assert statistics.median(in_front) < 0.010
    assert statistics.median(behind) < 0.100
    assert ended < 6
    assert stats.lost["otlp"] + stats.exported["otlp"] <= 800
    assert stats.exported["file"] == 800


def test_the_command_draws_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "traces.jsonl"
    telemetry = setup(path, "guest", "test", {}, stats=TraceStats(), install=False)
    monkeypatch.setattr(trace, "get_tracer", telemetry.provider.get_tracer)
    made = recorded()
    summary = made.finish(made.first_ns + 7 * MS, Outcome.RELEASED)
    telemetry.shutdown()
    began = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "spotgpu",
            "trace",
            "--file",
            str(path),
            "--html",
            str(tmp_path / "page.html"),
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    print(f"spotgpu trace took {time.perf_counter() - began:.1f} s")
    (drawn,) = json.loads(done.stdout)["traces"]
    assert drawn["trace_id"] == summary.trace_id
    assert drawn["total_ns"] == 7 * MS
    assert sum(drawn["breakdown_ns"].values()) == 7 * MS
    assert "prefers-color-scheme" in (tmp_path / "page.html").read_text()
