# SPDX-License-Identifier: Apache-2.0
"""A bug in any task or callback ends them all; after the end nothing starts."""

from __future__ import annotations

import asyncio
import time

import pytest

from spotgpu_agent.tasks import Tasks
from tests.unit.agent.helper import in_loop


def buggy() -> None:
    raise KeyError("a bug")


async def forever(cancelled: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(name)
        raise


@pytest.mark.parametrize("how", ["task", "soon", "later", "at"])
def test_a_bug_anywhere_ends_everything(how: str) -> None:
    cancelled: list[str] = []

    async def bug() -> None:
        buggy()

    async def run() -> None:
        async with Tasks() as tasks:
            tasks.spawn(forever(cancelled, "other"), "other")
            await asyncio.sleep(0)
            if how == "task":
                tasks.spawn(bug(), "bug")
            elif how == "soon":
                tasks.soon(buggy)
            elif how == "later":
                tasks.later(0.01, buggy)
            else:
                tasks.at(time.monotonic_ns() + 10_000_000, buggy)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(KeyError, match="a bug")
    assert cancelled == ["other"]


@in_loop
async def test_after_the_end_nothing_starts() -> None:
    cancelled: list[str] = []
    called: list[int] = []
    async with Tasks() as tasks:
        tasks.spawn(forever(cancelled, "one"), "one")
        tasks.soon(called.append, 1)
        await asyncio.sleep(0.01)
    assert (cancelled, called) == (["one"], [1])
    tasks.spawn(forever(cancelled, "two"), "two")
    tasks.soon(called.append, 2)
    await asyncio.sleep(0.01)
    assert (cancelled, called) == (["one"], [1])
