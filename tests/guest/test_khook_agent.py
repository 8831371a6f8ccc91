# SPDX-License-Identifier: Apache-2.0
"""The agent may die, hang, be slow or never come: khook finishes what it began."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotgpu_khook.abi import OnHold, Outcome, WatchState
from spotgpu_khook.client import EventStream, Khook
from spotgpu_khook.errors import EventsLost, KhookClosed
from spotgpu_khook.model import OrphanEvent, ReleaseEvent
from tests.guestlib.khook import (
    SLACK_MS,
    STEP_LIMIT_S,
    Rig,
    agent,
    arm,
    get_watch,
    held,
    in_loop,
    next_event,
    next_hold,
    next_release,
    populated,
    refused,
    rig,
    sleepers,
    total,
    until,
    watch,
)
from tests.sim.nvsim import CGROUPS


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded


@pytest.fixture(name="rig")
def _rig(loaded: Rig) -> Iterator[Rig]:
    yield loaded
    loaded.tidy()


@in_loop
async def test_without_an_agent_the_kernel_evicts_alone_after_the_grace(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with await Khook.connect() as other, await Khook.observe() as events:
        orphans = await total(other, "orphan")
        # With notify khook leaves the killing to the agent, until there is none.
        async with agent(orphan_ms=500) as khook:
            await arm(khook)
            watching = await watch(khook, owner, spot, on_hold=OnHold.NOTIFY)
            (victim,) = sleepers(rig, spot)
            await until(lambda: populated(spot), "the spot sleeps")
            call = rig.call(owner)
            hold = await next_hold(events)
        died = time.monotonic_ns()
        orphan = await next_event(events, OrphanEvent)
        assert (orphan.watch, orphan.return_id) == (watching.id, hold.return_id)
        release = await next_release(events)
        assert release.outcome is Outcome.ORPHAN
        assert release.release_ns - died > 450e6
        assert died < release.eviction.kill_ns < release.eviction.empty_ns <= release.release_ns
        assert (await call.result())["errors"] == 0
        assert await victim.end() == -signal.SIGKILL
        assert not populated(spot)
        assert await total(other, "orphan") == orphans + 1


@in_loop
async def test_an_agent_in_the_grace_adopts_and_finishes(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with await Khook.connect() as other:
        orphans = await total(other, "orphan")
        async with agent(orphan_ms=100000) as khook:
            await arm(khook)
            watching = await watch(khook, owner, spot)
            call = rig.call(owner)
            await held(khook, watching.id)
        async with await Khook.connect() as second:
            assert await second.attach(100000, 0) == 1
            now = await get_watch(second, watching.id)
            assert (now.state, now.holds) == (WatchState.HOLDING, 1)
            await second.release(watching.id, now.return_id)
            assert (await next_release(second.events())).outcome is Outcome.RELEASED
            assert (await call.result())["errors"] == 0
        assert await total(other, "orphan") == orphans


@in_loop
async def test_a_return_after_the_grace_is_finished_by_the_kernel_at_once(rig: Rig) -> None:
    owner, spot, bare = rig.cgroup("owner"), rig.cgroup("spot"), rig.cgroup("bare")
    async with await Khook.connect() as other, await Khook.observe() as events:
        async with agent(orphan_ms=100) as khook:
            await arm(khook)
            await watch(khook, owner, spot, on_hold=OnHold.NOTIFY)
            await watch(khook, bare)
        await asyncio.sleep(0.3)
        (victim,) = sleepers(rig, spot)
        await until(lambda: populated(spot), "the spot sleeps")
        call = rig.call(owner)
        hold = await next_hold(events)
        await next_event(events, OrphanEvent)
        release = await next_release(events)
        assert (hold.return_id, release.outcome) == (release.return_id, Outcome.ORPHAN)
        assert (await call.result())["errors"] == 0
        assert await victim.end() == -signal.SIGKILL

        call = rig.call(bare)
        hold = await next_hold(events)
        await next_event(events, OrphanEvent)
        release = await next_release(events)
        assert release.outcome is Outcome.ORPHAN
        assert release.release_ns - hold.first_ns < SLACK_MS * 1e6
        assert (await call.result())["errors"] == 0
        assert (await other.stats()).agent_portid == 0


@in_loop
async def test_an_orphaned_return_still_has_its_deadline(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with await Khook.observe() as events, agent(orphan_ms=100) as khook:
        await arm(khook)
        await watch(khook, owner, spot, deadline_ms=900)
        with rig.sim.fault("block", 0):
            victim = rig.call(spot, "compute")
            await until(lambda: victim.state() == "D", "it is in D state")
            call = rig.call(owner)
            await next_hold(events)
            await khook.close()
            await next_event(events, OrphanEvent)
            release = await next_release(events)
            assert release.outcome is Outcome.DEADLINE
            assert (await call.result())["errors"] == 0
            assert populated(spot)


@in_loop
async def test_a_late_heartbeat_is_an_absent_agent(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with await Khook.observe() as events, agent(orphan_ms=300, heartbeat_ms=400) as khook:
        await arm(khook)
        await watch(khook, owner)
        call = rig.call(owner)
        hold = await next_hold(events)
        began = time.monotonic_ns()
        await khook.heartbeat()
        await next_event(events, OrphanEvent)
        release = await next_release(events)
        assert release.outcome is Outcome.ORPHAN
        assert release.release_ns - began > 650e6
        assert release.return_id == hold.return_id
        assert (await call.result())["errors"] == 0


@in_loop
async def test_heartbeats_in_time_keep_the_hold(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent(orphan_ms=200, heartbeat_ms=3000) as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(owner)
        await held(khook, watching.id)
        for _ in range(8):
            await asyncio.sleep(0.5)
            await khook.heartbeat()
        assert (await get_watch(khook, watching.id)).holds == 1
        assert (await khook.stats()).heartbeat_age_ns < SLACK_MS * 1e6
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_late_agent_is_back_with_its_next_command(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent(orphan_ms=3000, heartbeat_ms=800) as khook:
        await arm(khook)
        watching = await watch(khook, owner, deadline_ms=60000)
        call = rig.call(owner)
        await held(khook, watching.id)
        await asyncio.sleep(1.2)  # late, but not gone
        for _ in range(12):
            await khook.heartbeat()
            await asyncio.sleep(0.3)
        assert (await get_watch(khook, watching.id)).holds == 1
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_there_is_one_agent_unless_it_is_late(rig: Rig) -> None:
    async with agent() as khook, await Khook.connect() as other:
        await refused(other.attach(3000, 0), errno.EBUSY, "another agent is attached")
        await refused(other.heartbeat(), errno.ENOTCONN, "not the agent")
        await khook.attach(1000, 300)  # its own policy it may change
        assert ((await khook.stats()).orphan_ms, (await khook.stats()).heartbeat_ms) == (1000, 300)
        await asyncio.sleep(0.8)
        assert await other.attach(3000, 0) == 0
        await refused(khook.heartbeat(), errno.ENOTCONN, "not the agent")


@in_loop
async def test_the_agent_itself_is_never_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, spot)
        (victim,) = sleepers(rig, spot)
        await until(lambda: populated(spot), "the spot sleeps")
        (spot / "cgroup.procs").write_text("0")
        try:
            call = rig.call(owner)
            await held(khook, watching.id)
            assert await victim.end() == -signal.SIGKILL
            assert populated(spot)
            await khook.release(watching.id)
            assert (await call.result())["errors"] == 0
        finally:
            (CGROUPS / "init/cgroup.procs").write_text("0")


# Events that are lost.


def _make_returns(owner: Path, rig: Rig, count: int) -> None:
    async def make() -> None:
        async with await Khook.connect() as khook:
            for _ in range(count):
                await watch(khook, owner, deadline_ms=1)
                await rig.call(owner).result()

    asyncio.run(make())


async def _read_on(events: EventStream) -> None:
    async with asyncio.timeout(STEP_LIMIT_S):
        async for _ in events:
            pass


@in_loop
async def test_after_lost_events_the_dumps_say_what_is_true(rig: Rig) -> None:
    owner, noisy = rig.cgroup("owner"), rig.cgroup("noisy")
    async with agent(orphan_ms=300000) as khook:
        await arm(khook)
        lost = await total(khook, "events_lost")
        khook._channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        watching = await watch(khook, owner)
        call = rig.call(owner)
        events = khook.events()
        hold = await next_hold(events)

        # Nobody reads while returns come and go: this loop stands still.
        noise = threading.Thread(target=_make_returns, args=(noisy, rig, 12))
        noise.start()
        noise.join()
        with pytest.raises(EventsLost):
            await _read_on(events)
        assert await total(khook, "events_lost") > lost

        (truth,) = [one for one in await khook.holds() if one.watch == watching.id]
        assert (truth.id, truth.return_id, truth.caller) == (hold.hold, hold.return_id, hold.caller)
        assert truth.age_ns > 0
        assert (await get_watch(khook, watching.id)).state is WatchState.HOLDING

        # The same stream goes on.
        await khook.release(watching.id, truth.return_id)
        async with asyncio.timeout(STEP_LIMIT_S):
            async for event in events:
                if isinstance(event, ReleaseEvent) and event.watch == watching.id:
                    break
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_reader_that_takes_no_events_delays_no_answer(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        for _ in range(10):
            await watch(khook, owner, deadline_ms=1)
            assert (await rig.call(owner).result())["errors"] == 0
        assert len(await khook.watches()) == 1
        events = khook.events()
        for _ in range(10):
            await next_hold(events)
            await next_release(events)


@in_loop
async def test_a_closed_connection_ends_its_streams(rig: Rig) -> None:
    khook = await Khook.connect()
    await khook.attach(3000, 0)
    waiting = asyncio.ensure_future(anext(khook.events(), None))
    await asyncio.sleep(0)
    await khook.close()
    assert await waiting is None
    with pytest.raises(KhookClosed):
        await khook.stats()
    await khook.close()


@in_loop
async def test_an_observer_sees_what_the_agent_is_told(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook, await Khook.observe() as seen:
        await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(owner)
        told = khook.events()
        assert await next_hold(told) == await next_hold(seen)
        await khook.release(watching.id)
        assert await next_release(told) == await next_release(seen)
        await call.result()
