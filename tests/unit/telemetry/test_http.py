# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from spotgpu.errors import UsageError
from spotgpu_agent import http
from spotgpu_agent.http import HttpServer, parse_listen, parse_request
from spotgpu_agent.metrics import Metrics


class Face:
    """What the pages say; tests change it."""

    not_live: str | None = None
    not_ready: str | None = "starting"
    status: dict[str, object] = {"node": "n1"}  # noqa: RUF012


@contextlib.asynccontextmanager
async def serving(face: Any = None, metrics: Metrics | None = None) -> Any:
    face = face or Face()
    server = HttpServer(
        "127.0.0.1:0",
        (metrics or Metrics()).registry,
        lambda: face.not_live,
        lambda: face.not_ready,
        lambda: face.status,
    )
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


async def raw(port: Any, data: bytes, eof: Any = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if eof:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def ask(port: Any, path: Any, method: Any = "GET", **headers: Any) -> Any:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in headers.items())]
    answer = await raw(port, ("\r\n".join(lines) + "\r\n\r\n").encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body


def test_metrics_with_exemplars_only_where_asked_for() -> Any:
    async def main() -> Any:
        metrics = Metrics()
        metrics.handback("released", "hold", 0.3, {}, 0.0, "a" * 32, "b" * 16)
        async with serving(metrics=metrics) as port:
            return await ask(
                port, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0"
            ), await ask(port, "/metrics")

    (status, headers, body), (old_status, old_headers, old_body) = asyncio.run(main())
    assert (status, old_status) == (200, 200)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert f'trace_id="{"a" * 32}"'.encode() in body
    assert list(text_string_to_metric_families(body.decode()))  # type: ignore[no-untyped-call]
    assert old_headers["Content-Type"].startswith("text/plain")
    assert b"trace_id" not in old_body
    assert int(headers["Content-Length"]) == len(body)


def test_probes_follow_what_they_are_told() -> Any:
    async def main() -> Any:
        face = Face()
        async with serving(face) as port:
            yield_ = [await ask(port, "/livez"), await ask(port, "/healthz"), await ask(port, "/readyz")]
            face.not_ready, face.not_live = None, "the loop is stuck"
            return [*yield_, await ask(port, "/readyz"), await ask(port, "/livez")]

    answers = [(status, body) for status, _, body in asyncio.run(main())]
    assert answers == [
        (200, b"ok\n"),
        (200, b"ok\n"),
        (503, b"starting\n"),
        (200, b"ok\n"),
        (503, b"the loop is stuck\n"),
    ]


def test_statusz_is_json() -> Any:
    async def main() -> Any:
        async with serving() as port:
            return await ask(port, "/statusz")

    status, headers, body = asyncio.run(main())
    assert (status, headers["Content-Type"], json.loads(body)) == (200, "application/json", {"node": "n1"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/../etc/passwd", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/livez", 405),
        ("HEAD", "/livez", 200),
        ("HEAD", "/metrics", 200),
        ("HEAD", "/x", 404),
    ],
)
def test_methods_and_paths(method: Any, path: Any, status: Any) -> Any:
    async def main() -> Any:
        async with serving() as port:
            return await ask(port, path, method)

    got, headers, body = asyncio.run(main())
    assert got == status
    assert headers["Connection"] == "close"
    if method == "HEAD":
        assert body == b""
        assert int(headers["Content-Length"]) > 0
    if status == 405:
        assert headers["Allow"] == "GET, HEAD"


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/2.0\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),  # TLS
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nCookie: " + b"a" * 20000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50000, 405),
    ],
)
def test_odd_requests_get_an_answer(data: Any, status: Any) -> Any:
    async def main() -> Any:
        async with serving() as port:
            return await raw(port, data), await ask(port, "/livez")

    answer, after = asyncio.run(main())
    assert status_of(answer) == status
    assert after[0] == 200


def test_half_a_request_and_none() -> Any:
    async def main() -> Any:
        async with serving() as port:
            return (
                await raw(port, b"GET /livez HT", eof=True),
                await raw(port, b"", eof=True),
                await ask(port, "/livez"),
            )

    half, none, after = asyncio.run(main())
    assert status_of(half) == 400
    assert none == b""
    assert after[0] == 200


def test_a_client_that_does_not_speak_is_let_go(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(http, "READ_S", 0.2)

    async def main() -> Any:
        async with serving() as port:
            return await raw(port, b"GET /livez HTTP/1.1\r\n")

    assert status_of(asyncio.run(main())) == 408


def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(http, "WRITE_S", 0.3)

    async def main() -> Any:
        face = Face()
        face.status = {"big": "x" * 30_000_000}
        async with serving(face) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"GET /statusz HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.1)
            # Answered after the big page was made, in the same loop: what follows is not the making of it.
            alive = await ask(port, "/livez")
            await asyncio.sleep(1.0)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(30_000_000), 10)
            writer.close()
            return alive

    assert asyncio.run(main())[0] == 200


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)

    async def main() -> Any:
        async with serving() as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await asyncio.sleep(0.1)
            full = await ask(port, "/livez")
            for _, writer in idle:
                writer.close()
            await asyncio.sleep(0.2)
            return full, await ask(port, "/livez")

    full, after = asyncio.run(main())
    assert (full[0], after[0]) == (503, 200)


class Slow(Collector):
    """A page that takes a second to make."""

    def collect(self) -> Iterator[Metric]:
        time.sleep(1.0)
        yield GaugeMetricFamily("slow", "Slow.", value=1)


def test_a_slow_scrape_does_not_hold_up_the_loop() -> None:
    async def main() -> tuple[list[int], float]:
        metrics = Metrics()
        metrics.registry.register(Slow())
        async with serving(metrics=metrics) as port:
            scrapes = asyncio.gather(*(ask(port, "/metrics") for _ in range(2)))
            longest = 0.0
            while not scrapes.done():
                began = time.perf_counter()
                await asyncio.sleep(0.01)
                longest = max(longest, time.perf_counter() - began)
            return [status for status, _, _ in await scrapes], longest

    statuses, longest = asyncio.run(main())
    assert statuses == [200] * 2
    assert longest < 0.7


def test_many_scrapes_at_once_are_all_answered() -> None:
    async def main() -> list[int]:
        async with serving() as port:
            answers = await asyncio.gather(*(ask(port, "/metrics") for _ in range(40)))
        return [status for status, _, _ in answers]

    assert asyncio.run(main()) == [200] * 40


def test_an_address_that_is_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as port:
            other = HttpServer(f"127.0.0.1:{port}", Metrics().registry, lambda: None, lambda: None, dict)
            await other.start()

    with pytest.raises(UsageError, match="cannot listen on 127") as caught:
        asyncio.run(main())
    assert (caught.value.field, caught.value.exit_status) == ("listen", 2)


@pytest.mark.parametrize(
    ("listen", "parsed"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":80", ("", 80)),
        ("[::1]:9", ("::1", 9)),
        ("host:0", ("host", 0)),
    ],
)
def test_addresses(listen: Any, parsed: Any) -> None:
    assert parse_listen(listen) == parsed


@pytest.mark.parametrize(
    "listen", ["", "9464", "host", "host:", "host:x", "host:65536", "::1:9", "host:-1", "h:٣"]
)
def test_addresses_that_are_none(listen: Any) -> None:
    with pytest.raises(UsageError):
        parse_listen(listen)


@given(st.binary(max_size=300))
def test_parsing_never_raises(data: Any) -> None:
    request = parse_request(data + b"\r\n\r\n")
    assert request is None or request.method.isalpha()
