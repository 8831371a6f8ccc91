# SPDX-License-Identifier: Apache-2.0
"""The handle scan on real processes, seen through a procfs that shows only them.

The devices are /dev/null and /dev/zero: the scan knows a device by its number, so any character device will
do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotgpu_agent.handles import Found, Scan, cgroup_of, device_number

NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)
MAJORS = frozenset({1})


@pytest.fixture
def proc(tmp_path: Path) -> Callable[..., str]:
    """A procfs with these pids alone: links to the real one."""

    def make(*pids: int) -> str:
        for pid in pids:
            (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
        (tmp_path / "self").symlink_to("/proc/self")
        return str(tmp_path)

    return make


def child(code: str) -> subprocess.Popen[str]:
    """A Python process without any device open but what the code opens; says ready first."""
    wait = "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code + wait], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def seen(found: list[Found]) -> list[tuple[int, tuple[int, ...], bool]]:
    return [(one.pid, one.numbers, one.mapped) for one in found]


def test_open_devices_are_found_by_number_whatever_their_name(
    proc: Callable[..., str], children: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    link = tmp_path / "innocent"
    link.symlink_to("/dev/null")
    children.append(child(f"import os; os.open({str(link)!r}, 0); os.open('/dev/zero', 0)"))
    pid = children[0].pid
    (one,) = Scan(MAJORS, proc(pid)).run()
    assert seen([one]) == [(pid, (NULL, ZERO), False)]
    assert one.comm.startswith("python")
    assert one.cgroup == cgroup_of(f"/proc/{pid}")


def test_other_files_and_sockets_are_nobodys_device(
    proc: Callable[..., str], children: list[subprocess.Popen[str]]
) -> None:
    children.append(child("import socket; a, b = socket.socketpair(); f = open('/etc/passwd')"))
    assert Scan(MAJORS, proc(children[0].pid)).run() == []


def test_skipped_pids_are_not_looked_at(
    proc: Callable[..., str], children: list[subprocess.Popen[str]]
) -> None:
    children.append(child("import os; os.open('/dev/null', 0)"))
    pid = children[0].pid
    scan = Scan(MAJORS, proc(pid))
    assert seen(scan.run()) == [(pid, (NULL,), False)]
    assert scan.run({pid}) == []


def test_a_process_whose_first_thread_has_ended_is_looked_into(
    proc: Callable[..., str], children: list[subprocess.Popen[str]]
) -> None:
    code = """
import ctypes, os, threading, time
os.open('/dev/null', 0)
def live():
    time.sleep(0.2)
    os.write(1, b'ready\\n')
    time.sleep(60)
threading.Thread(target=live).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stdin=pipe, text=True)
    children.append(process)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    assert not Path(f"/proc/{process.pid}/exe").exists()
    threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    assert len(threads) == 2
    # The second thread's directory is hidden in a real listing of /proc, but can be opened.
    found = {one[0]: one[1:] for one in seen(Scan(MAJORS, proc(*threads)).run())}
    assert found[process.pid] == ((NULL,), False)


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / str(ended.pid)).symlink_to(f"/proc/{ended.pid}")
    assert Scan(MAJORS, str(tmp_path)).run() == []


def test_a_process_that_cannot_be_looked_into_is_an_error_and_no_empty_answer(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").symlink_to("/bin/true")
    (tmp_path / "7" / "fd").write_text("")  # listing it fails with ENOTDIR
    with pytest.raises(NotADirectoryError):
        Scan(MAJORS, str(tmp_path)).run()


def test_a_kernel_thread_is_remembered_until_its_pid_is_another_tasks(tmp_path: Path) -> None:
    flags = 0x00200000
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "stat").write_text(f"9 (kworker/0:1) S 2 0 0 0 -1 {flags} 0 0")
    scan = Scan(MAJORS, str(tmp_path))
    assert scan.run() == []
    (tmp_path / "9" / "stat").unlink()  # a second look would fail now
    assert scan.run() == []
    (tmp_path / "9").rename(tmp_path / "old")
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "exe").symlink_to("/bin/true")
    (tmp_path / "9" / "fd").mkdir()
    (tmp_path / "9" / "fd" / "3").symlink_to("/dev/null")
    (tmp_path / "9" / "maps").write_bytes(b"")
    (tmp_path / "9" / "comm").write_text("new\n")
    (tmp_path / "9" / "cgroup").write_text("0::/default/new (deleted)\n")
    assert scan.run() == [Found(9, "new", "/default/new", (NULL,), False)]


MAPS = b"""\
7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          [heap]
7f0000002000-7f0000003000 r--p 00000000 08:01 77                         /usr/lib/libc.so.6
7f0000004000-7f0000005000 rw-s 00000000 00:06 99                         /dev/renamed (deleted)
00400000-00401000 r-xp 00000000 08:01 78                                 /bin/with space
"""


def test_mappings_are_asked_through_map_files(tmp_path: Path) -> None:
    one = tmp_path / "5"
    (one / "fd").mkdir(parents=True)
    (one / "exe").symlink_to("/bin/true")
    (one / "maps").write_bytes(MAPS)
    (one / "comm").write_text("mapper\n")
    (one / "cgroup").write_text("0::/x\n")
    files = one / "map_files"
    files.mkdir()
    (files / "7f0000002000-7f0000003000").symlink_to("/etc/passwd")
    (files / "7f0000004000-7f0000005000").symlink_to("/dev/zero")
    (files / "400000-401000").symlink_to("/etc/passwd")
    assert Scan(MAJORS, str(tmp_path)).run() == [Found(5, "mapper", "/x", (ZERO,), True)]


def test_a_shared_library_is_looked_at_once_but_a_shared_mapping_always(tmp_path: Path) -> None:
    for pid in (5, 6):
        one = tmp_path / str(pid)
        (one / "fd").mkdir(parents=True)
        (one / "exe").symlink_to("/bin/true")
        (one / "maps").write_bytes(MAPS)
        (one / "comm").write_text("mapper\n")
        (one / "cgroup").write_text("0::/x\n")
        (one / "map_files").mkdir()
        target = "/etc/passwd" if pid == 5 else "/dev/zero"
        (one / "map_files" / "7f0000004000-7f0000005000").symlink_to(target)
    assert [found.pid for found in Scan(MAJORS, str(tmp_path)).run()] == [6]


def test_mappings_are_asked_again_when_the_maps_or_the_task_changed(tmp_path: Path) -> None:
    def make(target: str) -> Path:
        one = tmp_path / "5"
        (one / "fd").mkdir(parents=True)
        (one / "exe").symlink_to("/bin/true")
        (one / "maps").write_bytes(MAPS)
        (one / "comm").write_text("mapper\n")
        (one / "cgroup").write_text("0::/x\n")
        (one / "map_files").mkdir()
        (one / "map_files" / "7f0000004000-7f0000005000").symlink_to(target)
        return one

    scan = Scan(MAJORS, str(tmp_path))
    one = make("/etc/passwd")
    assert scan.run() == []
    link = one / "map_files" / "7f0000004000-7f0000005000"
    link.unlink()
    link.symlink_to("/dev/zero")
    (one / "maps").write_bytes(MAPS + b"7f0000006000-7f0000007000 rw-p 00000000 00:00 0\n")
    assert seen(scan.run()) == [(5, (ZERO,), True)]
    link.unlink()
    assert seen(scan.run()) == [(5, (ZERO,), True)], "the same maps: known without asking"
    one.rename(tmp_path / "old")
    make("/etc/passwd")
    assert scan.run() == [], "another task with this pid is nobody we know"


def test_device_numbers() -> None:
    assert device_number("/dev/null", MAJORS) == NULL
    assert device_number("/dev/null", {195}) is None
    assert device_number("/etc/passwd", MAJORS) is None
    with pytest.raises(FileNotFoundError):
        device_number("/nowhere", MAJORS)


def test_scanning_while_processes_come_and_go_never_fails(proc: Callable[..., str], tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            process = subprocess.Popen(["sleep", "0.01"], stdin=subprocess.DEVNULL)
            link = tmp_path / str(process.pid)
            link.symlink_to(f"/proc/{process.pid}")
            process.wait()
            link.unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    scan = Scan(MAJORS, proc(os.getpid()))
    try:
        for _ in range(60):
            scan.run()
    finally:
        stop.set()
        thread.join()
