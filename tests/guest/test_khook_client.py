# SPDX-License-Identifier: Apache-2.0
"""The client's promises that only a kernel can show."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.guestlib.khook import Rig, agent, arm, in_loop, rig, watch


@pytest.fixture(scope="module", name="rig")
def _rig() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded
        loaded.tidy()


@in_loop
async def test_dumps_and_commands_at_once_are_all_answered(rig: Rig) -> None:
    """A netlink socket has one dump at a time and refuses a second with EBUSY: status must not hit that."""
    owners = [rig.cgroup("owner") for _ in range(40)]
    async with agent() as khook:
        await arm(khook)
        for owner in owners:
            await watch(khook, owner)
        watches, holds, gates, stats, again = await asyncio.gather(
            khook.watches(), khook.holds(), khook.gates(), khook.stats(), khook.watches()
        )
    assert len(watches) == len(again) == len(owners)
    assert holds == []
    assert len(gates) == stats.now["gates"] == 1
