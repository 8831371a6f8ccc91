# SPDX-License-Identifier: Apache-2.0
"""The admin socket: one JSON request line, one JSON reply line, root only.

{"command": "status"}                        -> {"result": {...}}
{"command": "evict", "owner": "dev-box"}     -> {"result": {...}}
anything wrong                               -> {"error": "...", "field": "...", "remedy": "..."}
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from spotgpu.errors import SpotgpuError, UsageError
from spotgpu_agent.events import Admin, AdminAction

SOCKET_NAME: Final = "admin.sock"
MAX_LINE: Final = 65536
READ_S: Final = 5.0
MAX_CONNECTIONS: Final = 16
_UCRED: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid

_log = logging.getLogger(__name__)

Reply = dict[str, object]


class AdminSocket:
    """Serves until stop().

    Args:
        directory: where the socket is made.
        owners: names of the owners.
        status: what `status` answers.
        tell: takes a person's word to the core.
        seen: called with the name of every command.
    """

    def __init__(
        self,
        directory: Path,
        owners: Sequence[str],
        status: Callable[[], Awaitable[dict[str, object]]],
        tell: Callable[[Admin], None],
        seen: Callable[[str], None],
    ) -> None:
        self._path = directory / SOCKET_NAME
        self._owners = owners
        self._status = status
        self._tell = tell
        self._seen = seen
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: the socket can't be made, or another agent has it.
        """
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if await asyncio.to_thread(_answers, self._path):
                raise UsageError("another agent has this socket", str(self._path), "stop it first")
            self._path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._accept, self._path, limit=MAX_LINE)
            finally:
                os.umask(before)
        except OSError as error:
            remedy = "set run_dir to a directory that root can write"
            raise UsageError(error.strerror or str(error), str(self._path), remedy) from error

    async def stop(self) -> None:
        """Stop listening, break off what is under way, and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            reply = await self._serve(reader, writer)
            writer.write(json.dumps(reply).encode() + b"\n")
            async with asyncio.timeout(READ_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Reply:
        # Read before any refusal: who is cut off while writing never sees why.
        try:
            async with asyncio.timeout(READ_S):
                line = await reader.readline()
        except ValueError:
            return _error(f"a request has at most {MAX_LINE} bytes", None, "send one line of JSON")
        if _peer_uid(writer) != 0:
            return _error("only root is answered", None, "run as root")
        if len(self._connections) > MAX_CONNECTIONS:
            return _error("too many connections", None, "try again")
        try:
            request = json.loads(line)
        except ValueError:
            return _error("the request is no JSON", None, "send one line of JSON")
        if not isinstance(request, dict):
            return _error("the request is no object", None, 'send {"command": "status"}')
        return await self._answer(request)

    async def _answer(self, request: dict[str, Any]) -> Reply:
        command = request.get("command")
        self._seen(str(command))
        if command == "status":
            try:
                return {"result": await self._status()}
            except SpotgpuError as error:
                return _error(error.message, error.field, error.remedy)
        if command not in list(AdminAction):
            known = ", ".join(["status", *AdminAction])
            return _error(f"no command {command!r}", "command", f"one of {known}")
        owner = request.get("owner")
        if owner not in self._owners:
            return _error(f"no owner {owner!r}", "owner", f"one of {', '.join(self._owners)}")
        _log.info("an administrator asks", extra={"owner": owner, "command": command})
        self._tell(Admin(str(owner), AdminAction(str(command))))
        return {"result": await self._status()}


def _error(message: str, field: str | None, remedy: str | None) -> Reply:
    return {"error": message, "field": field, "remedy": remedy}


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    sock = writer.get_extra_info("socket")
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(data)[1])


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2.0)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except TimeoutError:
            return True
    return True
