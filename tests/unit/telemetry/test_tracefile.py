# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from spotgpu_agent.tracefile import TraceFile, span_line

OK, FAILED = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


def span(n: int, size: int = 100) -> Any:
    made = (
        TracerProvider(shutdown_on_exit=False)
        .get_tracer("t")
        .start_span(f"s{n}", attributes={"x": "x" * size})
    )
    made.end()
    return made


def names(path: Any) -> list[str]:
    return [json.loads(line)["name"] for line in path.read_text().splitlines()]


def test_folder_is_made_and_spans_append(tmp_path: Path) -> None:
    path = tmp_path / "log" / "spotgpu" / "traces.jsonl"
    for n in range(3):  # as many agents, one after the other
        file = TraceFile(path)
        assert file.export([span(n)]) is OK
        file.shutdown()
    assert names(path) == ["s0", "s1", "s2"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_rotation_is_bounded_and_loses_only_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    one = len(span_line(span(10)))
    file = TraceFile(path, max_bytes=3 * one + 10, keep=2)
    for n in range(10, 30):
        assert file.export([span(n)]) is OK
    assert sorted(p.name for p in tmp_path.iterdir()) == ["traces.jsonl", "traces.jsonl.1", "traces.jsonl.2"]
    assert all(p.stat().st_size <= 3 * one + 10 for p in tmp_path.iterdir())
    kept = [name for suffix in (".2", ".1", "") for name in names(path.with_name(path.name + suffix))]
    assert kept == [f"s{n}" for n in range(22, 30)]


def test_nothing_kept(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t", max_bytes=1000, keep=0)
    for n in range(9):
        assert file.export([span(n)]) is OK
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_span_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t", max_bytes=1000)
    assert file.export([span(1, size=2000)]) is FAILED
    assert file.export([span(2)]) is OK


def test_a_torn_last_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"name": "whole"}\n{"name": "to')
    assert TraceFile(path).export([span(1)]) is OK
    first, torn, last = path.read_text().splitlines()
    assert torn == '{"name": "to'
    assert json.loads(last)["name"] == "s1"
    assert json.loads(first)["name"] == "whole"


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = TraceFile(path)
    file.export([span(1)])
    path.rename(tmp_path / "moved")
    file.export([span(2)])
    assert names(path) == ["s2"]
    assert names(tmp_path / "moved") == ["s1"]


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t").symlink_to(tmp_path / "victim")
    assert TraceFile(tmp_path / "t").export([span(1)]) is FAILED
    assert not (tmp_path / "victim").exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Any:
    """A real file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", where], check=True)
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_costs_whole_spans_and_is_said_once(
    full_disk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = full_disk / "t"
    file = TraceFile(path)
    results = [file.export([span(n, size=1000)]) for n in range(100)]
    assert results[0] is OK
    assert results[-1] is FAILED
    whole = names(path)  # every line is one, none is torn
    assert whole == [f"s{n}" for n in range(results.count(OK))]
    assert caplog.text.count("cannot write traces") == 1
    path.write_text("")  # somebody makes room
    assert file.export([span(7)]) is OK
    assert names(path) == ["s7"]
