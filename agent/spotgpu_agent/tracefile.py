# SPDX-License-Identifier: Apache-2.0
"""Spans as JSON lines in a file of bounded size, which is always there, whatever becomes of the collector.

One span a line. The file is rotated by size (`traces.jsonl`, `.1`, `.2`, …, newest first) and bounded: KEEP +
1 files of MAX_BYTES. It is written by an export thread only and not fsynced: traces are evidence, not state.
A write that fails part of the way is taken back, so that a full disk costs whole spans and never leaves half
a line.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MAX_BYTES: Final = 16 * 1024 * 1024
KEEP: Final = 4

_log = logging.getLogger(__name__)


class TraceFile(SpanExporter):
    """Appends spans to a file.

    Args:
        path: the file; its folder is made when missing.
        max_bytes: size above which the file is rotated; a span longer than this is refused.
        keep: rotated files kept.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0
        self._failing = False  # logged already

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append spans; all of them are on the file, or FAILURE says that some are not."""
        try:
            self._reopen_if_changed()
            for line in map(span_line, spans):
                self._append(line)
        except OSError as error:
            self._close()
            if not self._failing:
                _log.error("cannot write traces", extra={"path": str(self.path), "reason": str(error)})
            self._failing = True
            return SpanExportResult.FAILURE
        if self._failing:
            _log.info("traces are written again", extra={"path": str(self.path)})
        self._failing = False
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._close()

    def _append(self, line: bytes) -> None:
        if len(line) > self._max_bytes:
            raise OSError(f"a span of {len(line)} bytes is longer than the file may be")
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        fd = self._open()
        written = os.write(fd, line)
        if written < len(line):
            os.ftruncate(fd, self._size)
            raise OSError(f"short write, {written} of {len(line)} bytes")
        self._size += written

    def _open(self) -> int:
        if self._fd is not None:
            return self._fd
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o640)
        _end_last_line(self._fd)
        self._size = os.fstat(self._fd).st_size
        return self._fd

    def _reopen_if_changed(self) -> None:
        """Once a batch: somebody (logrotate) may have taken the file away or emptied it."""
        if self._fd is None:
            return
        try:
            there = self.path.stat()
        except FileNotFoundError:
            self._close()
            return
        here = os.fstat(self._fd)
        if (there.st_dev, there.st_ino, there.st_size) != (here.st_dev, here.st_ino, self._size):
            self._close()

    def _rotate(self) -> None:
        self._close()
        for n in range(self._keep, 0, -1):
            older = self.path if n == 1 else _numbered(self.path, n - 1)
            if older.exists():
                older.replace(_numbered(self.path, n))
        self.path.unlink(missing_ok=True)  # keep = 0

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _numbered(path: Path, n: int) -> Path:
    return path.with_name(f"{path.name}.{n}")


def _end_last_line(fd: int) -> None:
    """Give a line that a crash tore its newline, so that the next span starts on its own."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")


def span_line(span: ReadableSpan) -> bytes:
    """One span as one line of JSON, newline included. Times are wall ns."""
    context, parent = span.get_span_context(), span.parent
    record = {
        "trace_id": f"{context.trace_id:032x}" if context else "",
        "span_id": f"{context.span_id:016x}" if context else "",
        "parent": f"{parent.span_id:016x}" if parent else None,
        "name": span.name,
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "attributes": _plain(span.attributes),
        "events": [
            {"name": event.name, "at_ns": event.timestamp, "attributes": _plain(event.attributes)}
            for event in span.events
        ],
        "links": [
            {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "status": span.status.status_code.name.lower(),
        "resource": _plain(span.resource.attributes),
    }
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _plain(attributes: Mapping[str, object] | None) -> dict[str, object]:
    return {key: _finite(value) for key, value in (attributes or {}).items()}


def _finite(value: object) -> object:
    """The value, or its text when it is a float that JSON does not have."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
