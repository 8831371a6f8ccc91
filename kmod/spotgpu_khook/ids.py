# SPDX-License-Identifier: Apache-2.0
"""The numbers by which khook knows cgroups, pid namespaces and processes."""

from __future__ import annotations

from pathlib import Path

from spotgpu_khook.model import CgroupKey, PidnsKey, ProcessKey

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def cgroup_id(path: Path) -> int:
    """Return the id of a cgroup v2 directory: its inode number. Raises FileNotFoundError."""
    return path.stat().st_ino


def cgroup_key(path: Path) -> CgroupKey:
    """Return the key of a cgroup v2 directory. Raises FileNotFoundError."""
    return CgroupKey(cgroup_id(path))


def pidns_key(pid: int) -> PidnsKey:
    """Return the key of the pid namespace that a process lives in. Raises FileNotFoundError."""
    return PidnsKey((PROC / str(pid) / "ns/pid").stat().st_ino)


def process_key(pid: int) -> ProcessKey:
    """Return the key of a process, which a later process with its pid will not match.

    Raises FileNotFoundError or ProcessLookupError.
    """
    stat = (PROC / str(pid) / "stat").read_bytes()
    # The second field is the command in parentheses and may hold anything, parentheses included.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessKey(pid, int(fields[22 - 3]))
