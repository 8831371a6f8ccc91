# SPDX-License-Identifier: Apache-2.0
"""Who has a device node open or mapped: one pass over /proc, in a child process of the agent.

    python -m spotgpu_agent.handles          answers requests on its standard input, see serving.py

A name proves nothing (nodes can be made anywhere, and be renamed), so it is the device number of the open
file that counts, asked through /proc/PID/fd/N; for mappings through /proc/PID/map_files. Both follow the file
itself, so other mount and pid namespaces don't matter. statx with AT_STATX_DONT_SYNC never waits for a file
server.

It is a child because reading another process's maps waits for that process's memory lock, and one that hangs
in a driver may hold it for ever: then the child is killed, and the answer is "unknown".

Limits: a thread with a file table of its own (unshare(CLONE_FILES)) is not looked into; what it allocated is
seen by the memory witness.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import sys
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from spotgpu_agent.serving import serve

AT_STATX_DONT_SYNC: Final = 0x4000
AT_FDCWD: Final = -100
STATX_TYPE: Final = 0x1
_STATX_SIZE: Final = 256
_MODE: Final = 28  # offsets in struct statx, include/uapi/linux/stat.h
_RDEV: Final = 128
# One file mapping: address range, private or shared, and what it is of: device, inode, name. Anonymous
# memory has inode 0.
_MAPPING: Final = re.compile(rb"^(\S+) \S{3}([ps]) \S+ (\S+ [1-9].*)$", re.MULTILINE)
_PF_KTHREAD: Final = 0x00200000  # include/linux/sched.h; such a task can never execute a program
_GONE: Final = (FileNotFoundError, ProcessLookupError)
_NONE: Final[frozenset[int]] = frozenset()
# A pid and the inode number of its directory in procfs, which is another one when the pid is another task's.
Task = tuple[int, int]
# Length and hash of a maps file, and the device numbers mapped by it.
Mapped = tuple[tuple[int, int], frozenset[int]]

_libc = ctypes.CDLL(None, use_errno=True)
_buffer = ctypes.create_string_buffer(_STATX_SIZE)
_read_numbers = struct.Struct("=II").unpack_from
_read_mode = struct.Struct("=H").unpack_from


class Found(NamedTuple):
    """One process with a node open or mapped.

    Attributes:
        numbers: device numbers, as os.makedev.
        mapped: at least one of them is mapped and not open.
    """

    pid: int
    comm: str
    cgroup: str
    numbers: tuple[int, ...]
    mapped: bool


def device_number(path: str, majors: Collection[int]) -> int | None:
    """The device number of a character device with one of these majors; None for anything else.

    Raises:
        OSError: the file can't be looked at.
    """
    if _libc.statx(AT_FDCWD, path.encode(), AT_STATX_DONT_SYNC, STATX_TYPE, _buffer):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    major, minor = _read_numbers(_buffer, _RDEV)
    if major not in majors or not stat.S_ISCHR(_read_mode(_buffer, _MODE)[0]):
        return None
    return os.makedev(major, minor)


class Scan:
    """Scans of one procfs. Remembers what is dear to find out and can't have changed.

    That is: which tasks are kernel threads; and what a process's mappings are, as long as the very text of
    its maps is the same (device, inode, name and address of every mapping).

    Args:
        majors: of the vendor's nodes.
        proc: where procfs is.
    """

    def __init__(self, majors: Collection[int], proc: str = "/proc") -> None:
        self._majors = majors
        self._proc = proc
        self._kernel: set[Task] = set()
        self._maps: dict[Task, Mapped] = {}

    def run(self, skip: Collection[int] = ()) -> list[Found]:
        """Every process that has a node with one of the majors open or mapped.

        A process that ends meanwhile has nothing open any more, and is left out.

        Args:
            skip: pids not to look at (the agent and its children).

        Raises:
            OSError: a process can't be looked into; then nothing can be said.
        """
        one = _Pass(self._proc, self._majors, self._maps)
        found = []
        for task in _tasks(self._proc):
            if task in self._kernel:
                one.kernel.add(task)
            elif task[0] not in skip:
                try:
                    opened, mapped = one.numbers(task)
                    if opened or mapped:
                        found.append(self._found(task[0], opened, mapped))
                except _GONE:
                    continue
        self._kernel, self._maps = one.kernel, one.maps
        return found

    def _found(self, pid: int, opened: frozenset[int], mapped: frozenset[int]) -> Found:
        path = f"{self._proc}/{pid}"
        return Found(pid, _comm(path), cgroup_of(path), tuple(sorted(opened | mapped)), bool(mapped - opened))


class _Pass:
    """One pass over procfs: what was known before it, and what is known after it."""

    def __init__(self, proc: str, majors: Collection[int], maps: dict[Task, Mapped]) -> None:
        self._proc = proc
        self._majors = majors
        self._maps_before = maps
        self._known: dict[bytes, bool] = {}  # files met (as maps names them) -> whether it is a node
        self.kernel: set[Task] = set()
        self.maps: dict[Task, Mapped] = {}

    def numbers(self, task: Task) -> tuple[frozenset[int], frozenset[int]]:
        """Device numbers that a process has open, and that it has mapped."""
        pid = task[0]
        path = f"{self._proc}/{pid}"
        files = os.listdir(f"{path}/fd")  # noqa: PTH208 - this runs for every process of the node, as all here
        if files or _has_memory(path):
            return self._open(path, files), self._mapped(path, task)
        if self._is_kernel_thread(path):
            self.kernel.add(task)
            return _NONE, _NONE
        # The first thread has ended; others may run on and have everything still.
        opened, mapped = _NONE, _NONE
        for thread in _tasks(f"{path}/task"):
            other = f"{self._proc}/{thread[0]}"
            if thread[0] != pid and _has_memory(other):
                opened |= self._open(other, os.listdir(f"{other}/fd"))  # noqa: PTH208
                mapped |= self._mapped(other, thread)
        return opened, mapped

    def _open(self, path: str, files: list[str]) -> frozenset[int]:
        numbers = set()
        for name in files:
            file = f"{path}/fd/{name}"
            try:
                # Sockets, pipes and anonymous files have names of the kernel's own, `socket:[1]`, and are no
                # devices. A path is only a hint where to ask.
                if os.readlink(file)[0] != "/":  # noqa: PTH115
                    continue
                number = device_number(file, self._majors)
            except _GONE:
                continue  # closed meanwhile
            if number is not None:
                numbers.add(number)
        return frozenset(numbers)

    def _mapped(self, path: str, task: Task) -> frozenset[int]:
        with open(f"{path}/maps", "rb", buffering=0) as source:  # noqa: PTH123
            text = source.readall()
        name = (len(text), hash(text))
        before = self._maps_before.get(task)
        if before is None or before[0] != name:
            before = (name, self._mapped_numbers(path, text))
        self.maps[task] = before
        return before[1]

    def _mapped_numbers(self, path: str, text: bytes) -> frozenset[int]:
        numbers = set()
        for where, sharing, file in _MAPPING.findall(text):
            # Private mappings are mostly libraries of many processes; shared ones are few, none is skipped.
            if sharing == b"p" and self._known.get(file) is False:
                continue
            try:
                number = device_number(f"{path}/map_files/{_trimmed(where)}", self._majors)
            except _GONE:
                continue  # unmapped meanwhile
            self._known[file] = number is not None
            if number is not None:
                numbers.add(number)
        return frozenset(numbers)

    def _is_kernel_thread(self, path: str) -> bool:
        with open(f"{path}/stat", "rb", buffering=0) as source:  # noqa: PTH123
            fields = source.readall().rpartition(b")")[2].split()
        return bool(int(fields[6]) & _PF_KTHREAD)


def _tasks(folder: str) -> Iterator[Task]:
    """The tasks of a directory of procfs."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name), entry.inode()


def _has_memory(path: str) -> bool:
    try:
        os.readlink(f"{path}/exe")  # noqa: PTH115
    except FileNotFoundError:
        return False
    return True


def _trimmed(where: bytes) -> str:
    """map_files has addresses without the leading zeros that maps pads them with."""
    return "-".join(f"{int(part, 16):x}" for part in where.split(b"-"))


def cgroup_of(path: str) -> str:
    """Cgroup path of a process directory in procfs; empty when it has none (it is gone)."""
    try:
        with open(f"{path}/cgroup") as source:  # noqa: PTH123 - as above
            lines = source.read().splitlines()
    except _GONE:
        return ""
    return next((line[3:].removesuffix(" (deleted)") for line in lines if line.startswith("0::")), "")


def _comm(path: str) -> str:
    with open(f"{path}/comm", errors="backslashreplace") as source:  # noqa: PTH123 - as above
        return source.read().rstrip("\n")


_scans: dict[frozenset[int], Scan] = {}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request of the agent: `{"majors": [...], "skip": [...]}`."""
    majors = frozenset(request["majors"])
    scan = _scans.setdefault(majors, Scan(majors))
    return {"found": scan.run(frozenset((*request["skip"], os.getpid())))}


if __name__ == "__main__":
    sys.exit(serve(answer))
