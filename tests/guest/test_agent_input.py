# SPDX-License-Identifier: Apache-2.0
"""Bad input on a real node: one clear error with field and remedy, exit status 2, and nothing armed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotgpu.errors import UsageError
from spotgpu_agent.__main__ import run_agent
from spotgpu_khook.client import Khook
from tests.guestlib.agent import LABEL, STEP_LIMIT_S, Rig, node
from tests.guestlib.containerd import Container, delete_container, run_container
from tests.guestlib.khook import KMOD


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with node("input", gpus=2) as rig:
        rig.add_owner("dev", 0)
        yield rig


@pytest.fixture
def host_pid_spot() -> Iterator[Container]:
    """A spot container that shares the guest's own pid namespace."""
    options = ["--with-ns", "pid:/proc/1/ns/pid"]
    spot = run_container("spot-hostpid", ["sleep", "infinity"], labels={LABEL: "dev"}, options=options)
    yield spot
    delete_container(spot)


def changed(rig: Rig, **fields: Any) -> Path:
    """The good configuration with fields of its owner replaced."""
    path = rig.config()
    data = yaml.safe_load(path.read_text())
    data["owners"][0].update(fields)
    path.write_text(yaml.safe_dump(data))
    return path


def refused(path: Path, field: str, says: str) -> None:
    """The agent does not start, says why and where, and khook has heard nothing of it."""
    with pytest.raises(UsageError) as caught:
        run_agent(path, log_level="error", check=True)
    assert caught.value.field == field
    assert says in str(caught.value)
    assert caught.value.remedy
    assert caught.value.exit_status == 2
    if Path("/sys/module/khook").exists():
        assert armed() == 0


def armed() -> int:
    """Gates and watches that khook has."""

    async def ask() -> int:
        async with await Khook.connect() as khook:
            return len(await khook.gates()) + len(await khook.watches())

    return asyncio.run(ask())


def test_an_unknown_owner_container(rig: Rig) -> None:
    refused(changed(rig, container={"id": "nobody"}), "owners[0].container", "there is: owner-dev")


def test_a_device_that_is_not_on_this_node(rig: Rig) -> None:
    refused(changed(rig, devices=["GPU-none"]), "owners[0].devices[0]", "no GPU GPU-none on this node")


def test_an_owner_that_is_spot_too(rig: Rig) -> None:
    spot = [{"container": {"id": "owner-dev"}}]
    path = changed(rig, container={"labels": {"containerd.io/none": "x"}}, spot=spot)
    refused(path, "owners[0].container", "no container with")
    refused(changed(rig, spot=spot), "owners[0].spot[0].container", "its own spot container")


def test_a_spot_container_in_the_hosts_pid_namespace(rig: Rig, host_pid_spot: Container) -> None:
    refused(rig.config(), "owners[0].spot[0].container", "shares the host's pid namespace")


def test_no_containerd_at_the_socket(rig: Rig) -> None:
    path = rig.config(containerd={"socket": "/run/none.sock"})
    refused(path, "containerd.socket", "start containerd")


def test_another_agent_is_attached(rig: Rig) -> None:
    async def while_attached() -> str:
        async with await Khook.connect() as khook:
            await khook.attach(1000, 0)
            return await asyncio.to_thread(run)

    rig.config()
    said = asyncio.run(while_attached())
    assert "stop the other agent first" in said
    assert armed() == 0


def run() -> str:
    """The command as a person runs it: one line, exit status 2."""
    argv = [sys.executable, "-m", "spotgpu", "agent", "--log-level", "error", "--standalone"]
    config = "/run/spotgpu-agent-test/input/config.yaml"
    done = subprocess.run([*argv, config], capture_output=True, text=True, check=False, timeout=STEP_LIMIT_S)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_khook_is_not_loaded(rig: Rig) -> None:
    rig.config()
    subprocess.run(["rmmod", "khook"], check=True)
    try:
        said = run()
    finally:
        subprocess.run(["insmod", str(KMOD)], check=True)
    assert said.startswith("spotgpu agent: khook: the kernel module khook is not loaded")
    assert "modprobe khook" in said


def test_a_node_without_the_driver(rig: Rig) -> None:
    path = rig.config()
    hidden = Path("/dev/nvidia-uvm.hidden")
    Path("/dev/nvidia-uvm").rename(hidden)
    try:
        refused(path, "/dev/nvidia-uvm", "modprobe nvidia-uvm")
    finally:
        hidden.rename("/dev/nvidia-uvm")


def test_a_good_configuration_is_checked_and_nothing_is_armed(rig: Rig) -> None:
    assert run_agent(rig.config(), log_level="error", check=True) == 0
    assert armed() == 0
