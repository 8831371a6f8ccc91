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
# One file mapping: address range, permissions, device, inode, name. Anonymous memory has inode 0.
_MAPPING: Final = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) (\S{4}) \S+ (\S+) ([1-9]\d*) +(.*)$", re.MULTILINE)
# Files met in this scan (device, inode and name as maps has them) -> whether it is a node.
Known = dict[tuple[bytes, ...], bool]
_GONE: Final = (FileNotFoundError, ProcessLookupError)

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


def scan(majors: Collection[int], skip: Collection[int] = (), proc: str = "/proc") -> list[Found]:
    """Every process that has a node with one of these majors open or mapped.

    A process that ends meanwhile has nothing open any more, and is left out.

    Args:
        majors: of the vendor's nodes.
        skip: pids not to look at (the agent and its children).
        proc: where procfs is.

    Raises:
        OSError: a process can't be looked into; then nothing can be said.
    """
    known: Known = {}
    found = []
    for pid in _pids(proc):
        if pid in skip:
            continue
        try:
            one = _look(proc, pid, majors, known)
        except _GONE:
            continue
        if one is not None:
            found.append(one)
    return found


def _pids(proc: str) -> Iterator[int]:
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def _look(proc: str, pid: int, majors: Collection[int], known: Known) -> Found | None:
    path = f"{proc}/{pid}"
    if _has_memory(path):
        opened, mapped = _numbers(path, majors, known)
    else:
        # A kernel thread, or a process whose first thread has ended while others run on.
        opened, mapped = set(), set()
        for thread in _pids(f"{path}/task"):
            if thread != pid and _has_memory(f"{proc}/{thread}"):
                more = _numbers(f"{proc}/{thread}", majors, known)
                opened |= more[0]
                mapped |= more[1]
    if not opened and not mapped:
        return None
    return Found(pid, _comm(path), cgroup_of(path), tuple(sorted(opened | mapped)), bool(mapped - opened))


def _has_memory(path: str) -> bool:
    try:
        os.readlink(f"{path}/exe")  # noqa: PTH115 - this runs for every process of the node
    except FileNotFoundError:
        return False
    return True


def _numbers(path: str, majors: Collection[int], known: Known) -> tuple[set[int], set[int]]:
    return _open_numbers(path, majors), _mapped_numbers(path, majors, known)


def _open_numbers(path: str, majors: Collection[int]) -> set[int]:
    numbers = set()
    folder = f"{path}/fd"
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                number = device_number(f"{folder}/{entry.name}", majors)
            except _GONE:
                continue  # closed meanwhile
            if number is not None:
                numbers.add(number)
    return numbers


def _mapped_numbers(path: str, majors: Collection[int], known: Known) -> set[int]:
    with open(f"{path}/maps", "rb", buffering=0) as source:  # noqa: PTH123 - as above
        text = source.readall()
    numbers = set()
    for where, mode, *identity in _MAPPING.findall(text):
        # Private mappings are mostly libraries of many processes; shared ones are few, and none is skipped.
        key = tuple(identity)
        if mode[3:] == b"p" and known.get(key) is False:
            continue
        try:
            number = device_number(f"{path}/map_files/{_trimmed(where)}", majors)
        except _GONE:
            continue  # unmapped meanwhile
        known[key] = number is not None
        if number is not None:
            numbers.add(number)
    return numbers


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


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request of the agent: `{"majors": [...], "skip": [...]}`."""
    return {"found": scan(frozenset(request["majors"]), frozenset((*request["skip"], os.getpid())))}


if __name__ == "__main__":
    sys.exit(serve(answer))
