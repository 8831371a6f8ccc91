# SPDX-License-Identifier: Apache-2.0
"""How a driver's handler is hooked and given back, and what happens to the module that does it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotgpu_khook.abi import Classifier, GateState, Method
from spotgpu_khook.client import Khook
from spotgpu_khook.errors import KhookMissing
from spotgpu_khook.ids import cgroup_id
from spotgpu_khook.model import GateLostEvent
from tests.guestlib.khook import (
    CONTROL,
    COUNT,
    KMOD_SELFTEST,
    PLAIN,
    Rig,
    agent,
    arm,
    gates_are,
    get_gate,
    get_watch,
    held,
    in_loop,
    load,
    next_event,
    next_hold,
    next_release,
    refused,
    rig,
    unload,
    until,
    watch,
)
from tests.sim.nvsim import BUILD, Sim

TRACING = Path("/sys/kernel/tracing")


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded


@pytest.fixture(name="rig")
def _rig(loaded: Rig) -> Iterator[Rig]:
    yield loaded
    loaded.tidy()


@in_loop
async def test_a_gate_says_what_it_hooks(rig: Rig) -> None:
    async with agent() as khook:
        gate = await arm(khook, CONTROL)
        assert (gate.module, gate.function) == ("nvsim", "nvidia_unlocked_ioctl")
        assert (gate.classifier, gate.method, gate.holds) == (Classifier.NVIDIA_RM, Method.FTRACE, 0)
        assert (gate.state, gate.warning) == (GateState.LIVE, None)
        # Another node of the same driver is the same gate; another classifier is refused.
        fd = os.open("/dev/nvidia0", os.O_RDWR)
        try:
            assert (await khook.arm(fd, Classifier.NVIDIA_RM)).id == gate.id
            await refused(khook.arm(fd, Classifier.ANY), errno.EEXIST, "another classifier")
        finally:
            os.close(fd)
        bare = await arm(khook, COUNT)
        assert bare.warning is not None
        assert "no open of its own" in bare.warning


@in_loop
async def test_what_is_no_device_is_not_armed(rig: Rig) -> None:
    read, write = os.pipe()
    regular = os.open(__file__, os.O_RDONLY)
    path_only = os.open(COUNT, os.O_PATH)
    null = os.open("/dev/null", os.O_RDWR)
    try:
        async with agent() as khook:
            for fd, number, saying in (
                (read, errno.ENOTTY, "not of a character device"),
                (regular, errno.ENOTTY, "not of a character device"),
                (null, errno.ENOTTY, "handles no ioctl"),
                (path_only, errno.EBADF, "no such fd open"),
                (9999, errno.EBADF, "no such fd open"),
            ):
                await refused(khook.arm(fd, Classifier.ANY), number, saying)
            await refused(khook.disarm(9999), errno.ENOENT, "no such gate")
    finally:
        for fd in (read, write, regular, path_only, null):
            os.close(fd)


@in_loop
async def test_a_function_without_fentry_is_held_by_a_kprobe(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await refused(arm(khook, PLAIN, method=Method.FTRACE), errno.EOPNOTSUPP, "can't be hooked")
        gate = await arm(khook, PLAIN)
        assert gate.method is Method.KPROBE
        watching = await watch(khook, owner)
        before = rig.executed("plain")
        call = rig.call(owner, "plain", "-t", 20)
        await held(khook, watching.id, 20)
        assert rig.executed("plain") == before
        (tid, *_) = call.threads()
        await until(lambda: call.state(tid) == "S", "it sleeps, where signals reach it")
        assert (await rig.call(rig.cgroup("other"), "plain").result())["errors"] == 0
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
        assert rig.executed("plain") == before + 21
        await khook.undetect(watching.id)
        await gates_are(khook, GateState.ARMED)
        await khook.disarm(gate.id)


@in_loop
async def test_a_kprobe_on_an_ftrace_entry_is_refused(rig: Rig) -> None:
    async with agent() as khook:
        await khook.disarm((await arm(khook, COUNT)).id)
        await refused(arm(khook, COUNT, method=Method.KPROBE), errno.EOPNOTSUPP, "can't be hooked")
        assert (await arm(khook, COUNT, method=Method.FTRACE)).method is Method.FTRACE


def _define(probe: str) -> None:
    # Opened to append, which keeps other probes; Python's own append mode would seek.
    fd = os.open(TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, probe.encode())
    finally:
        os.close(fd)


@contextmanager
def _kretprobe(function: str) -> Iterator[Path]:
    _define(f"r:khooktest/returns {function}")
    enable = TRACING / "events/khooktest/returns/enable"
    try:
        enable.write_text("1")
        yield TRACING / "trace"
    finally:
        enable.write_text("0")
        _define("-:khooktest/returns")


@in_loop
async def test_a_kretprobe_of_somebody_else_does_no_harm(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        with _kretprobe("nvsim_count_ioctl"):
            watching = await watch(khook, owner)
            before = rig.executed()
            call = rig.call(owner)
            await held(khook, watching.id)
            await khook.release(watching.id)
            assert (await call.result())["errors"] == 0
            assert rig.executed() == before + 1


@in_loop
async def test_a_32_bit_caller_is_held_at_its_own_entry(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed("count_compat")
        call = rig.spawn(owner, BUILD / "bin/nvcall32", COUNT, "1", "1")
        await held(khook, watching.id)
        assert rig.executed("count_compat") == before
        await khook.release(watching.id)
        assert await call.end() == 0
        assert rig.executed("count_compat") == before + 1


@in_loop
async def test_a_gate_with_holds_is_not_disarmed(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        gate = await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(owner)
        await held(khook, watching.id)
        assert (await get_gate(khook, gate.id)).holds == 1
        await refused(khook.disarm(gate.id), errno.EBUSY, "release them first")
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
        await khook.disarm(gate.id)
        await refused(khook.disarm(gate.id), errno.ENOENT, "no such gate")
        assert gate.id not in [one.id for one in await khook.gates()]


@in_loop
async def test_ftrace_cannot_be_switched_off_under_a_live_gate(rig: Rig) -> None:
    async with agent() as khook:
        await arm(khook)
        await watch(khook, rig.cgroup("owner"))
        with pytest.raises(OSError, match=r"busy|not supported"):
            Path("/proc/sys/kernel/ftrace_enabled").write_text("0")  # noqa: ASYNC240


@contextmanager
def _ftrace_off() -> Iterator[bool]:
    """Switch ftrace off, where the kernel lets one do that (the knob is going: v7 does not)."""
    knob = Path("/proc/sys/kernel/ftrace_enabled")
    try:
        knob.write_text("0")
    except OSError:
        assert int(os.uname().release.partition(".")[0]) >= 7
        yield False
        return
    try:
        yield True
    finally:
        knob.write_text("1")


@in_loop
async def test_where_ftrace_is_off_arming_is_refused_with_the_reason(rig: Rig) -> None:
    async with agent() as khook:
        await khook.disarm((await arm(khook)).id)
        await gates_are(khook, GateState.ARMED)
        with _ftrace_off() as off:
            if off:
                await refused(arm(khook), errno.EBUSY, "ftrace_enabled is 0")
        assert (await arm(khook)).method is Method.FTRACE


@in_loop
async def test_a_driver_that_goes_is_told_and_comes_back_as_the_same_gate(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        gate = await arm(khook)
        watching = await watch(khook, owner)
        events = khook.events()
        known = {one.id for one in await khook.gates() if one.state is not GateState.LOST}
        rig.sim.unload()
        lost = {(await next_event(events, GateLostEvent)).gate for _ in known}
        assert lost == known
        assert (await get_gate(khook, gate.id)).state is GateState.LOST

        rig.sim = Sim.load(gpus=1)
        assert (await rig.call(owner).result())["errors"] == 0
        again = await arm(khook)
        assert (again.id, again.state) == (gate.id, GateState.LIVE)
        call = rig.call(owner)
        await next_hold(events)
        await khook.release(watching.id)
        await next_release(events)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_a_driver_cannot_go_while_its_callers_are_held(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        call = rig.call(owner)
        await held(khook, watching.id)
        with pytest.raises(subprocess.CalledProcessError):
            rig.sim.unload()
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0


@in_loop
async def test_khook_is_not_unloaded_with_a_hundred_holders(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watching = await watch(khook, owner)
        before = rig.executed()
        call = rig.call(owner, "count", "-t", 100)
        await held(khook, watching.id, 100)
        with pytest.raises(subprocess.CalledProcessError) as refusal:
            unload()
        assert b"in use" in refusal.value.stderr
        assert (await get_watch(khook, watching.id)).holds == 100
        assert rig.executed() == before
        await khook.release(watching.id)
        assert (await call.result())["errors"] == 0
        assert rig.executed() == before + 100
        await until(_unloads, "khook is unloaded")
        with pytest.raises(KhookMissing):
            await khook.stats()
        with pytest.raises(KhookMissing):
            await Khook.connect()
        load()
    assert rig.executed() == before + 100


def _unloads() -> bool:
    # A caller that has just been let through leaves the wrapper a moment later.
    try:
        unload()
    except subprocess.CalledProcessError:
        return False
    return True


@in_loop
async def test_khook_unloaded_while_it_watches_leaves_nothing(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    async with agent() as khook:
        await arm(khook)
        await arm(khook, PLAIN)
        await watch(khook, owner, spot)
        await khook.fence(cgroup_id(spot))
    unload()
    hooked = (TRACING / "enabled_functions").read_text()
    assert "nvsim" not in hooked, hooked
    assert (await rig.call(owner).result())["errors"] == 0
    assert (await rig.call(spot).result())["errors"] == 0
    load()


@pytest.mark.parametrize("times", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_khook_is_loaded_and_unloaded_many_times(rig: Rig, times: int) -> None:
    for _ in range(times):
        unload()
        load()
    with Path("/proc/modules").open() as modules:
        (line,) = [line for line in modules if line.startswith("khook ")]
    assert line.split()[2] == "0"


@in_loop
async def test_the_selftests_pass_at_load(rig: Rig) -> None:
    unload()
    load(KMOD_SELFTEST)
    async with await Khook.connect() as khook:
        assert (await khook.stats()).selftests > 60
    unload()
    load()
    async with await Khook.connect() as khook:
        assert (await khook.stats()).selftests == 0


@contextmanager
def _tracing() -> Iterator[Path]:
    enable = TRACING / "events/khook/enable"
    (TRACING / "trace").write_text("")
    enable.write_text("1")
    try:
        yield TRACING / "trace"
    finally:
        enable.write_text("0")
        (TRACING / "trace").write_text("")


@in_loop
async def test_tracepoints_fire(rig: Rig) -> None:
    owner, spot = rig.cgroup("owner"), rig.cgroup("spot")
    with _tracing() as trace:
        async with agent() as khook:
            await arm(khook)
            watching = await watch(khook, owner, deadline_ms=300)
            call = rig.call(owner, "count", "-t", 3)
            events = khook.events()
            hold, release = await next_hold(events), await next_release(events)
            assert (await call.result())["errors"] == 0
            await khook.fence(cgroup_id(spot))
            assert (await rig.call(spot).result())["errors"] == 1
        lines = trace.read_text().splitlines()
    found = [line.partition(": ")[2].strip() for line in lines if not line.startswith("#")]
    names = sorted(re.sub(r":.*", "", line) for line in found)
    assert names == ["failopen", "fence", "hold", "hold", "hold", "release"]
    text = "\n".join(found)
    assert f"hold: watch={watching.id} return={hold.return_id} hold={hold.hold} " in text
    assert f"release: watch={watching.id} return={hold.return_id} outcome=deadline " in text
    assert f"waited_ns={release.release_ns - release.first_ns} holds=3" in text
    assert f"failopen: watch={watching.id} return={hold.return_id} why=deadline" in text
    assert f"fence: cgroup={cgroup_id(spot)} " in text
