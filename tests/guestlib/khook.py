# SPDX-License-Identifier: Apache-2.0
"""khook and the simulated driver in a guest: loaded once a test file, and clean after each test.

A `Rig` has the modules loaded and knows every process and cgroup that a test makes, so that `tidy` can take
all of it away, whatever the test did, and say what khook did not give back.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from spotgpu_khook.abi import Classifier, GateState
from spotgpu_khook.client import EventStream, Khook
from spotgpu_khook.errors import KhookRefused
from spotgpu_khook.ids import cgroup_id, cgroup_key
from spotgpu_khook.model import (
    Event,
    Gate,
    HoldEvent,
    ReleaseEvent,
    Watch,
    WatchPolicy,
)
from tests.guestlib.containerd import wait_until
from tests.sim.nvsim import BUILD as SIM_BUILD
from tests.sim.nvsim import CGROUPS, Sim

KMOD = Path(os.environ.get("KHOOK_BUILD", "/opt/spotgpu/build/kmod/khook.ko"))
KMOD_SELFTEST = Path("/opt/spotgpu/build/kmod-selftest/khook.ko")
#: One test's longest life, and one step's: emulation on a host that is busy with other guests.
TEST_LIMIT_S = 240.0
STEP_LIMIT_S = 80.0
#: How late something prompt may seem to be there.
SLACK_MS = 3000
COUNT, PLAIN, CONTROL = "/dev/nvsim-count", "/dev/nvsim-plain", "/dev/nvidiactl"
#: A policy whose deadline no test reaches.
PATIENT = WatchPolicy(deadline_ms=300_000)
CLASSIFIERS = {COUNT: Classifier.ANY, PLAIN: Classifier.ANY, CONTROL: Classifier.NVIDIA_RM}
#: Where a program is when it starts in a cgroup: from its first instruction on.
_ENTER = 'echo 0 >"$0/cgroup.procs" && exec "$@"'

P = ParamSpec("P")
T = TypeVar("T")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Let an `async def` test run in an event loop of its own, no longer than TEST_LIMIT_S."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TEST_LIMIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: str, limit_s: float = STEP_LIMIT_S
) -> None:
    """Wait until `condition()` holds. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + limit_s
    while True:
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        if held:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        await asyncio.sleep(0.01)


class Call:
    """A program that a test has started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        """Its pid, which is also its thread group's."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    async def line(self) -> str:
        """Return its next line of output. Raises TimeoutError."""
        assert self.process.stdout
        async with asyncio.timeout(STEP_LIMIT_S):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def go(self) -> None:
        """Give it the line that it waits for (nvcall --wait)."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    async def end(self, limit_s: float = STEP_LIMIT_S) -> int:
        """Wait for its end, and return its exit status. Raises TimeoutError."""
        await until(self.ended, f"{self.process.args!r} ends", limit_s)
        assert self.process.returncode is not None
        return self.process.returncode

    async def result(self, limit_s: float = STEP_LIMIT_S) -> dict[str, Any]:
        """Wait for its end, and return the JSON of its last line (nvcall)."""
        assert self.process.stdout
        assert self.process.stderr
        async with asyncio.timeout(limit_s):
            out = await asyncio.to_thread(self.process.stdout.read)
        await self.end(limit_s)
        if not out.strip():
            raise AssertionError(f"{self.process.args!r}: no output: {self.process.stderr.read()}")
        return dict(json.loads(out.strip().splitlines()[-1]))

    def threads(self) -> list[int]:
        """Return its threads' ids but the first, which waits for the others (nvcall)."""
        tids = (int(task.name) for task in Path(f"/proc/{self.pid}/task").iterdir())
        return sorted(tid for tid in tids if tid != self.pid)

    def state(self, tid: int | None = None) -> str:
        """Return a thread's scheduler state, as /proc/PID/stat has it."""
        text = Path(f"/proc/{self.pid}/task/{tid or self.pid}/stat").read_text()
        return text[text.rindex(")") + 2]

    def signal_thread(self, tid: int, number: signal.Signals) -> None:
        """Send a signal to one thread."""
        libc = ctypes.CDLL(None, use_errno=True)
        sys_tgkill = 234
        if libc.syscall(sys_tgkill, self.pid, tid, int(number)):
            raise OSError(ctypes.get_errno(), "tgkill")

    def kill(self) -> None:
        """Kill it, reap it and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STEP_LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


class Rig:
    """The modules, and everything a test makes."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self._calls: list[Call] = []
        self._cgroups: list[Path] = []
        self._number = 0

    # Things that a test makes.

    def cgroup(self, name: str, parent: Path = CGROUPS) -> Path:
        """Make a cgroup; its name is made unique."""
        self._number += 1
        path = parent / f"{name}-{self._number}"
        path.mkdir()
        self._cgroups.append(path)
        return path

    def spawn(self, cgroup: Path, *argv: str | Path) -> Call:
        """Start a program in a cgroup."""
        call = Call(
            subprocess.Popen(
                ["/bin/sh", "-c", _ENTER, str(cgroup), *map(str, argv)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self._calls.append(call)
        return call

    def call(self, cgroup: Path, operation: str = "count", *words: str | int) -> Call:
        """Start nvcall in a cgroup."""
        return self.spawn(cgroup, SIM_BUILD / "bin/nvcall", operation, *map(str, words))

    def executed(self, name: str = "count") -> int:
        """Return how many ioctls the driver has executed (a name of nvsim's counters)."""
        return self.sim.counters()[name]

    # The end of a test.

    def tidy(self) -> None:
        """Take away what the test made. Raises if khook, or a process, doesn't let go of something.

        Gates stay armed: that costs nothing, and arming one anew takes a second under emulation.
        """
        calls, self._calls = self._calls, []
        cgroups, self._cgroups = [path for path in self._cgroups if path.exists()], []
        for cgroup in reversed(cgroups):
            (cgroup / "cgroup.freeze").write_text("0")
            (cgroup / "cgroup.kill").write_text("1")
        for call in calls:
            call.kill()
        asyncio.run(_forget())
        for cgroup in reversed(cgroups):
            _remove(cgroup)


def _remove(cgroup: Path) -> None:
    # Processes that are no child of ours die in their own time.
    wait_until(lambda: not populated(cgroup), STEP_LIMIT_S, f"{cgroup} is empty")
    cgroup.rmdir()


async def _forget() -> None:
    async with await Khook.connect() as khook:
        for watch in await khook.watches():
            await khook.undetect(watch.id)
        for fence in await khook.fences():
            await khook.unfence(fence.cgroup)
        await until(lambda: _no_holds(khook), "every hold ends")


async def _no_holds(khook: Khook) -> bool:
    return not await khook.holds()


@contextmanager
def rig(module: Path = KMOD, gpus: int = 1) -> Iterator[Rig]:
    """Have khook and the simulated driver loaded for the length of a `with`."""
    sim = Sim.load(gpus=gpus)
    load(module)
    try:
        yield Rig(sim)
    finally:
        unload()
        sim.unload()


def load(module: Path = KMOD) -> None:
    """Load khook. Raises CalledProcessError."""
    subprocess.run(["insmod", str(module)], check=True)


def unload() -> None:
    """Unload khook. Raises CalledProcessError while it is in use."""
    subprocess.run(["rmmod", "khook"], check=True, capture_output=True)


@asynccontextmanager
async def agent(orphan_ms: int = 3000, heartbeat_ms: int = 0) -> AsyncIterator[Khook]:
    """Be the agent for the length of an `async with`."""
    async with await Khook.connect() as khook:
        await khook.attach(orphan_ms, heartbeat_ms)
        yield khook


async def arm(khook: Khook, path: str = COUNT, **options: Any) -> Gate:
    """Arm the driver of a node."""
    fd = os.open(path, os.O_RDWR)
    try:
        return await khook.arm(fd, CLASSIFIERS[path], **options)
    finally:
        os.close(fd)


async def watch(khook: Khook, cgroup: Path, *spots: Path, **policy: Any) -> Watch:
    """Watch a cgroup, with a lease for each of `spots`; with `PATIENT`'s deadline unless one is given."""
    found = await khook.detect(cgroup_key(cgroup), replace(PATIENT, **policy))
    for spot in spots:
        await khook.lease(found.id, cgroup_id(spot))
    return found


async def get_watch(khook: Khook, number: int) -> Watch:
    """Return a watch by its id."""
    (found,) = [one for one in await khook.watches() if one.id == number]
    return found


async def get_gate(khook: Khook, number: int) -> Gate:
    """Return a gate by its id."""
    (found,) = [one for one in await khook.gates() if one.id == number]
    return found


async def held(khook: Khook, number: int, count: int = 1) -> None:
    """Wait until a watch holds so many calls."""

    async def holds() -> bool:
        return (await get_watch(khook, number)).holds == count

    await until(holds, f"watch {number} holds {count} calls")


async def total(khook: Khook, name: str) -> int:
    """Return one of khook's counters."""
    return (await khook.stats()).total[name]


async def reaches(khook: Khook, name: str, value: int) -> None:
    """Wait until one of khook's counters has exactly this value."""

    async def has() -> bool:
        return await total(khook, name) >= value

    await until(has, f"{name} reaches {value}")
    assert await total(khook, name) == value


async def gates_are(khook: Khook, state: GateState) -> None:
    """Wait until every gate is in a state."""

    async def are() -> bool:
        return all(gate.state is state for gate in await khook.gates())

    await until(are, f"every gate is {state.name}")


async def next_event(events: EventStream, kind: type[T], limit_s: float = STEP_LIMIT_S) -> T:
    """Return the next event, which must be of this kind."""
    async with asyncio.timeout(limit_s):
        event = await anext(events)
    assert isinstance(event, kind), event
    return event


async def next_hold(events: EventStream) -> HoldEvent:
    """Return the next event, which must be the begin of a return."""
    return await next_event(events, HoldEvent)


async def next_release(events: EventStream) -> ReleaseEvent:
    """Return the next event, which must be the end of a return."""
    return await next_event(events, ReleaseEvent)


async def no_event(events: EventStream, for_s: float = 0.2) -> None:
    """Make sure that there is no event for a while. Raises AssertionError with the one there is."""
    try:
        async with asyncio.timeout(for_s):
            event: Event = await anext(events)
    except TimeoutError:
        return
    raise AssertionError(f"an event too many: {event}")


async def refused(command: Awaitable[Any], errno: int, saying: str) -> None:
    """Make sure that a command is refused so, with a sentence that has these words."""
    with pytest.raises(KhookRefused) as caught:
        await command
    assert (caught.value.errno, saying in caught.value.reason) == (errno, True), caught.value


def populated(cgroup: Path) -> bool:
    """Whether any process is in a cgroup or below it."""
    return "populated 1" in (cgroup / "cgroup.events").read_text()


def sleepers(rig: Rig, cgroup: Path, count: int = 1) -> list[Call]:
    """Start processes in a cgroup that do nothing until killed."""
    return [rig.spawn(cgroup, "sleep", "1000") for _ in range(count)]


def console_allows(*patterns: str) -> None:
    """Announce console lines that the harness would take for a fault."""
    with (Path(os.environ["RESULTS"]) / "allow-console").open("a") as announced:
        announced.writelines(f"{pattern}\n" for pattern in patterns)
