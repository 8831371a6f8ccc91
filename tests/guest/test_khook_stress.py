# SPDX-License-Identifier: Apache-2.0
"""Callers, signals and an agent without a plan, all at once: not one call is lost or made twice."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spotgpu_khook.abi import OnHold, ReleaseOn, ReturnOn
from spotgpu_khook.client import Khook
from spotgpu_khook.errors import EventsLost, KhookRefused
from spotgpu_khook.ids import cgroup_id, cgroup_key
from spotgpu_khook.model import WatchPolicy
from tests.guestlib.khook import COUNT, Call, Rig, agent, arm, in_loop, rig, until

SEED = 20261201
OWNERS, THREADS = 3, 4
#: After so long the agent lets go of everything, and the callers finish undisturbed.
LIMIT_S = 60.0


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded


@pytest.fixture(name="rig")
def _rig(loaded: Rig) -> Iterator[Rig]:
    yield loaded
    loaded.tidy()


class Whims:
    """An agent without a plan."""

    def __init__(self, khook: Khook, owners: list[Path], spots: list[Path]) -> None:
        self._khook = khook
        self._owners = owners
        self._spots = spots
        self._chance = random.Random(SEED)

    async def one(self) -> None:
        """Send a command; being refused is part of the game (a watch that is gone, a lease twice)."""
        with suppress(KhookRefused):
            await self._chance.choice(
                (self._detect, self._detect, self._release, self._release, self._undetect, self._lease,
                 self._unlease, self._fence, self._unfence, self._evict, self._release_hold, self._arm)
            )()  # fmt: skip

    async def _detect(self) -> None:
        chance = self._chance
        policy = WatchPolicy(
            return_on=chance.choice(list(ReturnOn)),
            deadline_ms=chance.choice((1, 5, 50, 60000)),
            on_hold=chance.choice(list(OnHold)),
            release_on=chance.choice(list(ReleaseOn)),
        )
        await self._khook.detect(cgroup_key(chance.choice(self._owners)), policy)

    async def _some_watch(self) -> int:
        watches = [one.id for one in await self._khook.watches()]
        return self._chance.choice(watches) if watches else 2**32 - 1

    async def _release(self) -> None:
        await self._khook.release(await self._some_watch())

    async def _undetect(self) -> None:
        await self._khook.undetect(await self._some_watch())

    async def _lease(self) -> None:
        await self._khook.lease(await self._some_watch(), cgroup_id(self._chance.choice(self._spots)))

    async def _unlease(self) -> None:
        await self._khook.unlease(await self._some_watch(), cgroup_id(self._chance.choice(self._spots)))

    async def _fence(self) -> None:
        await self._khook.fence(cgroup_id(self._chance.choice(self._spots)))

    async def _unfence(self) -> None:
        await self._khook.unfence(cgroup_id(self._chance.choice(self._spots)))

    async def _evict(self) -> None:
        await self._khook.evict(await self._some_watch())

    async def _release_hold(self) -> None:
        holds = await self._khook.holds()
        await self._khook.release_hold(self._chance.choice(holds).id if holds else 1)

    async def _arm(self) -> None:
        await arm(self._khook, COUNT)


async def _disturb(calls: list[Call]) -> None:
    """Interrupt, stop and continue the owners' threads."""
    chance = random.Random(SEED + 1)
    while True:
        call = chance.choice(calls)
        try:
            tids = call.threads()
            call.signal_thread(chance.choice(tids), chance.choice((signal.SIGUSR1, signal.SIGSTOP)))
            await asyncio.sleep(chance.random() / 50)
            call.process.send_signal(signal.SIGCONT)
        except (IndexError, OSError):
            pass  # it has ended
        await asyncio.sleep(0.01)


async def _listen(khook: Khook) -> None:
    events = khook.events()
    while True:
        try:
            async for _ in events:
                pass
        except EventsLost:
            continue


@pytest.mark.parametrize("calls_each", [300_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
@in_loop
async def test_whatever_happens_every_call_is_executed_once(rig: Rig, calls_each: int) -> None:
    owners = [rig.cgroup("owner") for _ in range(OWNERS)]
    spots = [rig.cgroup("spot") for _ in range(3)]
    before = rig.executed()
    async with agent() as khook:
        await arm(khook)
        whims = Whims(khook, owners, spots)
        words = ("-n", calls_each, "-t", THREADS, "--summary", "--handler")
        calls = [rig.call(owner, "count", *words) for owner in owners]
        tasks = [asyncio.ensure_future(_disturb(calls)), asyncio.ensure_future(_listen(khook))]
        rounds, end = 0, time.monotonic() + LIMIT_S
        while not all(call.ended() for call in calls) and time.monotonic() < end:
            await whims.one()
            rounds += 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in calls:
            if not call.ended():
                call.process.send_signal(signal.SIGCONT)
        for one in await khook.watches():
            await khook.undetect(one.id)
        results = [await call.result() for call in calls]
        await until(
            lambda: rig.executed() == before + OWNERS * THREADS * calls_each, "every call is executed"
        )
        assert [result["errors"] for result in results] == [0] * OWNERS
        assert rounds > 50
        stats = await khook.stats()
        assert (stats.now["holds"], stats.now["watches"]) == (0, 0)
        assert stats.total["returns"] == sum(
            stats.total[name]
            for name in ("released", "empty", "deadline", "deadline_eio", "orphan", "undetected")
        )
