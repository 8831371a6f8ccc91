# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotgpu_agent.logs import MAX_FIELDS, JsonFormatter, bind, setup
from spotgpu_agent.tracing import HandBackTrace, derived_ids

HOSTILE = 'evil"}\n{"level":"critical"}\x1b[2J\x00\x85\u2028\u202e\ud800'


def line(msg: Any = "hello", args: Any = (), exc_info: Any = None, **extra: Any) -> str:
    record = logging.getLogger("spotgpu.test").makeRecord(
        "spotgpu.test", logging.INFO, __file__, 1, msg, args, exc_info, extra=extra
    )
    return JsonFormatter().format(record)


def test_fields_level_logger_and_time() -> None:
    got = json.loads(line("spot cgroup %s empty", ("a",), cgroup=4711, witness="cgroup", ok=True, none=None))
    assert got.pop("ts").endswith("+00:00")
    assert got == {
        "level": "info",
        "logger": "spotgpu.test",
        "msg": "spot cgroup a empty",
        "cgroup": 4711,
        "witness": "cgroup",
        "ok": True,
        "none": None,
    }


def test_a_bound_trace_is_on_every_line_also_of_tasks_and_on_none_after() -> Any:
    trace = HandBackTrace.begin(0, {}, ids=derived_ids(uuid4()))

    async def main() -> Any:
        with bind(trace):
            inside = await asyncio.create_task(asyncio.sleep(0, line()))
            other = asyncio.create_task(asyncio.to_thread(line))
        return inside, await other, line()

    inside, other, after = map(json.loads, asyncio.run(main()))
    assert inside["trace_id"] == other["trace_id"] == trace.trace_id
    assert inside["span_id"] == trace.span_id
    assert "trace_id" not in after


@pytest.mark.parametrize("where", ["msg", "value", "key", "nested", "argument"])
def test_a_hostile_container_name_cannot_break_a_line(where: Any) -> None:
    made = {
        "msg": lambda: line(HOSTILE),
        "value": lambda: line(container=HOSTILE),
        "key": lambda: line(**{HOSTILE: 1}),
        "nested": lambda: line(containers={HOSTILE: [HOSTILE]}),
        "argument": lambda: line("evicted %s", (HOSTILE,)),
    }[where]()
    assert made.isascii()
    assert made.isprintable()
    assert json.loads(made)["level"] == "info"
    assert "\x1b" not in json.dumps(json.loads(made), ensure_ascii=False)


_any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=20,
)
_key = st.text(min_size=1).filter(
    lambda key: key not in vars(logging.makeLogRecord({})) and key != "message" and key != "asctime"
)


@given(st.text(), st.dictionaries(_key, _any, max_size=50))
def test_always_one_line_of_valid_json(msg: Any, fields: Any) -> None:
    record = logging.makeLogRecord({"msg": msg, "name": "x", "levelname": "INFO", **fields})
    made = JsonFormatter().format(record)
    assert "\n" not in made
    assert json.loads(made, parse_constant=pytest.fail)["level"] == "info"


def test_a_line_is_bounded() -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    made = line("m" * 10**6, **{f"f{n}": "v" * 10**6 for n in range(200)}, deep=deep, many=list(range(10**5)))
    assert len(made) < 20_000
    assert json.loads(made)["fields_dropped"] == 202 - MAX_FIELDS


def test_fields_cannot_forge_ours() -> None:
    got = json.loads(line("true", level="critical", trace_id="0" * 32, msg_="x"))
    assert (got["level"], got["msg"]) == ("info", "true")
    assert got["field_level"] == "critical"
    assert "trace_id" not in got


def test_a_wrong_format_costs_no_line() -> None:
    assert "not all arguments" in json.loads(line("no place", ("x",)))["msg"]


def test_an_exception_is_one_field() -> None:
    error = ValueError("a\nb")
    got = json.loads(line(exc_info=(ValueError, error, None)))
    assert "ValueError: a\nb" in got["error"]


def test_setup_writes_to_stderr_and_warnings_too() -> None:
    code = "import logging, warnings; from spotgpu_agent import logs; logs.setup('warning')\n"
    code += (
        "log = logging.getLogger('a'); log.info('no'); log.warning('yes', extra={'n': 1}); warnings.warn('w')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == ""
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["msg"], first["n"], first["level"]) == ("yes", 1, "warning")
    assert second["logger"] == "py.warnings"


def test_setup_takes_a_stream() -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        setup("debug", stream)
        logging.getLogger("x").debug("here")
    finally:
        logging.captureWarnings(False)
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    assert json.loads(stream.getvalue())["msg"] == "here"
