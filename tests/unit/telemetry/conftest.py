# SPDX-License-Identifier: Apache-2.0
"""A tracer provider with our id generator, and a real OTLP/gRPC collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spotgpu_agent.telemetry import ChosenIds


class Collector(service.TraceServiceServicer):
    """Keeps what it receives; can be made slow."""

    def __init__(self) -> None:
        self.requests: list[service_pb2.ExportTraceServiceRequest] = []
        self.arrived = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        self.arrived.set()
        self.go.wait(20)
        self.requests.append(request)
        return service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> Any:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(ThreadPoolExecutor(4))
    servicer = Collector()
    service.add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    servicer.go.set()
    server.stop(0).wait()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where spans of HandBackTrace.finish() land in this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=ChosenIds(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use(provider, monkeypatch)
    return exporter


def use(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a provider the one tracing.py asks; the process-wide one can be set only once."""
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
