# SPDX-License-Identifier: Apache-2.0
"""A helper process that may hang: asked with a deadline, then killed, and left behind if it can't die.

NVML can block in an uninterruptible sleep for ever after a GPU falls off the bus, and reading /proc can wait
for a process that hangs in a driver. Such a call is never made in the agent itself. Requests and answers are
JSON lines on a socket that is the child's standard input; its standard output is its standard error, so that
a library's chatter breaks nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spotgpu_agent.errors import ChildError

MAX_ABANDONED: Final = 3  # of one kind and owner; then there is no answer until one of them is gone
MAX_LINE: Final = 16 << 20
START_S: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class Child:
    """One helper process, started ahead of need and replaced when it failed.

    Attributes:
        name: for logs.
        module: the Python module to run.
        abandoned: called once for every child that is left behind.
    """

    name: str
    module: str
    abandoned: Callable[[], None]
    _running: _Running | None = None
    _left: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _starting: asyncio.Task[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ChildError: it does not.
        """
        process, ours = await self._spawned()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        except (OSError, asyncio.CancelledError):
            ours.close()
            self._leave(process)
            raise
        running = _Running(process, reader, writer)
        greeted = False
        try:
            async with asyncio.timeout(START_S):
                await self._exchange(running, {"op": "hello"})
            greeted = True
        except TimeoutError:
            raise ChildError(f"{self.name} did not start in {START_S:g} s") from None
        finally:
            if not greeted:
                writer.close()
                self._leave(process)
        self._running = running

    async def _spawned(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A new process, made in a thread: an exec takes its time. A thread can't be broken off, so wait.

        The loop's own threads live as long as the loop, which matters: the child asks to die with the thread
        that made it (PR_SET_PDEATHSIG).
        """
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            process, ours = await spawning
            ours.close()
            self._leave(process)
            raise

    def pids(self) -> tuple[int, ...]:
        """Pids of this helper, living and left behind: what they have open is ours."""
        running = (self._running.process.pid,) if self._running else ()
        return running + tuple(process.pid for process in self._left)

    async def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """One request, one answer. Requests wait for one another.

        Args:
            request: what the module's answer() takes.
            deadline_s: seconds for the answer, waiting for earlier requests included.

        Raises:
            ChildError: no answer, in time or at all. A new child is started in the background.
        """
        try:
            async with asyncio.timeout(deadline_s), self._lock:
                running = self._running
                if running is None:
                    self._restart()
                    raise ChildError(f"{self.name} is being started anew")
                reply = await self._ask(running, request)
        except TimeoutError:
            raise ChildError(f"{self.name} gave no answer in {deadline_s:g} s") from None
        if "error" in reply:
            raise ChildError(f"{self.name}: {reply['error']}")
        return reply

    async def _ask(self, running: _Running, request: dict[str, Any]) -> dict[str, Any]:
        answered = False
        try:
            reply = await self._exchange(running, request)
            answered = True
        finally:
            # Also when out of time or cancelled: an answer that comes late would be taken for the next one's.
            if not answered:
                self._running = None
                running.writer.close()
                self._leave(running.process)
                self._restart()
        return reply

    async def _exchange(self, running: _Running, request: dict[str, Any]) -> dict[str, Any]:
        running.writer.write(json.dumps(request).encode() + b"\n")
        try:
            line = await running.reader.readline()
        except ConnectionError:
            line = b""
        except (OSError, ValueError) as error:
            raise ChildError(f"{self.name}: {error}") from error
        if not line:
            raise ChildError(f"{self.name} ended")
        return dict(json.loads(line))

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module], stdin=theirs.fileno(), stdout=2, start_new_session=True
            )
        return process, ours

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it; if that takes long it stays behind, to be reaped whenever it ends."""
        process.kill()
        self._left.append(process)
        if self._closed:
            return
        self.abandoned()
        _log.warning(
            "a child gave no answer and is left behind", extra={"child": self.name, "pid": process.pid}
        )

    def _restart(self) -> None:
        if self._closed or (self._starting is not None and not self._starting.done()):
            return
        self._left = [process for process in self._left if process.poll() is None]
        if len(self._left) >= MAX_ABANDONED:
            _log.error("children hang: no new one", extra={"child": self.name, "hanging": len(self._left)})
            return
        self._starting = asyncio.create_task(self._start_again(), name=f"restart {self.name}")

    async def _start_again(self) -> None:
        try:
            await self.start()
        except (ChildError, OSError) as error:
            _log.warning("a child can't be started", extra={"child": self.name, "why": str(error)})

    def closing(self) -> None:
        """No new one from now on, and none that is ended counts as left behind."""
        self._closed = True

    async def close(self) -> None:
        """End it. Does not wait for one that hangs."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._running is not None:
            self._running.writer.close()
            self._running.process.kill()
            self._left.append(self._running.process)
            self._running = None
        await asyncio.to_thread(_reap, self._left)


def _reap(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.returncode = -signal.SIGKILL  # killed, and it will end whenever its call does
