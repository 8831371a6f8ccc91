# SPDX-License-Identifier: Apache-2.0
"""The pipeline with real exporters: a collector that answers, is slow, is silent, is not there."""

from __future__ import annotations

import json
import socket
import statistics
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from spotgpu.errors import UsageError
from spotgpu.names import TRACES_ENV, Attr, Outcome, Phase
from spotgpu_agent.telemetry import QUEUE, Pump, setup
from spotgpu_agent.tracing import HandBackTrace, TraceStats, derived_ids

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
MS = 1_000_000


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """setup() with a private provider, ended after the test."""
    running = []

    def starter(stats: Any = None, **environ: Any) -> Any:
        telemetry = setup(
            tmp_path / "traces.jsonl",
            "node-1",
            "0.0-test",
            environ,
            stats=stats or TraceStats(),
            install=False,
        )
        monkeypatch.setattr(trace, "get_tracer", telemetry.provider.get_tracer)
        running.append(telemetry)
        return telemetry

    yield starter
    for telemetry in running:
        telemetry.shutdown(1.0)


@pytest.fixture
def black_hole() -> Any:
    """Accepts connections in its backlog and says nothing, ever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def nobody() -> Any:
    """An address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


def hand_back(first_ns: int | None = None) -> HandBackTrace:
    first = first_ns or time.monotonic_ns()
    recorder = HandBackTrace.begin(
        first, {Attr.OWNER: "dev-box", Attr.DEVICES: ["GPU-1", "GPU-2"]}, ids=derived_ids(uuid4())
    )
    for n, name in enumerate(Phase):
        recorder.phase(name, first + n * MS, first + (n + 1) * MS, {Attr.HOLDS: n})
    return recorder


def lines(tmp_path: Path) -> Any:
    return [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]


def test_exact_nanoseconds_end_to_end(start: Any, collector: Any, tmp_path: Path) -> None:
    servicer, url = collector
    stats = TraceStats()
    telemetry = start(stats, **{ENDPOINT: url})
    recorder = hand_back(first_ns=123_456_789_012_345_679)
    recorder.finish(recorder.first_ns + 7 * MS + 1, Outcome.RELEASED)
    assert telemetry.flush(10)
    wall = recorder.offset.to_wall_ns
    want = {
        "gpu.handback": (wall(recorder.first_ns), wall(recorder.first_ns + 7 * MS + 1)),
        **{
            name.value: (wall(recorder.first_ns + n * MS), wall(recorder.first_ns + (n + 1) * MS))
            for n, name in enumerate(Phase)
        },
    }
    received = {span.name: span for span in servicer.spans}
    assert {
        name: (span.start_time_unix_nano, span.end_time_unix_nano) for name, span in received.items()
    } == want
    assert {line["name"]: (line["start_ns"], line["end_ns"]) for line in lines(tmp_path)} == want
    root = received["gpu.handback"]
    assert root.trace_id.hex() == recorder.trace_id
    assert root.span_id.hex() == recorder.span_id
    assert {span.parent_span_id.hex() for span in servicer.spans} == {"", recorder.span_id}
    (resource,) = {r.resource.SerializeToString() for q in servicer.requests for r in q.resource_spans}
    assert b"spotgpu-agent" in resource
    assert b"node-1" in resource
    assert stats.exported == {"file": 8, "otlp": 8}
    assert stats.lost == {"file": 0, "otlp": 0}


def test_line_has_all_that_a_reader_needs(start: Any, tmp_path: Path) -> None:
    telemetry = start(OTEL_RESOURCE_ATTRIBUTES="ignored=here")
    recorder = HandBackTrace.begin(
        5,
        {Attr.OWNER: 'a"\n\x1b[2J'},
        links=["00-" + "1" * 32 + "-" + "2" * 16 + "-01"],
        ids=derived_ids(uuid4()),
    )
    recorder.event("owner.signal", 7, {"n": 1})
    recorder.finish(9, Outcome.DEADLINE, {"nan": float("nan")}, error_type="deadline")
    assert telemetry.flush(10)
    (line,) = lines(tmp_path)
    assert line["parent"] is None
    assert line["links"] == [{"trace_id": "1" * 32, "span_id": "2" * 16}]
    assert line["events"] == [
        {"name": "owner.signal", "at_ns": recorder.offset.to_wall_ns(7), "attributes": {"n": 1}}
    ]
    assert line["status"] == "error"
    assert line["attributes"]["nan"] == "nan"
    assert line["attributes"][Attr.OWNER] == 'a"\\n\\x1b[2J'
    assert line["resource"]["host.name"] == "node-1"


def test_environment_names_file_and_service(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    telemetry = start(**{TRACES_ENV: str(tmp_path / "other.jsonl")})
    hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
    assert telemetry.flush(10)
    assert not (tmp_path / "traces.jsonl").exists()
    assert (
        json.loads((tmp_path / "other.jsonl").read_text().splitlines()[0])["resource"]["service.name"]
        == "mine"
    )


def timed(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each begin-and-phases, and of each finish."""
    recorded, finished = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        recorder = hand_back()
        middle = time.perf_counter()
        recorder.finish(time.monotonic_ns(), Outcome.RELEASED)
        recorded.append(middle - began)
        finished.append(time.perf_counter() - middle)
    return recorded, finished


@pytest.mark.parametrize("kind", ["none", "nobody", "black_hole", "slow"])
def test_no_collector_can_delay_a_hand_back(kind: Any, start: Any, request: pytest.FixtureRequest) -> None:
    """An exporter in the way would cost its 10 s timeout; the recorder costs microseconds."""
    stats = TraceStats()
    environ: dict[str, str] = {}
    if kind == "slow":
        servicer, environ[ENDPOINT] = request.getfixturevalue("collector")
        servicer.go.clear()
    elif kind != "none":
        environ[ENDPOINT] = request.getfixturevalue(kind)
    start(stats, **environ)
    rounds = QUEUE // 8 + 100  # more than the queue holds
    timed(1)
    if kind == "slow":
        assert servicer.arrived.wait(10)
    began = time.perf_counter()
    recorded, finished = timed(rounds)
    wall = time.perf_counter() - began
    assert statistics.median(recorded) < 0.001
    assert statistics.median(finished) < 0.010
    assert wall < 8, "something waited"
    if kind == "slow":  # nothing can leave, so what the queue cannot hold is lost, exactly
        assert stats.lost["otlp"] == rounds * 8 - QUEUE


def test_a_dead_endpoint_is_counted_and_the_file_is_whole(
    start: Any, nobody: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    stats = TraceStats()
    telemetry = start(stats, **{ENDPOINT: nobody})
    hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
    assert telemetry.flush(15)
    assert stats.failures == {"file": 0, "otlp": 1}
    assert stats.lost == {"file": 0, "otlp": 8}
    assert len(lines(tmp_path)) == 8


def test_shutdown_has_a_limit_and_counts_what_is_left(start: Any, black_hole: Any) -> None:
    stats = TraceStats()
    telemetry = start(stats, **{ENDPOINT: black_hole})
    hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
    time.sleep(0.5)  # the export is under way
    hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
    began = time.monotonic()
    telemetry.shutdown(1.0)
    assert time.monotonic() - began < 3
    for _ in range(50):
        if stats.lost["otlp"] == 16:
            break
        time.sleep(0.1)
    assert stats.lost["otlp"] == 16
    assert stats.exported["file"] == 16


def test_spans_after_shutdown_are_lost_and_counted(start: Any) -> None:
    stats = TraceStats()
    telemetry = start(stats)
    telemetry.shutdown()
    hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
    assert stats.lost["file"] == 8


class Broken(SpanExporter):
    """Raises, then works."""

    def __init__(self) -> None:
        self.calls = 0

    def export(self, spans: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("cannot encode this")
        return SpanExportResult.SUCCESS


def test_the_thread_outlives_an_exporter_that_raises(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    stats = TraceStats()
    telemetry = start(TraceStats())
    pump = Pump(Broken(), "otlp", stats, delay_s=0.01)
    telemetry.provider.add_span_processor(pump)
    for _ in range(2):
        hand_back().finish(time.monotonic_ns(), Outcome.RELEASED)
        assert pump.force_flush(5000)
    pump.shutdown()
    assert (stats.lost["otlp"], stats.exported["otlp"], stats.failures["otlp"]) == (8, 8, 1)
    assert "a span exporter failed" in caplog.text


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        (
            {ENDPOINT: "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
        (
            {ENDPOINT: "http://x:4317", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "json"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        ),
    ],
)
def test_settings_that_cannot_be_obeyed_are_refused(environ: Any, field: Any, start: Any) -> None:
    with pytest.raises(UsageError) as caught:
        start(**environ)
    assert caught.value.field == field
    assert caught.value.remedy
    assert caught.value.exit_status == 2


def test_a_timeout_that_is_no_number_is_refused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="soon"):
        start(**{ENDPOINT: "http://127.0.0.1:1"})
