# SPDX-License-Identifier: Apache-2.0
"""`spotgpu doctor` and `spotgpu status` on a node that has everything, and on one that lacks it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guestlib.containerd import running_containerd
from tests.sim.nvsim import BUILD, Sim

KHOOK = Path("/opt/spotgpu/build/kmod/khook.ko")
GPUS = 2


def spotgpu(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spotgpu", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "LD_LIBRARY_PATH": str(BUILD / "lib"), **env},
    )


def doctor(*arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    done = spotgpu("doctor", "--output", "json", "--module", KHOOK, *arguments)
    assert done.stdout, done.stderr
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.fixture
def khook() -> Iterator[None]:
    subprocess.run(["insmod", KHOOK], check=True)
    yield
    subprocess.run(["rmmod", "khook"], check=True)


@pytest.fixture
def whole_node(khook: None) -> Iterator[None]:
    """A GPU driver with its library, khook, containerd."""
    sim = Sim.load(gpus=GPUS)
    with running_containerd():
        yield
    sim.unload()


def test_a_whole_node_passes(whole_node: None) -> None:
    status, checks = doctor()
    failed = [check for check in checks.values() if check["status"] == "fail"]
    assert (status, failed) == (0, [])
    for name in ("kernel", "kernel config", "khook built", "khook loaded", "khook answers", "cgroup v2"):
        assert checks[name]["status"] == "ok", checks[name]
    for name in ("ftrace", "tracefs", "ftrace users", "permissions", "namespaces", "containerd", "NVML"):
        assert checks[name]["status"] == "ok", checks[name]
    assert platform.release() in checks["khook built"]["detail"]
    assert "ABI 1, no agent is attached, 0 calls held" in checks["khook answers"]["detail"]
    assert f"{GPUS} devices" in checks["NVML"]["detail"]
    assert checks["containerd"]["detail"].startswith("containerd 1.")


def test_a_bare_node_is_told_what_it_lacks() -> None:
    status, checks = doctor()
    assert status == 1
    lacking = {name for name, check in checks.items() if check["status"] == "fail"}
    assert lacking == {"khook loaded", "containerd", "NVML"}
    assert all(checks[name]["remedy"] for name in lacking)


def test_a_module_for_another_kernel_is_found_out(tmp_path: Path) -> None:
    other = tmp_path / "khook.ko"
    here = platform.release().encode()
    other.write_bytes(KHOOK.read_bytes().replace(b"vermagic=" + here, b"vermagic=" + here[:-1] + b"X"))
    status, checks = doctor("--module", other)
    assert (status, checks["khook built"]["status"]) == (1, "fail")
    assert "build it for this kernel" in checks["khook built"]["remedy"]


def test_without_root_it_says_so_and_nothing_breaks() -> None:
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            sys.executable,
            "-m",
            "spotgpu",
            "doctor",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 1
    assert "run as root" in done.stdout
    assert "Traceback" not in done.stderr


def test_status_without_an_agent_shows_what_khook_says(khook: None) -> None:
    done = spotgpu("status")
    assert done.returncode == 1
    assert "no agent answers" in done.stdout
    assert "what khook itself says" in done.stdout
    for section in ("GATES", "WATCHES", "HOLDS", "FENCES"):
        assert f"{section}: none" in done.stdout
    told = json.loads(spotgpu("status", "-o", "json").stdout)
    assert told["agent"] is None
    assert told["khook"]["version"] == 1
    assert told["khook"]["holds"] == []


def test_status_with_neither_says_both() -> None:
    done = spotgpu("status")
    assert done.returncode == 1
    assert "no agent answers" in done.stdout
    assert "khook cannot be asked" in done.stdout
