# SPDX-License-Identifier: Apache-2.0
"""Asks the agent over its admin socket: one line of JSON there, one line of JSON back.

{"command": "status"}                        -> {"result": {...}}
{"command": "evict", "owner": "dev-box"}     -> {"error": "...", "field": "owner", "remedy": "..."}
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Final

from spotgpu.errors import SpotgpuError
from spotgpu.names import ADMIN_SOCKET

TIMEOUT_S: Final = 5.0
MAX_REPLY: Final = 16 * 1024 * 1024


class NoAgent(SpotgpuError):  # noqa: N818 - it is a finding as much as an error
    """Nobody answers on the admin socket."""


def ask(
    command: str, *, path: Path = Path(ADMIN_SOCKET), timeout_s: float = TIMEOUT_S, **arguments: object
) -> dict[str, object]:
    """The agent's answer to a command.

    Args:
        command: status, evict, return or lend.
        path: the socket.
        timeout_s: for the whole exchange.
        arguments: of the command.

    Raises:
        NoAgent: there is no agent, or it does not answer.
        SpotgpuError: it refused.
    """
    request = json.dumps({"command": command, **arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(request)
            line = _line(sock)
    except FileNotFoundError as error:
        raise NoAgent("no agent runs here", str(path), "start it with `spotgpu agent`") from error
    except ConnectionRefusedError as error:
        raise NoAgent("the agent has ended", str(path), "start it with `spotgpu agent`") from error
    except PermissionError as error:
        raise NoAgent("may not be opened", str(path), "run as root") from error
    except TimeoutError as error:
        raise NoAgent(f"the agent did not answer in {timeout_s:g} s", str(path), "read its log") from error
    except OSError as error:
        raise NoAgent(f"the agent cannot be asked: {error}", str(path), "read its log") from error
    return _result(line, path)


def _line(sock: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < MAX_REPLY:
        chunk = sock.recv(65536)
        if not chunk:
            break
        received += chunk
    return bytes(received)


def _result(line: bytes, path: Path) -> dict[str, object]:
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise NoAgent("the agent's answer is no JSON", str(path), "is its version this one's?") from error
    if not isinstance(reply, dict):
        raise NoAgent("the agent's answer is no object", str(path), "is its version this one's?")
    if "error" in reply:
        field, remedy = reply.get("field"), reply.get("remedy")
        raise SpotgpuError(
            str(reply["error"]),
            None if field is None else str(field),
            None if remedy is None else str(remedy),
        )
    result = reply.get("result")
    if not isinstance(result, dict):
        raise NoAgent("the agent's answer has no result", str(path), "is its version this one's?")
    return result
