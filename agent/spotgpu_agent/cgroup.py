# SPDX-License-Identifier: Apache-2.0
"""Cgroups v2: ids, killing one, and being told when one is empty.

`cgroup.kill` kills everything in a cgroup and below it, concurrent forks included (Linux 5.14).
`cgroup.events` says `populated 0` once the last process is through its exit, its files closed; a change of it
is an urgent (POLLPRI) event.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spotgpu_agent.errors import PlatformError
from spotgpu_agent.model import below

ROOT: Final = Path("/sys/fs/cgroup")
_GONE: Final = (FileNotFoundError, ProcessLookupError)


def check_unified(root: Path = ROOT) -> None:
    """The node has cgroup v2 alone, and cgroups can be killed.

    Raises:
        PlatformError: it has not, or they can't.
    """
    if not (root / "cgroup.controllers").exists():
        remedy = "boot with systemd.unified_cgroup_hierarchy=1"
        raise PlatformError("cgroup v2 is not mounted alone here", str(root), remedy)
    some = next((entry for entry in root.iterdir() if entry.is_dir()), None)
    if some is not None and not (some / "cgroup.kill").exists():
        raise PlatformError("the kernel has no cgroup.kill", str(some), "run Linux 6.1 or later")


def id_of(path: str, root: Path = ROOT) -> int:
    """The cgroup v2 id, which is its directory's inode number; 0 when it is gone.

    Args:
        path: from the root of the hierarchy, `/default/x`.
        root: where the hierarchy is mounted.
    """
    try:
        return (root / path.lstrip("/")).stat().st_ino
    except FileNotFoundError:
        return 0


def path_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The cgroup path of a process; empty when it is gone."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except _GONE:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def container_path(path: str, wanted: str) -> str:
    """The cgroup of a whole container, from the one its first process is in.

    A container's first process may have moved to a cgroup below (systemd does). The runtime's own is the
    ancestor that is named as the specification asked: `/ns/id` with the cgroupfs driver, `slice:prefix:name`
    with systemd's.

    Args:
        path: cgroup path of the first process.
        wanted: `linux.cgroupsPath` of the container's specification; may be empty.

    Returns:
        Its cgroup path; empty when the process is not in a cgroup of that name (yet): the one it is in is
        somebody else's, and nothing may be done to it.
    """
    parts = wanted.split(":")
    name = f"{parts[1]}-{parts[2]}.scope" if len(parts) == 3 else wanted.rstrip("/").rpartition("/")[2]
    names = path.split("/")
    if not name:
        return path
    return "/".join(names[: names.index(name) + 1]) if name in names else ""


def kill(path: str, root: Path = ROOT) -> None:
    """SIGKILL everything in a cgroup and below it. One that is gone is empty.

    Raises:
        OSError: it can't be killed, or it holds this very process.
    """
    _spare_ourselves(path)
    try:
        (root / path.lstrip("/") / "cgroup.kill").write_text("1")
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def _spare_ourselves(path: str) -> None:
    """No mistake about a container may end in the agent, or the node, killing itself."""
    if not path.strip("/") or below(path_of(os.getpid()), path):
        raise PermissionError(errno.EPERM, "it holds the agent itself", path)


def terminate(path: str, root: Path = ROOT, proc: Path = Path("/proc")) -> int:
    """SIGTERM every process in a cgroup and below it.

    A pid may be reused between reading and signalling, so each is held by a pidfd and looked up again.

    Returns:
        How many were signalled.

    Raises:
        OSError: a process can't be signalled, or the cgroup holds this very process.
    """
    _spare_ourselves(path)
    count = 0
    for pid in set(_pids(root / path.lstrip("/"))):
        try:
            handle = os.pidfd_open(pid)
        except _GONE:
            continue
        try:
            if below(path_of(pid, proc), path):
                signal.pidfd_send_signal(handle, signal.SIGTERM)
                count += 1
        except ProcessLookupError:
            continue
        finally:
            os.close(handle)
    return count


def _pids(directory: Path) -> Iterator[int]:
    for folder in (directory, *directory.rglob("*/")):
        try:
            yield from map(int, (folder / "cgroup.procs").read_text().split())
        except (*_GONE, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):  # removed meanwhile; a threaded cgroup
                raise


@dataclass(slots=True)
class _Followed:
    file: int
    tell: Callable[[], None]


@dataclass(slots=True)
class Follower:
    """Tells when cgroups become empty. One epoll for all; `fileno()` is readable when `look()` is due.

    Every cgroup is told once.
    """

    root: Path = ROOT
    _epoll: select.epoll = field(default_factory=select.epoll)
    _followed: dict[int, _Followed] = field(default_factory=dict)

    def fileno(self) -> int:
        """For the event loop."""
        return self._epoll.fileno()

    def follow(self, cgroup: int, path: str, tell: Callable[[], None]) -> None:
        """Call `tell` once the cgroup is empty; at once when it is empty or gone.

        Args:
            cgroup: its id, a key.
            path: from the root of the hierarchy.
            tell: called from here or from look().
        """
        try:
            file = os.open(self.root / path.lstrip("/") / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            tell()
            return
        # Level-triggered for urgent data alone: the file is always readable.
        self._epoll.register(file, select.EPOLLPRI)
        self._followed[cgroup] = _Followed(file, tell)
        self._look(cgroup)

    def unfollow(self, cgroup: int) -> None:
        """Forget a cgroup. Harmless when it was told or never followed."""
        followed = self._followed.pop(cgroup, None)
        if followed is not None:
            self._epoll.unregister(followed.file)
            os.close(followed.file)

    def look(self) -> None:
        """Look at every cgroup that is followed. Cheap: one read each."""
        for cgroup in list(self._followed):
            self._look(cgroup)

    def _look(self, cgroup: int) -> None:
        followed = self._followed.get(cgroup)
        if followed is not None and not _populated(followed.file):
            self.unfollow(cgroup)
            followed.tell()

    def close(self) -> None:
        """Forget all."""
        for cgroup in list(self._followed):
            self.unfollow(cgroup)
        self._epoll.close()


def _populated(file: int) -> bool:
    """Whether an open cgroup.events says so; reading it re-arms its event."""
    try:
        return b"populated 0" not in os.pread(file, 256, 0)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return False  # only an empty cgroup can be removed
        raise
