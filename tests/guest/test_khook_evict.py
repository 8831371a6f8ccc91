# SPDX-License-Identifier: Apache-2.0
"""khook kills what a lease names, all of it and nothing else, and fences what is on its way out."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotgpu_khook.abi import OnHold, Outcome, ReleaseOn, WatchState
from spotgpu_khook.ids import cgroup_id, pidns_key, process_key
from spotgpu_khook.model import EmptyEvent, FencedEvent
from tests.guestlib.khook import (
    CONTROL,
    PATIENT,
    SLACK_MS,
    Call,
    Rig,
    agent,
    arm,
    get_watch,
    held,
    in_loop,
    next_event,
    next_hold,
    next_release,
    no_event,
    populated,
    refused,
    rig,
    sleepers,
    total,
    until,
    watch,
)
from tests.sim.nvsim import BUILD, CGROUPS


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded


@pytest.fixture(name="rig")
def _rig(loaded: Rig) -> Iterator[Rig]:
    yield loaded
    loaded.tidy()


@in_loop
async def test_the_lease_is_killed_at_the_first_hold(rig: Rig) -> None:
    owner, spot, other = rig.cgroup("owner"), rig.cgroup("spot"), rig.cgroup("other")
    async with agent() as khook:
        await arm(khook)
        killed = await total(khook, "killed")
        watching = await watch(khook, owner, spot)
        victims, bystanders = sleepers(rig, spot, 5), sleepers(rig, other, 2)
        await until(lambda: len(_members(spot)) == 5, "the spots sleep")
        call = rig.call(owner)
        events = khook.events()
        hold = await next_hold(events)
        empty = await next_event(events, EmptyEvent)
        assert [await victim.end() for victim in victims] == [-signal.SIGKILL] * 5
        assert not any(one.ended() for one in bystanders)
        assert not call.ended()
        assert await total(khook, "killed") == killed + 5
        await khook.release(watching.id)
        release = await next_release(events)
        assert (await call.result())["errors"] == 0
        (dumped,) = [one for one in await khook.watches() if one.id == watching.id]
    assert empty.eviction == release.eviction == dumped.eviction
    eviction = release.eviction
    assert hold.first_ns < eviction.kill_ns < eviction.killed_ns < eviction.empty_ns < release.release_ns
    assert eviction.passes >= 1


def _members(cgroup: Path) -> list[str]:
    return (cgroup / "cgroup.procs").read_text().split()


#: Forks as fast as it can, each child too, in sessions of their own, up to a limit that is reached always.
FORKERS = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os._exit(0)
    except BlockingIOError:
        pass
"""


@in_loop
async def test_fork_loops_and_daemons_are_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    (spot / "pids.max").write_text("100")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, spot, release_on=ReleaseOn.EMPTY)
        forker = rig.spawn(spot, sys.executable, "-S", "-c", FORKERS)
        await until(lambda: len(_members(spot)) > 50, "it forks")
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        release = await next_release(events)
        assert release.outcome is Outcome.EMPTY
        assert not populated(spot)
        assert await forker.end() == -signal.SIGKILL
        assert (await call.result())["errors"] == 0
        assert (await get_watch(khook, watching.id)).state is WatchState.OPEN


@in_loop
async def test_descendants_and_the_init_of_a_container_are_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    inside = rig.cgroup("container", spot)
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, spot, release_on=ReleaseOn.EMPTY)
        # The first process of a pid namespace ignores every signal that its own kernel does not force on it.
        rig.spawn(inside, "unshare", "--pid", "--fork", "sleep", "1000")
        await until(lambda: len(_members(inside)) == 2, "the container runs")
        call = rig.call(owner)
        assert (await call.result())["errors"] == 0
        assert not populated(spot)


#: A process whose first thread has ended.
HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=lambda: (print("ready", flush=True), time.sleep(1000))).start()
ctypes.CDLL(None).syscall(60, 0)
"""


@in_loop
async def test_a_process_without_its_first_thread_is_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, spot, release_on=ReleaseOn.EMPTY)
        victim = rig.spawn(spot, sys.executable, "-S", "-c", HEADLESS)
        assert await victim.line() == "ready"
        await until(lambda: victim.state() == "Z", "its first thread has ended")
        assert not victim.ended()
        call = rig.call(owner)
        assert (await call.result())["errors"] == 0
        assert await victim.end() == -signal.SIGKILL


@in_loop
async def test_a_frozen_spot_is_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, spot, release_on=ReleaseOn.EMPTY)
        victims = sleepers(rig, spot, 3)
        await until(lambda: len(_members(spot)) == 3, "the spots sleep")
        (spot / "cgroup.freeze").write_text("1")
        await until(lambda: "frozen 1" in (spot / "cgroup.events").read_text(), "they are frozen")
        call = rig.call(owner)
        assert (await call.result())["errors"] == 0
        assert [await victim.end() for victim in victims] == [-signal.SIGKILL] * 3


@in_loop
async def test_a_stopped_and_a_traced_spot_are_killed(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, spot, release_on=ReleaseOn.EMPTY)
        (victim,) = sleepers(rig, spot)
        await until(lambda: len(_members(spot)) == 1, "the spot sleeps")
        victim.process.send_signal(signal.SIGSTOP)
        await until(lambda: victim.state() == "T", "it is stopped")
        call = rig.call(owner)
        assert (await call.result())["errors"] == 0
        assert await victim.end() == -signal.SIGKILL


@in_loop
async def test_with_notify_the_agent_kills_and_khook_sees_the_lease_empty(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        killed = await total(khook, "killed")
        watching = await watch(khook, owner, spot, on_hold=OnHold.NOTIFY)
        (victim,) = sleepers(rig, spot)
        await until(lambda: len(_members(spot)) == 1, "the spot sleeps")
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        await no_event(events, 0.4)
        assert not victim.ended()
        victim.process.kill()
        empty = await next_event(events, EmptyEvent)
        assert (empty.eviction.kill_ns, empty.eviction.killed_ns) == (0, 0)
        assert empty.eviction.empty_ns > 0
        assert not call.ended()
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
        assert await total(khook, "killed") == killed


@in_loop
async def test_release_on_empty_without_a_lease_is_at_once(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, release_on=ReleaseOn.EMPTY)
        call = rig.call(owner)
        events = khook.events()
        hold, release = await next_hold(events), await next_release(events)
        assert release.outcome is Outcome.EMPTY
        assert release.release_ns - hold.first_ns < SLACK_MS * 1e6
        assert (await call.result())["errors"] == 0
        await no_event(events)


@in_loop
async def test_a_lease_named_while_the_owner_waits_is_killed_too(rig: Rig) -> None:
    owner, early, late = rig.cgroup("owner"), rig.cgroup("early"), rig.cgroup("late")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, early)
        (victim,) = sleepers(rig, late)
        await until(lambda: len(_members(late)) == 1, "the spot sleeps")
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        first = await next_event(events, EmptyEvent)
        await khook.lease(watching.id, cgroup_id(late))
        second = await next_event(events, EmptyEvent)
        assert second.eviction.empty_ns > first.eviction.empty_ns
        assert await victim.end() == -signal.SIGKILL
        assert set((await get_watch(khook, watching.id)).leases) == {cgroup_id(early), cgroup_id(late)}
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_hint_kills_without_a_hold(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, spot)
        victims = sleepers(rig, spot, 2)
        await until(lambda: len(_members(spot)) == 2, "the spots sleep")
        await khook.evict(watching.id)
        assert [await victim.end() for victim in victims] == [-signal.SIGKILL] * 2
        assert (await get_watch(khook, watching.id)).state is WatchState.WATCHING
        await no_event(khook.events())


@in_loop
async def test_an_unleased_cgroup_is_spared(rig: Rig) -> None:
    owner, spot, spared = rig.cgroup("owner"), rig.cgroup("spot"), rig.cgroup("spared")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, spot, spared, release_on=ReleaseOn.EMPTY)
        (bystander,) = sleepers(rig, spared)
        await until(lambda: len(_members(spared)) == 1, "it sleeps")
        await khook.unlease(watching.id, cgroup_id(spared))
        await refused(khook.unlease(watching.id, cgroup_id(spared)), errno.ENOENT, "no such lease")
        call = rig.call(owner)
        assert (await call.result())["errors"] == 0
        assert not bystander.ended()


@in_loop
async def test_the_owner_of_a_pid_namespace_is_spared_in_a_leased_cgroup(rig: Rig) -> None:
    both = rig.cgroup("both")
    nvcall = str(BUILD / "bin/nvcall")
    async with agent() as khook:
        await arm(khook)
        spot = rig.spawn(both, "sleep", "1000")
        owner = rig.spawn(both, "unshare", "--pid", "--fork", nvcall, "count", "--wait")
        assert await owner.line() == "ready"
        child = int(Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text())  # noqa: ASYNC240
        watching = await khook.detect(pidns_key(child), PATIENT)
        await khook.lease(watching.id, cgroup_id(both))
        owner.go()
        await held(khook, watching.id)
        assert await spot.end() == -signal.SIGKILL
        assert os.path.exists(f"/proc/{child}")  # noqa: PTH110, ASYNC240
        await khook.release(watching.id)


@in_loop
async def test_a_lease_that_would_kill_the_owner_or_the_sender_is_refused(rig: Rig) -> None:
    pod, spot = rig.cgroup("pod"), rig.cgroup("spot")
    owner = rig.cgroup("owner", pod)
    below = rig.cgroup("below", owner)
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        for cgroup, number, saying in (
            (owner, errno.EINVAL, "the watch's own"),
            (pod, errno.EINVAL, "the watch's own"),
            (below, errno.EINVAL, "the watch's own"),
            (CGROUPS, errno.EINVAL, "root cgroup"),
            (CGROUPS / "init", errno.EINVAL, "the sender is in this cgroup"),
        ):
            await refused(khook.lease(watching.id, cgroup_id(cgroup)), number, saying)
        await refused(khook.lease(watching.id, 2**40), errno.ENOENT, "no such cgroup")
        await khook.lease(watching.id, cgroup_id(spot))
        await refused(khook.lease(watching.id, cgroup_id(spot)), errno.EEXIST, "has this lease already")
        process = rig.call(spot, "count", "--wait")
        await process.line()
        of_process = await khook.detect(process_key(process.pid), PATIENT)
        await refused(khook.lease(of_process.id, cgroup_id(spot)), errno.EINVAL, "watched process")


@in_loop
async def test_a_watch_has_no_more_leases_than_it_can(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, *(rig.cgroup("spot") for _ in range(64)))
        assert len((await get_watch(khook, watching.id)).leases) == 64
        late = rig.cgroup("spot")
        await refused(khook.lease(watching.id, cgroup_id(late)), errno.ENOSPC, "as many leases as it can")


@in_loop
async def test_a_spot_that_cannot_die_costs_the_owner_the_deadline_and_no_more(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner, spot, deadline_ms=700, release_on=ReleaseOn.EMPTY)
        with rig.sim.fault("block", 0):
            victim = rig.call(spot, "compute")
            await until(lambda: _in_d_state(victim), "it is in D state")
            call = rig.call(owner)
            events = khook.events()
            await next_hold(events)
            release = await next_release(events)
            assert (release.outcome, release.eviction.empty_ns) == (Outcome.DEADLINE, 0)
            assert release.eviction.kill_ns > 0
            assert (await call.result())["errors"] == 0
            assert populated(spot)
        assert await victim.end() == -signal.SIGKILL


def _in_d_state(call: Call) -> bool:
    return any(call.state(tid) == "D" for tid in (call.pid, *call.threads()))


# Fences.


@in_loop
async def test_a_fenced_cgroup_can_neither_open_nor_call(rig: Rig) -> None:
    spot, other = rig.cgroup("spot"), rig.cgroup("other")
    inside = rig.cgroup("inside", spot)
    async with agent() as khook:
        await arm(khook, CONTROL)
        waiting = rig.call(inside, "query", "--wait")
        assert await waiting.line() == "ready"
        fenced = await total(khook, "fenced")
        await khook.fence(cgroup_id(spot))
        waiting.go()
        assert [one["errno"] for one in (await waiting.result())["calls"]] == [errno.ENODEV]
        event = await next_event(events := khook.events(), FencedEvent)
        assert (event.cgroup, event.pid, event.comm) == (cgroup_id(spot), waiting.pid, "nvcall")

        opener = rig.call(spot, "query")
        assert await opener.end() == 2
        assert opener.process.stderr is not None
        assert "No such device" in opener.process.stderr.read()
        assert (await rig.call(other, "query").result())["errors"] == 0
        await no_event(events)
        assert await total(khook, "fenced") == fenced + 2
        assert [(one.cgroup, one.calls) for one in await khook.fences()] == [(cgroup_id(spot), 2)]

        await refused(khook.fence(cgroup_id(spot)), errno.EEXIST, "fenced already")
        await khook.unfence(cgroup_id(spot))
        await refused(khook.unfence(cgroup_id(spot)), errno.ENOENT, "not fenced")
        assert (await rig.call(spot, "query").result())["errors"] == 0


@in_loop
async def test_an_owner_cannot_be_fenced_nor_a_fenced_cgroup_watched(rig: Rig) -> None:
    pod, spot = rig.cgroup("pod"), rig.cgroup("spot")
    owner = rig.cgroup("owner", pod)
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner)
        for cgroup in (owner, pod):
            await refused(khook.fence(cgroup_id(cgroup)), errno.EINVAL, "watched owner's")
        await refused(khook.fence(cgroup_id(CGROUPS)), errno.EINVAL, "root cgroup")
        await refused(khook.fence(cgroup_id(CGROUPS / "init")), errno.EINVAL, "would be shut out")
        await khook.fence(cgroup_id(spot))
        await refused(watch(khook, spot), errno.EINVAL, "is fenced")


@in_loop
async def test_a_fence_alone_makes_the_gates_live_and_a_removed_cgroup_is_unfenced(rig: Rig) -> None:
    spot = rig.cgroup("spot")
    number = cgroup_id(spot)
    async with agent() as khook:
        await arm(khook)
        await khook.fence(number)
        spot.rmdir()
        await asyncio.sleep(0.05)
        assert [one.cgroup for one in await khook.fences()] == [number]
        await khook.unfence(number)
        assert not await khook.fences()
