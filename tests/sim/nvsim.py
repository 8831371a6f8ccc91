# SPDX-License-Identifier: Apache-2.0
"""Load the simulated GPU, break it, and read what it saw. Standard library only: it runs in every guest."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(os.environ.get("NVSIM_BUILD", "/opt/spotgpu/build/sim"))
DEBUG = Path("/sys/kernel/debug/nvsim")
PARAMETERS = Path("/sys/module/nvsim/parameters")
CGROUPS = Path("/sys/fs/cgroup")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Guard:
    """What the driver's guard has seen: `last` describes the last violation, "-" if there was none."""

    checks: int
    violations: int
    last: str


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU. Memory is in bytes; `used` leaves out what is used when nobody uses the GPU."""

    index: int
    uuid: str
    pci: str
    numa: int
    total: int
    used: int
    leaked: int
    contexts: int
    handles: int
    utilisation: int
    blocked: bool
    stuck: bool
    lost: bool


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU; `compute`: it has a context there. Pids are the host's."""

    gpu: int
    pid: int
    bytes: int
    compute: bool


@dataclass(frozen=True)
class Operation:
    """One compute-class operation as the driver executed it. `gpu` is -1 when it named none."""

    ktime_ns: int
    tgid: int
    tid: int
    cgroup: int
    gpu: int
    cmd: int
    cls: int
    foreign_handles: int
    foreign_bytes: int
    result: int


class Sim:
    """The loaded module."""

    @classmethod
    def load(cls, **parameters: object) -> Sim:
        """Load the module with these parameters (a list becomes a comma-separated one).

        Raises CalledProcessError when the module refuses them; why is in the kernel log.
        """
        if not (DEBUG.parent / "tracing").exists() and not os.path.ismount(DEBUG.parent):
            subprocess.run(["mount", "-t", "debugfs", "debugfs", str(DEBUG.parent)], check=True)
        words = [f"{name}={_word(value)}" for name, value in parameters.items()]
        subprocess.run(["insmod", str(BUILD / "nvsim.ko"), *words], check=True)
        return cls()

    @staticmethod
    def install_libraries() -> None:
        """Put libcuda and libnvidia-ml where a driver's package does, for whoever loads them by name."""
        for library in (BUILD / "lib").glob("*.so.1"):
            shutil.copy(library, LIBRARIES)

    def unload(self) -> None:
        """Unload the module. Raises CalledProcessError while a file of it is open."""
        subprocess.run(["rmmod", "nvsim"], check=True)

    # Knobs: module parameters that may change while it runs.

    def set_knob(self, name: str, value: int) -> None:
        """Set teardown_ms_per_ctx, teardown_ms_per_gib, async_free_ms, ctx_mib, sample_ms or backing_mib."""
        (PARAMETERS / name).write_text(f"{value}\n")

    def knob(self, name: str) -> str:
        """Return the value of a module parameter as the kernel prints it."""
        return (PARAMETERS / name).read_text().strip()

    # Faults.

    def xid(self, gpu: int, number: int) -> None:
        """Report an Xid on a GPU: kernel log and NVML event."""
        _write("xid", f"{gpu} {number}")

    def set_leak(self, gpu: int, mib: int) -> None:
        """Keep up to so many MiB of what is released from now on; 0 gives them back."""
        _write("leak", f"{gpu} {mib}")

    def set_stuck(self, gpu: int, on: bool) -> None:
        """Make the last close of whoever has memory on the GPU block in D state until cleared."""
        _write("stuck_teardown", f"{gpu} {int(on)}")

    def set_blocked(self, gpu: int, on: bool) -> None:
        """Make every ioctl about the GPU block in D state until cleared."""
        _write("block", f"{gpu} {int(on)}")

    def set_lost(self, gpu: int, on: bool) -> None:
        """Make the GPU fall off the bus: every call about it fails with GPU_IS_LOST."""
        _write("lost", f"{gpu} {int(on)}")

    @contextmanager
    def fault(self, name: str, gpu: int, value: int = 1) -> Iterator[None]:
        """Hold the fault `name` (a debugfs file) on a GPU for the length of a with block, however it ends."""
        _write(name, f"{gpu} {value}")
        try:
            yield
        finally:
            _write(name, f"{gpu} 0")

    def clear_faults(self) -> None:
        """Clear every fault on every GPU, so that whoever waits goes on."""
        for gpu in self.gpus():
            for name in ("block", "stuck_teardown", "lost", "leak"):
                _write(name, f"{gpu.index} 0")

    # Guard.

    def guard_add(self, gpu: int, cgroup: Path | str | int) -> None:
        """Whenever this cgroup (or one below) computes on the GPU, nobody else may be on it."""
        _write("guard", f"add {gpu} {cgroup_id(cgroup)}")

    def guard_allow(self, cgroup: Path | str | int) -> None:
        """Files that exactly this cgroup opened are no violation (an agent's NVML)."""
        _write("guard", f"allow {cgroup_id(cgroup)}")

    def guard_clear(self) -> None:
        """Forget every guard, every allowance and the figures."""
        _write("guard", "clear")

    def guard(self) -> Guard:
        """Return what the guards have seen since the last clear."""
        lines = dict(line.split(" ", 1) for line in _read("guard").splitlines())
        return Guard(int(lines["checks"]), int(lines["violations"]), lines["last"])

    # Reading.

    def gpus(self) -> list[Gpu]:
        """Return every GPU with its present state, as the driver knows it (no NVML, no open file)."""
        return [_gpu(line.split()) for line in _rows("gpus")]

    def gpu(self, index: int) -> Gpu:
        """Return one GPU. Raises IndexError."""
        return self.gpus()[index]

    def processes(self) -> list[Process]:
        """Return who holds memory of which GPU."""
        rows = [[int(word) for word in line.split()] for line in _rows("processes")]
        return [Process(gpu, pid, size, bool(compute)) for gpu, pid, size, compute in rows]

    def counters(self) -> dict[str, int]:
        """Return how often each operation was executed since the module was loaded."""
        return {name: int(value) for name, value in (line.split() for line in _read("counters").splitlines())}

    def audit(self) -> list[Operation]:
        """Return the last 4096 compute-class operations, oldest first."""
        return [Operation(*(int(word, 0) for word in line.split())) for line in _rows("audit")]


def cgroup_id(cgroup: Path | str | int) -> int:
    """Return the cgroup v2 id of a path (absolute, or below /sys/fs/cgroup); a number is taken as one."""
    if isinstance(cgroup, int):
        return cgroup
    # The id of a cgroup is the inode number of its folder.
    return (CGROUPS / str(cgroup).removeprefix(f"{CGROUPS}/").lstrip("/")).stat().st_ino


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    # insmod hands the words to the kernel as one line, where quotes keep a space together.
    text = str(value)
    return f'"{text}"' if " " in text else text


def _write(name: str, text: str) -> None:
    (DEBUG / name).write_text(text)


def _read(name: str) -> str:
    return (DEBUG / name).read_text()


def _rows(name: str) -> list[str]:
    return _read(name).splitlines()[1:]


def _gpu(words: list[str]) -> Gpu:
    index, uuid, pci, *rest = words
    numbers = [int(word) for word in rest]
    numa, total, used, leaked, contexts, handles, utilisation, blocked, stuck, lost = numbers
    return Gpu(
        int(index), uuid, pci, numa, total, used, leaked, contexts, handles, utilisation,
        bool(blocked), bool(stuck), bool(lost),
    )  # fmt: skip
