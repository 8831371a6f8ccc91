# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotgpu.errors import SpotgpuError, UsageError
from spotgpu.traces import Trace, TraceLog, parse_span
from tests.unit.spotgpu.samples import BASE, MS, hand_back, lines, span, write


def ids(n: int) -> str:
    return f"{n:08x}".ljust(32, "0")


def some(n: int) -> list[Trace]:
    return [hand_back(ids(each)) for each in range(1, n + 1)]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    trace = hand_back()
    assert TraceLog(write(tmp_path / "t", trace)).last(1) == [trace]


def test_the_last_ones_are_those_that_ended_last(tmp_path: Path) -> None:
    log = TraceLog(write(tmp_path / "t", *some(5)))
    assert [trace.trace_id for trace in log.last(2)] == [ids(4), ids(5)]
    assert len(log.last(99)) == 5
    assert log.last(0) == []


def test_rotated_files_are_read_oldest_first_and_a_trace_may_lie_across(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    text = "".join(map(lines, some(3))).splitlines(keepends=True)
    (tmp_path / "traces.jsonl.2").write_text("".join(text[:5]))
    (tmp_path / "traces.jsonl.1").write_text("".join(text[5:13]))
    path.write_text("".join(text[13:]))
    log = TraceLog(path)
    assert [len(trace.spans) for trace in log.last(3)] == [7, 7, 7]
    assert log.skipped == 0


def test_a_torn_last_line_and_rubbish_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t", *some(2))
    whole = path.read_text()
    path.write_bytes(
        b"rubbish\n\xff\xfe\n\n" + whole.encode() + lines(hand_back(ids(9))).splitlines()[0][:40].encode()
    )
    log = TraceLog(path)
    assert len(log.last(9)) == 2
    assert log.skipped == 3
    assert log.find(ids(2)).trace_id == ids(2)


@given(st.integers(0, 4000))
def test_a_file_torn_anywhere_still_gives_the_whole_traces(cut: int) -> None:
    text = "".join(map(lines, some(2)))
    text = text[: len(text) - cut]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t")
        path.write_text(text)
        found = TraceLog(path).last(2)
    whole = [
        line for line in text.splitlines(keepends=True) if line.endswith("}\n") and '"parent":null' in line
    ]
    assert len(found) == len(whole)
    assert all(len(trace.spans) == 7 for trace in found)


def test_an_unfinished_trace_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("".join(lines(hand_back()).splitlines(keepends=True)[:-1]))
    assert TraceLog(path).last(1) == []
    with pytest.raises(SpotgpuError, match="no finished trace begins with 9808"):
        TraceLog(path).find("9808")


def test_a_span_told_twice_counts_once_and_the_later_is_right(tmp_path: Path) -> None:
    first, again = hand_back(), hand_back(attributes={"spotgpu.trace.resumed": True})
    (found,) = TraceLog(write(tmp_path / "t", first, again)).last(5)
    assert found == again


def test_find_by_the_beginning_of_an_id(tmp_path: Path) -> None:
    log = TraceLog(write(tmp_path / "t", hand_back("abcd1" + "0" * 27), hand_back("abcd2" + "0" * 27)))
    assert log.find("ABCD2").trace_id.startswith("abcd2")
    with pytest.raises(UsageError, match="2 traces begin"):
        log.find("abcd")
    with pytest.raises(SpotgpuError, match="begins with abcd3"):
        log.find("abcd3")


@pytest.mark.parametrize("wrong", ["abc", "", "xyzw", "../../etc/passwd", "a" * 33, "ab cd"])
def test_what_is_no_id_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        TraceLog(write(tmp_path / "t", hand_back())).find(wrong)
    assert caught.value.field == "TRACE_ID"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpotgpuError, match="no such file"):
        TraceLog(tmp_path / "t").last(1)


@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text()), lambda x: st.dictionaries(st.text(), x)
        ).map(json.dumps),
    )
)
def test_parsing_never_raises(line: str) -> None:
    assert parse_span(line) is None


@pytest.mark.parametrize(
    "change",
    [
        {"start_ns": BASE + 99 * MS},
        {"start_ns": "1"},
        {"name": None},
        {"attributes": []},
        {"events": [1]},
        {"links": 7},
        {"parent": 3},
    ],
)
def test_a_span_with_a_wrong_field_is_none(change: dict[str, object]) -> None:
    good = json.loads(lines(Trace("", span("x", 0, 1), ())))
    assert parse_span(json.dumps(good)) is not None
    assert parse_span(json.dumps({**good, **change})) is None
