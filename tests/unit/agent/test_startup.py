# SPDX-License-Identifier: Apache-2.0
"""What the start looks at by itself; the whole start is a guest test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotgpu_agent.errors import PlatformError
from spotgpu_agent.startup import INITIAL_PIDNS, check_kernel, check_pid_namespace
from spotgpu_agent.vendor import Node, Nvidia


@pytest.mark.parametrize("release", ["6.1.0-57-cloud-amd64", "6.12.117+deb13", "7.3.4", "10.0"])
def test_supported_kernels(release: str) -> None:
    check_kernel(release)


@pytest.mark.parametrize("release", ["5.10.0-30-amd64", "6.0.12", "4.18.0-553.el8", "odd"])
def test_older_kernels_are_refused_with_a_remedy(release: str) -> None:
    with pytest.raises(PlatformError, match="not supported") as caught:
        check_kernel(release)
    assert caught.value.field == "kernel"
    assert caught.value.remedy == "run Linux 6.1 or later"
    assert caught.value.exit_status == 2


def test_an_agent_that_cannot_see_the_nodes_processes_is_refused() -> None:
    check_pid_namespace(INITIAL_PIDNS)
    with pytest.raises(PlatformError, match="does not see") as caught:
        check_pid_namespace(4026532000)
    assert caught.value.remedy
    assert "hostPID" in caught.value.remedy


def test_device_numbers_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n508 nvidia-uvm\n")
    numbers = Nvidia(proc=tmp_path).numbers({0: "GPU-a", 3: "GPU-b", 255: "GPU-odd"})
    assert numbers.majors == {195, 508}
    assert numbers.devices == {os.makedev(195, 0): "GPU-a", os.makedev(195, 3): "GPU-b"}
    (tmp_path / "devices").write_text("195 nvidia\n")
    with pytest.raises(PlatformError, match="nvidia-uvm") as caught:
        Nvidia(proc=tmp_path).numbers({})
    assert caught.value.remedy == "modprobe nvidia-uvm"


def test_a_missing_node_names_the_module(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="No such file") as caught:
        Node(tmp_path / "nvidiactl", "nvidia_rm", "nvidia").open()
    assert caught.value.field == str(tmp_path / "nvidiactl")
    assert caught.value.remedy == "load the driver: modprobe nvidia"
