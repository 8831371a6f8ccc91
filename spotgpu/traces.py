# SPDX-License-Identifier: Apache-2.0
"""Reads the traces that the agent left in its JSON-lines file and in those rotated away from it.

The agent may be writing while we read and may have died while it wrote, so a line that is no span is skipped
and counted. A trace's root is written last: a trace without one was never finished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from spotgpu.errors import SpotgpuError, UsageError
from spotgpu.text import printable

MIN_PREFIX: Final = 4  # characters of a trace id that are enough to name it
MAX_ROTATED: Final = 99
_TRACE_ID: Final = re.compile(r'\{"trace_id": ?"([0-9a-f]{32})"')
_ROOT: Final = re.compile(r'"parent": ?null')
_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Span:
    """One line of the file. Times are wall ns since the epoch.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        parent: span id of the parent; None for the root.
        name: see spotgpu.names.Phase and Trace.
        start_ns: start.
        end_ns: end, not before the start.
        attributes: by name.
        events: points in time: name, at_ns, attributes.
        links: ids of other traces' spans.
        status: unset, ok or error.
        resource: attributes of the process that made it.
    """

    trace_id: str
    span_id: str
    parent: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, object] = field(default_factory=dict)
    events: tuple[dict[str, object], ...] = ()
    links: tuple[dict[str, object], ...] = ()
    status: str = "unset"
    resource: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """One hand-back.

    Attributes:
        trace_id: 32 hex digits.
        root: the span without a parent.
        spans: the others, by start.
    """

    trace_id: str
    root: Span
    spans: tuple[Span, ...]

    @property
    def total_ns(self) -> int:
        """Duration of the root."""
        return self.root.end_ns - self.root.start_ns


def parse_span(line: str) -> Span | None:
    """The span on a line, or None when it is none (torn, or somebody else's)."""
    try:
        got = json.loads(line)
        span = Span(
            trace_id=_checked(got["trace_id"], str),
            span_id=_checked(got["span_id"], str),
            parent=None if got["parent"] is None else _checked(got["parent"], str),
            name=_checked(got["name"], str),
            start_ns=_checked(got["start_ns"], int),
            end_ns=_checked(got["end_ns"], int),
            attributes=_checked(got.get("attributes", {}), dict),
            events=tuple(_checked(event, dict) for event in got.get("events", ())),
            links=tuple(_checked(link, dict) for link in got.get("links", ())),
            status=_checked(got.get("status", "unset"), str),
            resource=_checked(got.get("resource", {}), dict),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return span if span.end_ns >= span.start_ns else None


def _checked(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"not a {kind.__name__}")
    return value


@dataclass(slots=True)
class TraceLog:
    """The files that belong to one path.

    Attributes:
        path: the file the agent writes; `.1`, `.2`, … beside it are older.
        skipped: lines met so far that are no spans.
    """

    path: Path
    skipped: int = 0

    def last(self, n: int) -> list[Trace]:
        """The n traces that ended last, oldest first; fewer when there are fewer."""
        return self._load(set(list(self._roots())[-n:]) if n > 0 else set())

    def find(self, trace_id: str) -> Trace:
        """The trace whose id begins like this.

        Raises:
            UsageError: that is no trace id, or more than one begins like this.
            SpotgpuError: none does.
        """
        prefix = trace_id.lower()
        if not _ID.fullmatch(prefix) or len(prefix) < MIN_PREFIX:
            raise UsageError(
                f"{printable(trace_id, 64)!r} is no trace id",
                "TRACE_ID",
                f"give {MIN_PREFIX} to 32 hexadecimal digits",
            )
        found = [known for known in self._roots() if known.startswith(prefix)]
        if not found:
            raise SpotgpuError(
                f"no finished trace begins with {prefix} in {self.path}",
                "TRACE_ID",
                "see `spotgpu trace --list`",
            )
        if len(found) > 1:
            raise UsageError(f"{len(found)} traces begin with {prefix}", "TRACE_ID", "give more digits")
        return self._load(set(found))[0]

    def _roots(self) -> dict[str, None]:
        """Ids of the traces that have a root, in the order in which they ended."""
        roots: dict[str, None] = {}
        self.skipped = 0
        for trace_id, line in self._lines():
            if _ROOT.search(line) and (span := parse_span(line)) is not None and span.parent is None:
                roots.pop(trace_id, None)
                roots[trace_id] = None
        return roots

    def _load(self, wanted: set[str]) -> list[Trace]:
        spans: dict[str, dict[str, Span]] = {trace_id: {} for trace_id in self._roots() if trace_id in wanted}
        self.skipped = 0
        for trace_id, line in self._lines():
            if trace_id not in spans:
                continue
            span = parse_span(line)
            if span is None:
                self.skipped += 1
            else:  # a later span of the same id is the same span, told again by a restarted agent
                spans[trace_id][span.span_id] = span
        return [trace for each in spans.values() if (trace := assemble(each.values())) is not None]

    def _lines(self) -> Iterator[tuple[str, str]]:
        """(trace id, line) of every line that looks like a span, oldest first."""
        for path in reversed(self.files()):
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    found = _TRACE_ID.match(line)
                    if found and line.endswith("}\n"):
                        yield found[1], line
                    elif line.strip():
                        self.skipped += 1

    def files(self) -> list[Path]:
        """The files there are, newest first.

        Raises:
            SpotgpuError: there is none, or it cannot be read.
        """
        found = []
        for n in range(MAX_ROTATED + 1):
            path = self.path if n == 0 else self.path.with_name(f"{self.path.name}.{n}")
            try:
                if path.is_file():
                    with path.open("rb"):
                        found.append(path)
            except PermissionError as error:
                raise SpotgpuError("cannot be read", str(path), "run as root") from error
        if not found:
            raise SpotgpuError(
                "there is no such file",
                str(self.path),
                "no hand-back was traced here yet, or name it by --file",
            )
        return found


def assemble(spans: Iterable[Span]) -> Trace | None:
    """The trace that spans of one trace id make; None without their root, which is written last."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    root = next((span for span in ordered if span.parent is None), None)
    if root is None:
        return None
    return Trace(root.trace_id, root, tuple(span for span in ordered if span is not root))
