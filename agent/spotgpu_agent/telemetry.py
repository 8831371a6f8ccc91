# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry SDK of the agent: installed once, by __main__.

                     ┌─ Pump ── TraceFile        always
    finish() ── spans┤
                     └─ Pump ── OTLP/gRPC        when OTEL_EXPORTER_OTLP_ENDPOINT or …_TRACES_ENDPOINT is set

A Pump is a bounded queue and a thread of its own, so a slow, dead or silent collector delays neither the
hand-back nor the file, and shutdown has a limit. (The SDK's own BatchSpanProcessor neither counts what it
drops nor honours the time limit of its flush: opentelemetry-python#4568.) Hand-backs are rare, so all are
sampled.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from spotgpu.errors import UsageError
from spotgpu.names import TRACES_ENV
from spotgpu_agent.tracefile import TraceFile
from spotgpu_agent.tracing import STATS, TraceStats, chosen_ids

QUEUE: Final = 2048  # spans: some 250 hand-backs
BATCH: Final = 512
DELAY_S: Final = 0.2  # lets the hand-backs that are under way finish before the thread wants the interpreter
SHUTDOWN_S: Final = 2.0

ENDPOINT_ENVS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL_ENVS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_log = logging.getLogger(__name__)


class ChosenIds(RandomIdGenerator):
    """Random ids, but the span that tracing.py starts as a root gets the ids it has already handed out.

    Those were drawn at random too, so the parent's claim that trace ids are random (W3C level 2) stays true.
    """

    def generate_trace_id(self) -> int:
        """The chosen trace id, or a random one."""
        chosen = chosen_ids()
        return chosen[0] if chosen else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """The chosen span id, or a random one."""
        chosen = chosen_ids()
        return chosen[1] if chosen else super().generate_span_id()


class Pump(SpanProcessor):
    """A bounded queue and a thread that empties it into one exporter. on_end() never waits for the exporter.

    Args:
        exporter: where spans go.
        name: its name in the counters, one of tracing.EXPORTERS.
        stats: the counters.
        queue: spans kept; above it new ones are lost, and counted.
        delay_s: seconds to let spans gather before they are exported.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        name: str,
        stats: TraceStats = STATS,
        queue: int = QUEUE,
        delay_s: float = DELAY_S,
    ) -> None:
        self._exporter = exporter
        self._name = name
        self._stats = stats
        self._limit = queue
        self._delay_s = delay_s
        self._queue: deque[ReadableSpan] = deque()
        self._busy = False
        self._urgent = False  # a flush or the end: do not let spans gather
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"traces-{name}", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: only ended spans count."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or count it as lost."""
        with self._changed:
            if self._stopped or len(self._queue) >= self._limit:
                self._stats.count(self._name, lost=1)
                return
            self._queue.append(span)
            self._changed.notify_all()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until all that was queued is exported or lost; False when that took too long."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_millis / 1000)

    def stop(self) -> None:
        """Take no more spans and export what is queued at once; does not wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Stop, and wait at most this long; what is then still queued is counted as lost."""
        self.stop()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # breaks off an export that is under way
        with self._changed:
            self._stats.count(self._name, lost=len(self._queue))
            self._queue.clear()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._export(batch)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> list[ReadableSpan] | None:
        """The next batch, once there is one and it had time to gather; None when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopped)
            self._changed.wait_for(self._hurried, self._delay_s)
            self._urgent = self._urgent and len(self._queue) > BATCH
            if not self._queue:
                return None if self._stopped else []
            self._busy = True
            return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _hurried(self) -> bool:
        return self._stopped or self._urgent or len(self._queue) >= BATCH

    def _export(self, batch: list[ReadableSpan]) -> None:
        if not batch:
            return
        try:
            done = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - the thread must outlive a span that an exporter cannot encode
            _log.exception("a span exporter failed", extra={"exporter": self._name})
            done = False
        if done:
            self._stats.count(self._name, exported=len(batch))
        else:
            self._stats.count(self._name, lost=len(batch), failures=1)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What setup() installed.

    Attributes:
        provider: the tracer provider.
        pumps: one per exporter.
    """

    provider: TracerProvider
    pumps: tuple[Pump, ...]

    def flush(self, timeout_s: float = SHUTDOWN_S) -> bool:
        """Export all that is queued; False when that took longer than this."""
        end = time.monotonic() + timeout_s
        done = True
        for pump in self.pumps:
            done &= pump.force_flush(max(0, int((end - time.monotonic()) * 1000)))
        return done

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Export what can be within this time, all exporters together, and end. Blocks: call it last."""
        end = time.monotonic() + timeout_s
        for pump in self.pumps:
            pump.stop()
        for pump in self.pumps:
            pump.shutdown(max(0.0, end - time.monotonic()))


def setup(
    traces: Path,
    node: str,
    version: str,
    environ: Mapping[str, str] = os.environ,
    *,
    stats: TraceStats = STATS,
    install: bool = True,
) -> Telemetry:
    """Install the SDK.

    Args:
        traces: the JSON-lines file; the environment's SPOTGPU_TRACES goes before it.
        node: name of this node, for `host.name`.
        version: of spotgpu, for `service.version`.
        environ: where the `OTEL_*` variables are.
        stats: the counters of the pipeline.
        install: make it the process's tracer provider, which can be done once.

    Raises:
        UsageError: an `OTEL_*` variable that cannot be obeyed.
    """
    otlp = _otlp_exporter(environ)
    pumps = [Pump(TraceFile(Path(environ.get(TRACES_ENV) or traces)), "file", stats)]
    if otlp is not None:
        pumps.append(Pump(otlp, "otlp", stats))
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=_resource(node, version), shutdown_on_exit=False, id_generator=ChosenIds()
    )
    for pump in pumps:
        provider.add_span_processor(pump)
    if install:
        trace.set_tracer_provider(provider)
    return Telemetry(provider, tuple(pumps))


def _resource(node: str, version: str) -> Resource:
    """What sends the spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before it.

    The SDK's list of detectors is not asked: it walks every installed package.
    """
    ours = Resource(
        {
            "service.name": "spotgpu-agent",
            "service.version": version,
            "host.name": node,
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
        }
    )
    return ours.merge(OTELResourceDetector().detect())


def _otlp_exporter(environ: Mapping[str, str]) -> SpanExporter | None:
    endpoint = next((name for name in ENDPOINT_ENVS if environ.get(name)), None)
    if endpoint is None:
        return None
    protocol = next((name for name in PROTOCOL_ENVS if environ.get(name)), None)
    if protocol is not None and environ[protocol] != "grpc":
        raise UsageError(
            f"spans are sent by OTLP/gRPC, not {environ[protocol]}", protocol, "set it to grpc or unset it"
        )
    # grpc is a heavy import that only this needs.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    try:
        return OTLPSpanExporter(endpoint=environ[endpoint])
    except ValueError as error:
        raise UsageError(
            f"the OTLP exporter refused its settings: {error}", "OTEL_EXPORTER_OTLP_*", "correct the variable"
        ) from error
