# SPDX-License-Identifier: Apache-2.0
"""The guest itself: what every other guest test relies on."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guestlib.containerd import (
    CGROUPS,
    NAMESPACE,
    Mount,
    delete_container,
    kill_container,
    run_container,
    running_containerd,
    wait_container,
    wait_until,
)
from tests.vm.guests import GUESTS

CONTAINERD_SERIES = {"bookworm": "1.6", "trixie": "1.7"}


@pytest.fixture(scope="module")
def containerd() -> Iterator[None]:
    with running_containerd():
        yield


def test_the_kernel_is_the_one_asked_for() -> None:
    assert platform.release().startswith(GUESTS[os.environ["SPOTGPU_GUEST"]].kernel_prefix)


def test_the_job_lives_in_a_child_cgroup_and_the_root_offers_every_controller() -> None:
    assert Path("/proc/self/cgroup").read_text() == "0::/init\n"
    offered = (CGROUPS / "cgroup.controllers").read_text().split()
    assert {"cpu", "memory", "pids"} <= set(offered)
    assert set((CGROUPS / "cgroup.subtree_control").read_text().split()) == set(offered)


@pytest.mark.parametrize("kind", ["bpf", "debugfs", "devpts", "proc", "sysfs", "tracefs"])
def test_kernel_file_systems_are_mounted(kind: str) -> None:
    assert kind in {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}


def test_a_crash_or_a_hang_ends_the_guest() -> None:
    for knob in ("panic_on_oops", "softlockup_panic", "hung_task_panic"):
        assert int(Path(f"/proc/sys/kernel/{knob}").read_text()) >= 1, knob
    assert int(Path("/proc/sys/kernel/panic").read_text()) == -1
    assert int(Path("/proc/sys/kernel/hung_task_timeout_secs").read_text()) == 120


def test_the_job_may_be_interrupted() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL


def test_the_checkout_is_writable_and_the_disk_under_it_is_not() -> None:
    scratch = Path("/src/scratch")
    scratch.write_text("x")
    scratch.unlink()
    with pytest.raises(OSError, match="Read-only"):
        Path("/run/vm/src/scratch").write_text("x")


def test_containerd_is_the_release_s_own(containerd: None) -> None:
    series = CONTAINERD_SERIES[GUESTS[os.environ["SPOTGPU_GUEST"]].release]
    version = subprocess.run(["ctr", "version"], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"Version:\s+(\d+\.\d+)", version) == [series, series]


def test_a_container_runs_in_its_own_cgroup(containerd: None) -> None:
    container = run_container(
        "harness",
        ["busybox", "sh", "-c", "cat /proc/self/cgroup; echo $GREETING; test -c /dev/kmsg && exec sleep 600"],
        mounts=[Mount("/results", "/mnt", read_only=False)],
        devices=["/dev/kmsg"],
        labels={"spotgpu.test": "yes"},
        env={"GREETING": "hello"},
    )
    try:
        assert container.cgroup == CGROUPS / NAMESPACE / "harness"
        assert str(container.pid) in (container.cgroup / "cgroup.procs").read_text().split()
        wait_until(lambda: "hello" in container.output(), 10, "the container's output")
        kill_container(container)
        wait_until(lambda: not container.populated(), 10, "the container's end")
    finally:
        delete_container(container)
    assert not container.cgroup.exists()


def test_a_container_has_python_and_gives_its_exit_status(containerd: None) -> None:
    container = run_container("python", ["python3", "-c", "import grpc, sys; print('fine'); sys.exit(7)"])
    try:
        assert wait_container(container) == 7
        assert "fine" in container.output()
    finally:
        delete_container(container)
