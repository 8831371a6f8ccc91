# SPDX-License-Identifier: Apache-2.0
"""One hand-back, one trace: recorded while it happens, made into spans when it is over.

The recorder is on the owner's critical path, so it only appends to lists: the ids are known at begin()
(log lines have them at once), the spans are made in finish(), after the owner has been let through.
This module knows the OpenTelemetry API alone; telemetry.py installs the SDK, whose id generator asks
chosen_ids() so that the root span gets the ids that were handed out. The ids of a return are derived from
it, so an agent that starts in the middle of one goes on in the trace of the agent that died, whenever that
was: the root it exports is the very span that the dead agent never could.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from spotgpu.intervals import union_ns
from spotgpu.names import OTEL_SCOPE, Attr, Outcome, Phase, Trace
from spotgpu.text import printable
from spotgpu_agent.clock import Clock, Offset

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]

EXPORTERS: Final = ("file", "otlp")
MAX_PHASES: Final = 512
MAX_EVENTS: Final = 128
MAX_ITEMS: Final = 128  # of a sequence attribute
MAX_ATTRIBUTE: Final = 1024  # characters
# A trace explains its hand-back when at most this much of it is in no phase.
UNEXPLAINED_SLACK_NS: Final = 1_000_000
UNEXPLAINED_SLACK_PARTS: Final = 10

_chosen: ContextVar[tuple[int, int] | None] = ContextVar("spotgpu_chosen_ids", default=None)
_CLOCK: Final = Clock()


class TraceStats:
    """What became of traces in this process: counters that metrics export and nothing here resets.

    Attributes:
        clamped: spans whose end was before their start.
        overflow: phases and events above the bounds of one trace.
        exported: spans handed over, by exporter.
        lost: spans lost, by exporter: the queue was full, or the export failed.
        failures: exports that failed, by exporter.
    """

    def __init__(self) -> None:
        self.clamped = 0
        self.overflow = 0
        self.exported = dict.fromkeys(EXPORTERS, 0)
        self.lost = dict.fromkeys(EXPORTERS, 0)
        self.failures = dict.fromkeys(EXPORTERS, 0)
        self._lock = threading.Lock()  # the loop and the export threads count in the same cells

    def count(self, exporter: str, *, exported: int = 0, lost: int = 0, failures: int = 0) -> None:
        """Add to an exporter's counters; from any thread."""
        with self._lock:
            self.exported[exporter] += exported
            self.lost[exporter] += lost
            self.failures[exporter] += failures


STATS: Final = TraceStats()


def chosen_ids() -> tuple[int, int] | None:
    """Trace and span id that the span being started must have, or None. For the SDK's id generator."""
    return _chosen.get()


def span_context(traceparent: str) -> SpanContext | None:
    """The context a W3C traceparent names, or None when it is not one."""
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def derived_ids(*of: object) -> tuple[int, int]:
    """Trace and root span id of what these name: the same for the same, and as good as random otherwise.

    Args:
        of: names it in all the world, so one of them must be random (the kernel's boot id).
    """
    digest = hashlib.sha256("\0".join(map(str, of)).encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    error_type: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished hand-back came to. All times in ns.

    Attributes:
        outcome: how it ended.
        total_ns: from the first blocked call to the end given to finish().
        phases_ns: time covered by each phase, also outside the hand-back; its overlaps with itself count
            once.
        unexplained_ns: total minus the union of all phases but `owner.hold`.
        clamped: spans of this trace that would have been negative.
        complete: the trace explains the hand-back: nothing clamped or dropped, at most max(1 ms, a tenth)
            unexplained.
        trace_id: 32 hex digits.
        span_id: 16 hex digits, of the root.
    """

    outcome: str
    total_ns: int
    phases_ns: dict[str, int]
    unexplained_ns: int
    clamped: int
    complete: bool
    trace_id: str
    span_id: str

    @property
    def total_seconds(self) -> float:
        """Total time in seconds."""
        return self.total_ns / 1e9

    @property
    def unexplained_seconds(self) -> float:
        """Time in no phase, in seconds."""
        return self.unexplained_ns / 1e9

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Time of each phase in seconds."""
        return {name: ns / 1e9 for name, ns in self.phases_ns.items()}


@dataclass(slots=True)
class HandBackTrace:
    """The recorder of one hand-back; made by begin()."""

    first_ns: int
    attributes: dict[str, Value]
    links: tuple[str, ...]
    offset: Offset
    ids: tuple[int, int]
    clamped: int = 0
    overflow: int = 0
    _steps: list[_Step] = field(default_factory=list)
    _events: list[tuple[str, int, dict[str, Value]]] = field(default_factory=list)
    _summary: Summary | None = None

    @staticmethod
    def begin(
        first_ns: int,
        attributes: Attributes,
        *,
        ids: tuple[int, int],
        links: Sequence[str] = (),
        clock: Clock = _CLOCK,
    ) -> HandBackTrace:
        """Start a trace. Costs a few microseconds and cannot block.

        Args:
            first_ns: when the owner was first blocked, CLOCK_MONOTONIC.
            attributes: of the root span; see spotgpu.names.Attr.
            ids: trace and root span id, from derived_ids().
            links: traceparents of other traces (the steal that is being undone); what is not one is left out.
            clock: the converter to wall time; its offset of this moment serves the whole trace.
        """
        return HandBackTrace(first_ns, dict(attributes), tuple(links), clock.offset(), ids)

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return f"{self.ids[0]:032x}"

    @property
    def span_id(self) -> str:
        """16 hex digits, of the root span."""
        return f"{self.ids[1]:016x}"

    def phase(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
        error_type: str | None = None,
    ) -> None:
        """Record a phase that is over. An end before the start is clamped to it and counted.

        Args:
            name: one of spotgpu.names.Phase.
            start_ns: CLOCK_MONOTONIC.
            end_ns: CLOCK_MONOTONIC.
            attributes: of the phase's span.
            error_type: low-cardinality `error.type`, when the phase failed.
        """
        if len(self._steps) >= MAX_PHASES:
            self._overflowed()
            return
        end_ns = self._clamp(start_ns, end_ns)
        self._steps.append(_Step(str(name), start_ns, end_ns, dict(attributes or {}), error_type))

    def event(self, name: str, at_ns: int, attributes: Attributes | None = None) -> None:
        """Record a point in time on the root span.

        Args:
            name: a constant, no ids in it.
            at_ns: CLOCK_MONOTONIC.
            attributes: what was seen.
        """
        if len(self._events) >= MAX_EVENTS:
            self._overflowed()
            return
        self._events.append((str(name), at_ns, dict(attributes or {})))

    def finish(
        self,
        end_ns: int,
        outcome: str,
        attributes: Attributes | None = None,
        error_type: str | None = None,
    ) -> Summary:
        """End the trace: compute the sums, queue the spans for export. A second call changes nothing.

        Args:
            end_ns: when the owner was let through (or the hand-back was given up), CLOCK_MONOTONIC.
            outcome: one of spotgpu.names.Outcome.
            attributes: added to the root span.
            error_type: low-cardinality `error.type`, when the hand-back failed.
        """
        if self._summary is None:
            end_ns = self._clamp(self.first_ns, end_ns)
            self.attributes.update(attributes or {})
            self._summary = self._sum(end_ns, Outcome(outcome))
            self._emit(end_ns, self._summary, error_type)
        return self._summary

    def _clamp(self, start_ns: int, end_ns: int) -> int:
        if end_ns >= start_ns:
            return end_ns
        self.clamped += 1
        STATS.clamped += 1
        return start_ns

    def _overflowed(self) -> None:
        self.overflow += 1
        STATS.overflow += 1

    def _sum(self, end_ns: int, outcome: Outcome) -> Summary:
        total = end_ns - self.first_ns
        spans: dict[str, list[tuple[int, int]]] = {}
        for step in self._steps:
            spans.setdefault(step.name, []).append((step.start_ns, step.end_ns))
        explained = [pair for name, pairs in spans.items() if name != Phase.OWNER_HOLD for pair in pairs]
        unexplained = total - union_ns(explained, self.first_ns, end_ns)
        slack = max(UNEXPLAINED_SLACK_NS, total // UNEXPLAINED_SLACK_PARTS)
        return Summary(
            outcome=outcome.value,
            total_ns=total,
            phases_ns={name: _length(pairs) for name, pairs in spans.items()},
            unexplained_ns=unexplained,
            clamped=self.clamped,
            complete=not self.clamped and not self.overflow and unexplained <= slack,
            trace_id=self.trace_id,
            span_id=self.span_id,
        )

    def _emit(self, end_ns: int, summary: Summary, error_type: str | None) -> None:
        tracer = trace.get_tracer(OTEL_SCOPE)
        wall = self.offset.to_wall_ns
        sums: dict[str, Value] = {
            Attr.OUTCOME: summary.outcome,
            Attr.TOTAL_NS: summary.total_ns,
            Attr.UNEXPLAINED_NS: summary.unexplained_ns,
            Attr.CLAMPED: summary.clamped,
            Attr.COMPLETE: summary.complete,
            Attr.CLOCK_ERROR_NS: self.offset.error_ns,
        }
        token = _chosen.set(self.ids)
        try:
            root = tracer.start_span(
                Trace.HANDBACK.value,
                context=Context(),
                attributes=_clean({**self.attributes, **sums}),
                links=[Link(found) for found in map(span_context, self.links) if found],
                start_time=wall(self.first_ns),
            )
        finally:
            _chosen.reset(token)
        below = trace.set_span_in_context(root, Context())
        for step in self._steps:
            span = tracer.start_span(
                step.name, context=below, attributes=_clean(step.attributes), start_time=wall(step.start_ns)
            )
            _failed(span, step.error_type)
            span.end(end_time=wall(step.end_ns))
        for name, at_ns, attributes in self._events:
            root.add_event(name, _clean(attributes), timestamp=wall(at_ns))
        _failed(root, error_type)
        root.end(end_time=wall(end_ns))


def _length(pairs: list[tuple[int, int]]) -> int:
    return union_ns(pairs, min(start for start, _ in pairs), max(end for _, end in pairs))


def _failed(span: trace.Span, error_type: str | None) -> None:
    """Mark a span as failed; on success the status stays unset (recording-errors.md of the conventions)."""
    if error_type:
        span.set_attribute(Attr.ERROR_TYPE.value, printable(error_type))
        span.set_status(Status(StatusCode.ERROR))


def _clean(attributes: Attributes) -> dict[str, Value]:
    """Attributes that OTLP can carry: bounded text without control characters, integers of 64 bits."""
    return {printable(key): _clean_value(value) for key, value in attributes.items() if value is not None}


def _clean_value(value: object) -> Value:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [printable(item, MAX_ATTRIBUTE) for item in list(value)[:MAX_ITEMS]]
    return printable(value, MAX_ATTRIBUTE)
