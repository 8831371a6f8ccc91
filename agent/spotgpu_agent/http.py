# SPDX-License-Identifier: Apache-2.0
"""The agent's HTTP face: /metrics, /livez, /readyz (and /healthz), /statusz.

Small on purpose: GET and HEAD, one request a connection, no bodies. Requests are bounded in size and time and
connections in number. The metrics page is made in a thread, one at a time, so that a scrape never holds up
the loop on which hand-backs run. Nothing here needs the trace backend, readiness least of all.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from spotgpu.errors import UsageError

MAX_REQUEST: Final = 8192  # bytes of request line and headers
READ_S: Final = 5.0
WRITE_S: Final = 10.0
LINGER_S: Final = 0.5
MAX_CONNECTIONS: Final = 64

TEXT: Final = "text/plain; charset=utf-8"
Probe = Callable[[], str | None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: method, path without its query, and headers by lower-case name."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def parse_listen(listen: str, field: str = "listen") -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port` (all addresses).

    Raises:
        UsageError: it is none of these.
    """
    host, colon, port = listen.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bracketed = bare is not host
    if (
        not colon
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
        or (":" in bare and not bracketed)
    ):
        raise UsageError(
            f"{listen!r} is no address to listen on", field, "write it as 127.0.0.1:9464 or [::1]:9464"
        )
    return bare, int(port)


class HttpServer:
    """Serves until stop().

    Args:
        listen: `host:port`; port 0 takes a free one.
        registry: what /metrics shows.
        livez: None when the process is well, else why not; /livez then answers 503.
        readyz: the same for readiness.
        statusz: the object /statusz shows as JSON.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        livez: Probe,
        readyz: Probe,
        statusz: Callable[[], Mapping[str, object]],
    ) -> None:
        self._host, self._port = parse_listen(listen)
        self._registry = registry
        self._pages: dict[str, Callable[[], Reply]] = {
            "/livez": lambda: _probe(livez),
            "/readyz": lambda: _probe(readyz),
            "/healthz": lambda: _probe(livez),
            "/statusz": lambda: _json(statusz()),
        }
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._scraper = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        if self._server is None:
            raise RuntimeError("not started")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: the address cannot be had.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host or None, self._port, limit=MAX_REQUEST
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host or '*'}:{self._port}: {error.strerror or error}",
                "listen",
                "choose another address or end what has it",
            ) from error

    async def stop(self) -> None:
        """Stop listening and break off what is under way."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._scraper.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()  # the client went away or would not read: keep nothing for it
        finally:
            writer.close()
            if task is not None:
                self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head_only = False
        if len(self._connections) > MAX_CONNECTIONS:
            reply = _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
        else:
            asked = await _read(reader)
            reply = asked if isinstance(asked, Reply) else await self._answer(asked)
            head_only = isinstance(asked, Request) and asked.method == "HEAD"
        writer.write(_encode(reply, head_only))
        async with asyncio.timeout(WRITE_S):
            await writer.drain()
        await _linger(reader, writer)

    async def _answer(self, request: Request) -> Reply:
        if request.path != "/metrics" and request.path not in self._pages:
            return _text(HTTPStatus.NOT_FOUND, "there are /metrics " + " ".join(sorted(self._pages)))
        if request.method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD", (("Allow", "GET, HEAD"),))
        if request.path == "/metrics":
            accept = request.headers.get("accept", "")
            return await asyncio.get_running_loop().run_in_executor(self._scraper, self._metrics, accept)
        return self._pages[request.path]()

    def _metrics(self, accept: str) -> Reply:
        encoder, content_type = choose_encoder(accept)
        return Reply(HTTPStatus.OK, encoder(self._registry), content_type)


def _probe(probe: Probe) -> Reply:
    reason = probe()
    return _text(HTTPStatus.OK, "ok") if reason is None else _text(HTTPStatus.SERVICE_UNAVAILABLE, reason)


def _json(value: Mapping[str, object]) -> Reply:
    body = json.dumps(value, default=str, indent=2).encode() + b"\n"
    return Reply(HTTPStatus.OK, body, "application/json")


def _text(status: HTTPStatus, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    return Reply(status, text.encode() + b"\n", headers=headers)


async def _read(reader: asyncio.StreamReader) -> Request | Reply:
    """The request, or what to answer when there is none to be had."""
    try:
        async with asyncio.timeout(READ_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {MAX_REQUEST} bytes")
    except TimeoutError:
        return _text(HTTPStatus.REQUEST_TIMEOUT, f"within {READ_S:.0f} s")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise ConnectionResetError("no request") from error
        return _text(HTTPStatus.BAD_REQUEST, "the request is not complete")
    return parse_request(head) or _text(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")


def parse_request(head: bytes) -> Request | None:
    """The request in a head that ends in an empty line; None when it is no HTTP/1 request."""
    first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in {"HTTP/1.0", "HTTP/1.1"} or not parts[0].isalpha():
        return None
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return None
        headers[name.lower()] = value.strip()
    return Request(parts[0], parts[1].partition("?")[0], headers)


def _encode(reply: Reply, head_only: bool) -> bytes:
    headers = (
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *reply.headers,
    )
    lines = [f"HTTP/1.1 {reply.status.value} {reply.status.phrase}"] + [f"{k}: {v}" for k, v in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if head_only else reply.body)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client read the answer: closing with its bytes unread would reset the connection under it."""
    if writer.can_write_eof():
        writer.write_eof()
    try:
        async with asyncio.timeout(LINGER_S):
            for _ in range(16):
                if not await reader.read(MAX_REQUEST):
                    return
    except TimeoutError:
        return
