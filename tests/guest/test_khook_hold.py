# SPDX-License-Identifier: Apache-2.0
"""khook holds an owner's call still, lets it through once, and stays out of the way of everything else."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotgpu_khook.abi import AtDeadline, GateState, IoctlClass, Outcome, ReturnOn, WatchState
from spotgpu_khook.ids import cgroup_key, pidns_key, process_key
from spotgpu_khook.model import CgroupKey, PidnsKey, ProcessKey
from tests.guestlib.khook import (
    CONTROL,
    COUNT,
    PATIENT,
    SLACK_MS,
    Rig,
    agent,
    arm,
    gates_are,
    get_gate,
    get_watch,
    held,
    in_loop,
    next_hold,
    next_release,
    no_event,
    reaches,
    refused,
    rig,
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
async def test_a_call_is_held_and_executed_once_after_the_release(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        gate = await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner)
        events = khook.events()
        hold = await next_hold(events)
        await held(khook, watching.id)
        assert rig.executed() == before
        await khook.release(watching.id, hold.return_id)
        release = await next_release(events)
        result = await call.result()

    assert rig.executed() == before + 1
    (made,) = result["calls"]
    assert (result["errors"], made["result"]) == (0, before + 1)
    assert made["start_ns"] < hold.first_ns < release.release_ns < made["end_ns"]
    assert (hold.caller.pid, hold.caller.tid, hold.caller.comm) == (call.pid, made["tid"], "nvcall")
    assert (hold.caller.cgroup, hold.caller.gate, hold.caller.ioctl) == (owner.stat().st_ino, gate.id, 1)
    assert hold.caller.pidns == pidns_key(os.getpid()).inum
    assert hold.caller.device == (os.major(gate.dev), os.minor(gate.dev)) == _device(COUNT)
    assert hold.caller.ioctl_class is IoctlClass.COMPUTE
    assert release.caller == hold.caller
    assert (release.outcome, release.holds, release.first_ns) == (Outcome.RELEASED, 1, hold.first_ns)


def _device(path: str) -> tuple[int, int]:
    number = Path(path).stat().st_rdev
    return os.major(number), os.minor(number)


@in_loop
async def test_a_thousand_calls_are_one_return(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner, "count", "-t", 1000)
        events = khook.events()
        hold = await next_hold(events)
        await held(khook, watching.id, 1000)
        assert rig.executed() == before
        holds = await khook.holds()
        assert len({one.id for one in holds}) == len({one.caller.tid for one in holds}) == 1000
        assert {one.return_id for one in holds} == {hold.return_id}
        await khook.release(watching.id)
        release = await next_release(events)
        result = await call.result()
        await no_event(events)

    assert (release.holds, result["errors"]) == (1000, 0)
    assert sorted(one["result"] for one in result["calls"]) == list(range(before + 1, before + 1001))


@in_loop
async def test_a_caller_that_nobody_watches_passes(rig: Rig) -> None:
    owner, other = rig.cgroup("owner"), rig.cgroup("other")
    async with agent() as khook:
        await arm(khook)
        await watch(khook, owner)
        before = rig.executed()
        assert (await rig.call(other).result())["errors"] == 0
        assert (await rig.call(CGROUPS).result())["errors"] == 0
        assert rig.executed() == before + 2
        assert (await khook.stats()).total["returns"] == 0 or not await khook.holds()


@in_loop
async def test_queries_pass_and_compute_is_held(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook, CONTROL)
        watching = await watch(khook, owner)
        assert (await rig.call(owner, "query", "-n", 20).result())["errors"] == 0
        call = rig.call(owner, "compute")
        hold = await next_hold(khook.events())
        assert hold.caller.ioctl_class is IoctlClass.COMPUTE
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_with_return_on_any_a_query_is_a_return(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook, CONTROL)
        watching = await watch(khook, owner, return_on=ReturnOn.ANY)
        call = rig.call(owner, "query")
        hold = await next_hold(khook.events())
        assert hold.caller.ioctl_class is IoctlClass.QUERY
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_after_a_return_the_watch_is_open_until_it_is_set_again(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        events = khook.events()
        first = rig.call(owner)
        hold = await next_hold(events)
        await khook.release(watching.id)
        await next_release(events)
        await first.result()
        assert (await rig.call(owner).result())["errors"] == 0
        assert (await get_watch(khook, watching.id)).state is WatchState.OPEN
        await khook.release(watching.id)

        again = await watch(khook, owner)
        assert (again.id, again.state) == (watching.id, WatchState.WATCHING)
        await refused(khook.release(watching.id, hold.return_id), errno.ESTALE, "not the watch's current")
        second = rig.call(owner)
        assert (await next_hold(events)).return_id > hold.return_id
        await refused(khook.release(watching.id, hold.return_id), errno.ESTALE, "not the watch's current")
        assert not second.ended()
        await khook.release(watching.id)
        await second.result()


@in_loop
async def test_one_hold_can_be_released_alone(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        calls = [rig.call(owner) for _ in range(2)]
        await held(khook, watching.id, 2)
        (chosen,) = [one for one in await khook.holds() if one.caller.pid == calls[1].pid]
        await khook.release_hold(chosen.id)
        assert (await calls[1].result())["errors"] == 0
        assert rig.executed() == before + 1
        assert (await get_watch(khook, watching.id)).holds == 1
        await refused(khook.release_hold(chosen.id), errno.ENOENT, "no such hold")
        await khook.release(watching.id)
        await calls[0].result()
    assert rig.executed() == before + 2


@in_loop
async def test_gates_are_hooked_only_while_something_is_watched(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        gate = await arm(khook)
        await gates_are(khook, GateState.ARMED)
        watching = await watch(khook, owner)
        assert (await get_gate(khook, gate.id)).state is GateState.LIVE
        await khook.release(watching.id)  # open: nothing to stop
        await gates_are(khook, GateState.ARMED)
        idle = await get_gate(khook, gate.id)
        assert (await rig.call(owner).result())["errors"] == 0
        assert await get_gate(khook, gate.id) == idle


@in_loop
async def test_no_call_passes_between_the_reply_to_detect_and_the_release(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    rounds = 30
    async with agent() as khook:
        await arm(khook)
        before = rig.executed()
        call = rig.call(owner, "count", "-n", 5_000_000, "--summary")
        await until(lambda: rig.executed() > before + 1000, "the caller calls")
        events = khook.events()
        for _ in range(rounds):
            watching = await watch(khook, owner)
            at_reply = rig.executed()
            await next_hold(events)
            await held(khook, watching.id)
            await asyncio.sleep(0.02)
            # One call may have entered the driver before the reply.
            assert rig.executed() - at_reply <= 1
            stopped = rig.executed()
            await khook.release(watching.id)
            await next_release(events)
            await until(lambda stopped=stopped: rig.executed() > stopped, "the caller goes on")  # type: ignore[misc]
        call.kill()
        assert (await khook.stats()).now["holds"] == 0


# What a held task may be subjected to.


@in_loop
async def test_a_held_task_can_be_killed(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner)
        await held(khook, watching.id)
        call.process.kill()
        assert await call.end() == -signal.SIGKILL
        await held(khook, watching.id, 0)
        now = await get_watch(khook, watching.id)
        assert now.state is WatchState.HOLDING
        await khook.release(watching.id, now.return_id)
    assert rig.executed() == before


@in_loop
async def test_a_handler_without_sa_restart_runs_and_the_call_waits_on(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before, restarted = rig.executed(), await total(khook, "restarted")
        call = rig.call(owner, "count", "--handler")
        events = khook.events()
        await next_hold(events)
        await held(khook, watching.id)
        (tid,) = call.threads()
        for number in range(1, 6):
            call.signal_thread(tid, signal.SIGUSR1)
            await reaches(khook, "restarted", restarted + number)
            await held(khook, watching.id)
        assert rig.executed() == before
        await khook.release(watching.id)
        release = await next_release(events)
        result = await call.result()
        await no_event(events)
    assert (result["errors"], result["signals"], release.holds) == (0, 5, 1)
    assert rig.executed() == before + 1


#: An owner whose handler has SA_RESTART.
RESTARTING = """
import fcntl, os, signal
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
signal.siginterrupt(signal.SIGUSR1, False)
fd = os.open("/dev/nvsim-count", os.O_RDWR)
print("ready", flush=True)
print(fcntl.ioctl(fd, 1), len(handled), flush=True)
"""


@in_loop
async def test_a_handler_with_sa_restart_runs_and_the_call_waits_on(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before, restarted = rig.executed(), await total(khook, "restarted")
        call = rig.spawn(owner, sys.executable, "-S", "-c", RESTARTING)
        await held(khook, watching.id)
        call.process.send_signal(signal.SIGUSR1)
        await reaches(khook, "restarted", restarted + 1)
        await held(khook, watching.id)
        await khook.release(watching.id)
        assert await call.line() == "ready"
        # Python runs its handler once the call has returned: one signal, one call.
        assert await call.line() == f"{before + 1} 1"
    assert rig.executed() == before + 1


@in_loop
async def test_stop_and_continue_are_transparent(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner)
        await held(khook, watching.id)
        (tid,) = call.threads()
        await until(lambda: call.state(tid) == "S", "it sleeps, where signals reach it")
        call.process.send_signal(signal.SIGSTOP)
        await until(lambda: call.state(tid) == "T", "it is stopped")
        await held(khook, watching.id, 0)
        call.process.send_signal(signal.SIGCONT)
        await held(khook, watching.id)
        assert rig.executed() == before
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
    assert rig.executed() == before + 1


@in_loop
async def test_a_release_while_it_is_stopped_is_not_missed(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner)
        await held(khook, watching.id)
        call.process.send_signal(signal.SIGSTOP)
        await held(khook, watching.id, 0)
        await khook.release(watching.id)
        await asyncio.sleep(0.1)
        assert rig.executed() == before
        call.process.send_signal(signal.SIGCONT)
        assert (await call.result())["errors"] == 0
    assert rig.executed() == before + 1


PTRACE_ATTACH, PTRACE_DETACH = 16, 17
WALL = 0x40000000


def _ptrace(request: int, tid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, tid, None, None) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


@contextmanager
def _debugging(tid: int) -> Iterator[None]:
    _ptrace(PTRACE_ATTACH, tid)
    try:
        assert os.WIFSTOPPED(os.waitpid(tid, WALL)[1])
        yield
    finally:
        _ptrace(PTRACE_DETACH, tid)


@in_loop
async def test_a_debugger_may_attach_and_detach(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner)
        await held(khook, watching.id)
        (tid,) = call.threads()
        for _ in range(3):
            with _debugging(tid):
                assert (await get_watch(khook, watching.id)).holds == 0
            await held(khook, watching.id)
        assert rig.executed() == before
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
    assert rig.executed() == before + 1


@in_loop
async def test_the_deadline_runs_on_while_a_debugger_has_stopped_the_owner(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, deadline_ms=600)
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        await held(khook, watching.id)
        (tid,) = call.threads()
        with _debugging(tid):
            assert (await next_release(events)).outcome is Outcome.DEADLINE
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_held_owner_can_be_frozen_and_thawed(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner, "count", "-t", 10)
        await held(khook, watching.id, 10)
        for _ in range(3):
            (owner / "cgroup.freeze").write_text("1")
            await until(lambda: "frozen 1" in (owner / "cgroup.events").read_text(), "it is frozen")
            (owner / "cgroup.freeze").write_text("0")
            await held(khook, watching.id, 10)
        assert rig.executed() == before
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
    assert rig.executed() == before + 10


# The deadline.


@in_loop
async def test_at_the_deadline_the_owner_goes_through(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        count = await total(khook, "deadline")
        watching = await watch(khook, owner, deadline_ms=300)
        call = rig.call(owner, "count", "-t", 5)
        events = khook.events()
        hold, release = await next_hold(events), await next_release(events)
        assert (await call.result())["errors"] == 0
        assert (await get_watch(khook, watching.id)).state is WatchState.OPEN
        assert await total(khook, "deadline") == count + 1
    assert release.outcome is Outcome.DEADLINE
    assert 300 <= (release.release_ns - hold.first_ns) / 1e6 < 300 + SLACK_MS


@in_loop
async def test_at_the_deadline_calls_may_fail_instead(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, deadline_ms=300, at_deadline=AtDeadline.EIO)
        before, count = rig.executed(), await total(khook, "deadline_eio")
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        assert (await next_release(events)).outcome is Outcome.DEADLINE_EIO
        assert [one["errno"] for one in (await call.result())["calls"]] == [errno.EIO]
        assert (await get_watch(khook, watching.id)).state is WatchState.BLOCKED
        # Blocked: fails at once, and begins no return.
        assert [one["errno"] for one in (await rig.call(owner).result())["calls"]] == [errno.EIO]
        assert rig.executed() == before
        await khook.release(watching.id)
        assert (await rig.call(owner).result())["errors"] == 0
        await no_event(events)
        assert await total(khook, "deadline_eio") == count + 1


@in_loop
async def test_a_new_deadline_counts_from_the_first_hold(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner, deadline_ms=60000)
        call = rig.call(owner)
        events = khook.events()
        await next_hold(events)
        again = await watch(khook, owner, deadline_ms=400)
        assert (again.id, again.state) == (watching.id, WatchState.HOLDING)
        release = await next_release(events)
        assert release.outcome is Outcome.DEADLINE
        assert 400 <= (release.release_ns - release.first_ns) / 1e6 < 400 + SLACK_MS
        assert (await call.result())["errors"] == 0


# Whom a watch holds.


@in_loop
async def test_undetect_lets_the_held_through(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(owner, "count", "-t", 20)
        await held(khook, watching.id, 20)
        events = khook.events()
        await next_hold(events)
        await khook.undetect(watching.id)
        release = await next_release(events)
        assert (release.outcome, release.holds) == (Outcome.UNDETECTED, 20)
        assert (await call.result())["errors"] == 0
        assert not await khook.watches()
        await refused(khook.undetect(watching.id), errno.ENOENT, "no such watch")


@in_loop
async def test_two_owners_do_not_wait_for_each_other(rig: Rig) -> None:
    owners = [rig.cgroup("owner") for _ in range(2)]
    async with agent() as khook:
        await arm(khook)
        watches = [await watch(khook, owner) for owner in owners]
        calls = [rig.call(owner) for owner in owners]
        for watching in watches:
            await held(khook, watching.id)
        await khook.release(watches[1].id)
        assert (await calls[1].result())["errors"] == 0
        assert (await get_watch(khook, watches[0].id)).holds == 1
        await khook.release(watches[0].id)
        assert (await calls[0].result())["errors"] == 0


@in_loop
async def test_descendants_of_a_cgroup_are_held(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    deep = rig.cgroup("c", rig.cgroup("b", rig.cgroup("a", owner)))
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(deep)
        hold = await next_hold(khook.events())
        assert (hold.watch, hold.caller.cgroup) == (watching.id, deep.stat().st_ino)
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_cgroup_sixty_levels_deep_is_held(rig: Rig) -> None:
    path = rig.cgroup("d")
    for _ in range(62):
        path = rig.cgroup("d", path)
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, path)
        assert (await rig.call(path.parent).result())["errors"] == 0
        call = rig.call(path)
        await held(khook, watching.id)
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_caller_in_two_watches_is_held_by_both(rig: Rig) -> None:
    pod = rig.cgroup("pod")
    container = rig.cgroup("container", pod)
    async with agent() as khook:
        await arm(khook)
        watches = [await watch(khook, pod), await watch(khook, container)]
        before = rig.executed()
        call = rig.call(container)
        for watching in watches:
            await held(khook, watching.id)
            assert rig.executed() == before
            await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
    assert rig.executed() == before + 1


@in_loop
async def test_a_pid_namespace_is_held_with_those_below_it(rig: Rig) -> None:
    cgroup = rig.cgroup("owner")
    # The shells tell their first process's pid out here, wait, and call: one namespace, and one inside it.
    script = 'read -r _; exec "$0" count'
    nvcall = "/opt/spotgpu/build/sim/bin/nvcall"
    outer = ["unshare", "--pid", "--fork", "--kill-child"]
    inner = [*outer, *outer, "sh", "-c", script, nvcall]
    async with agent() as khook:
        await arm(khook)
        one = rig.spawn(cgroup, *outer, "sh", "-c", script, nvcall)
        two = rig.spawn(cgroup, *inner)
        await until(lambda: _children(one.pid) != [] and _grandchildren(two.pid) != [], "they are there")
        keys = [pidns_key(_children(call.pid)[0]) for call in (one, two)]
        watches = [await khook.detect(key, PATIENT) for key in keys]
        for call, watching in zip((one, two), watches, strict=True):
            call.go()
            await held(khook, watching.id)
        (below,) = [found for found in await khook.holds() if found.watch == watches[1].id]
        assert below.caller.pidns == pidns_key(_grandchildren(two.pid)[0]).inum != keys[1].inum
        assert (await rig.call(cgroup).result())["errors"] == 0
        for call, watching in zip((one, two), watches, strict=True):
            await khook.release(watching.id)
            assert (await call.result())["errors"] == 0


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _grandchildren(pid: int) -> list[int]:
    return [below for child in _children(pid) for below in _children(child)]


@in_loop
async def test_one_process_is_held_by_pid_and_start(rig: Rig) -> None:
    cgroup = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        call, other = (rig.call(cgroup, "count", "--wait") for _ in range(2))
        assert (await call.line(), await other.line()) == ("ready", "ready")
        key = process_key(call.pid)
        stranger = ProcessKey(key.pid, key.start_ticks - 1)
        await refused(khook.detect(stranger, PATIENT), errno.ESRCH, "the pid was reused")
        watching = await khook.detect(key, PATIENT)
        assert watching.key == key
        other.go()
        assert (await other.result())["errors"] == 0
        call.go()
        await held(khook, watching.id)
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


def _next_pid(pid: int) -> None:
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))


@in_loop
async def test_a_reused_pid_is_another_process(rig: Rig) -> None:
    cgroup = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        first = rig.call(cgroup, "count", "--wait")
        await first.line()
        watching = await khook.detect(process_key(first.pid), PATIENT)
        first.kill()
        for _ in range(20):
            _next_pid(first.pid)
            second = rig.call(cgroup)
            if second.pid == first.pid:
                break
        assert second.pid == first.pid
        assert (await second.result())["errors"] == 0
        assert (await get_watch(khook, watching.id)).return_id == 0


@in_loop
async def test_a_key_that_would_stop_the_node_or_the_sender_is_refused(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        for key, number, saying in (
            (cgroup_key(CGROUPS), errno.EINVAL, "root cgroup"),
            (cgroup_key(CGROUPS / "init"), errno.EPERM, "would hold itself"),
            (CgroupKey(2**40), errno.ENOENT, "no such cgroup"),
            (pidns_key(1), errno.EINVAL, "initial pid namespace"),
            (PidnsKey(1), errno.ENOENT, "no process lives in"),
            (process_key(os.getpid()), errno.EPERM, "would hold itself"),
            (ProcessKey(2**22 - 1, 1), errno.ESRCH, "no process has this pid"),
        ):
            await refused(khook.detect(key, PATIENT), number, saying)
        assert not await khook.watches()
        gone = owner.stat().st_ino
        owner.rmdir()
        await refused(khook.detect(CgroupKey(gone), PATIENT), errno.ENOENT, "no such cgroup")


@in_loop
async def test_a_removed_cgroup_leaves_a_watch_that_can_be_forgotten(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        owner.rmdir()
        assert (await get_watch(khook, watching.id)).key == watching.key
        await khook.undetect(watching.id)
        assert not await khook.watches()
