# SPDX-License-Identifier: Apache-2.0
"""Standard logging as JSON lines on stderr, with the trace in them.

    log = logging.getLogger(__name__)
    with bind(trace):
        log.info("spot cgroup empty", extra={"cgroup": 4711, "witness": "cgroup"})

One record is one line whatever a container is called: text is escaped, cut to a bound, and the number of
fields is capped.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Protocol, TextIO

from spotgpu.text import printable

MAX_FIELDS: Final = 32
MAX_ITEMS: Final = 64
MAX_DEPTH: Final = 3
MAX_MESSAGE: Final = 2048
MAX_TRACEBACK: Final = 8192
# What logging itself puts on a record; all else came through `extra=`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED: Final = frozenset({"ts", "level", "logger", "msg", "trace_id", "span_id", "error"})
_ids: ContextVar[tuple[str, str] | None] = ContextVar("spotgpu_log_trace", default=None)


class Traced(Protocol):
    """What bind() takes: a HandBackTrace, or its Summary."""

    @property
    def trace_id(self) -> str:
        """32 hex digits."""

    @property
    def span_id(self) -> str:
        """16 hex digits."""


@contextmanager
def bind(traced: Traced) -> Iterator[None]:
    """Every record logged inside (also by tasks started inside) carries the ids of this trace."""
    token = _ids.set((traced.trace_id, traced.span_id))
    try:
        yield
    finally:
        _ids.reset(token)


class JsonFormatter(logging.Formatter):
    """One record, one line of valid JSON: ts, level, logger, msg, the trace ids, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": printable(_message(record), MAX_MESSAGE),
        }
        ids = _ids.get()
        if ids is not None:
            line["trace_id"], line["span_id"] = ids
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)[-MAX_TRACEBACK:]
        line.update(_fields(record))
        return json.dumps(line, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as error:  # a wrong format must not cost the line
        return f"{record.msg!r} % {record.args!r}: {error}"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra = [(name, value) for name, value in vars(record).items() if name not in _OWN]
    fields = {
        (f"field_{name}" if name in _RESERVED else printable(name, 64)): _plain(value, 0)
        for name, value in extra[:MAX_FIELDS]
    }
    if len(extra) > MAX_FIELDS:
        fields["fields_dropped"] = len(extra) - MAX_FIELDS
    return fields


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {printable(key, 64): _plain(each, depth + 1) for key, each in list(value.items())[:MAX_ITEMS]}
    if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth + 1) for each in list(value)[:MAX_ITEMS]]
    return printable(value)


def setup(level: str = "info", stream: TextIO | None = None) -> None:
    """Make the root logger write JSON lines. Called once, by __main__.

    Args:
        level: debug, info, warning or error.
        stream: where to; stderr when None.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
