# SPDX-License-Identifier: Apache-2.0
"""Asynchronous tests without a plugin."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")
LIMIT_S = 60.0


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an `async def` test in a loop of its own, for LIMIT_S at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; the test's own limit ends it."""
    while not await condition():  # noqa: ASYNC110 - what is waited for happens in another process
        await asyncio.sleep(0.05)
