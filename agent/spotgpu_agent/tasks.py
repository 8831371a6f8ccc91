# SPDX-License-Identifier: Apache-2.0
"""The agent's tasks and callbacks. A bug in any of them ends them all: the kernel then hands back alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final

NS: Final = 1_000_000_000


class Tasks:
    """A task group that also minds the loop's callbacks. Use it in a `with`.

    After end() nothing new is started, so that whoever still calls is no error.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        self._mine: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self.ended = False

    async def __aenter__(self) -> Tasks:
        await self._group.__aenter__()
        self.spawn(self._watch(), "callbacks")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        await self._group.__aexit__(kind, error, trace)

    async def _watch(self) -> None:
        await self._broken

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something beside everything else."""
        if self.ended:
            work.close()
            return
        task = self._group.create_task(work, name=name)
        self._mine.add(task)
        task.add_done_callback(self._mine.discard)

    def guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """A callback of the loop whose bug ends everything, as a task's does."""

        def guarded(*args: object) -> None:
            if self.ended:
                return
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001 - raised again by _watch()
                if not self._broken.done():
                    self._broken.set_exception(error)

        return guarded

    def soon(self, call: Callable[..., None], *args: object) -> None:
        """Call it after what is due already."""
        self._loop.call_soon(self.guarded(call), *args)

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        """Call it after so many seconds."""
        return self._loop.call_later(delay_s, self.guarded(call), *args)

    def at(self, at_ns: int, call: Callable[..., None], *args: object) -> None:
        """Call it at a time of CLOCK_MONOTONIC, which is the loop's."""
        self._loop.call_at(at_ns / NS, self.guarded(call), *args)

    def end(self) -> None:
        """Break off everything."""
        if self.ended:
            return
        self.ended = True
        for task in list(self._mine):
            task.cancel()
