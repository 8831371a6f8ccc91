# SPDX-License-Identifier: Apache-2.0
"""The vendor device plugin, over gRPC, with kubelet's side of the API on the other end of the socket."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.sim.cdi import specification, write_specification
from tests.sim.fake_kubelet import FakeKubelet
from tests.sim.offer import Offer
from tests.sim.placement import Card
from tests.sim.registration import PluginError, Service

TOP = Path(__file__).parents[3]
CARDS = tuple(Card(f"GPU-{i}", i, minor=i, numa=i // 2) for i in range(4))
SOCKET = "nvidia.com-gpu.sock"
LIMIT_S = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    # A socket's path may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="dp-") as name:
        yield Path(name)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(folder)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    offer = Offer("nvidia.com/gpu", CARDS, Path("/opt/lib"), "nvidia.com/gpu")
    made = Service(offer, folder, attempts=3)
    yield made
    made.stop()


def test_it_registers_with_its_endpoint_and_options(kubelet: FakeKubelet, service: Service) -> None:
    service.tend()
    request = kubelet.registrations.get(timeout=LIMIT_S)
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", SOCKET, "nvidia.com/gpu")
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required
    service.tend()
    assert kubelet.registrations.empty()


def test_devices_are_listed_with_their_numa_node_and_again_when_one_is_sick(
    kubelet: FakeKubelet, service: Service
) -> None:
    service.tend()
    with kubelet.plugin(SOCKET) as plugin:
        assert plugin.options().get_preferred_allocation_available
        lists = plugin.watch()
        assert next(lists) == {f"GPU-{i}": ("Healthy", [i // 2]) for i in range(4)}
        service.plugin.set_sick("GPU-2")
        assert [health for health, _ in next(lists).values()] == [
            "Healthy",
            "Healthy",
            "Unhealthy",
            "Healthy",
        ]


def test_an_allocation_brings_env_mounts_nodes_and_cdi_names(kubelet: FakeKubelet, service: Service) -> None:
    service.tend()
    with kubelet.plugin(SOCKET) as plugin:
        first, second = plugin.allocate(["GPU-3", "GPU-1"], ["GPU-0"])
    assert dict(first.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-1"}
    nodes = ["/dev/nvidia3", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [(d.host_path, d.container_path, d.permissions) for d in first.devices] == [
        (node, node, "rw") for node in nodes
    ]
    assert [(m.host_path, m.container_path, m.read_only) for m in first.mounts] == [
        (f"/opt/lib/{name}", f"/usr/lib/x86_64-linux-gnu/{name}", True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    assert [d.name for d in first.cdi_devices] == ["nvidia.com/gpu=GPU-3", "nvidia.com/gpu=GPU-1"]
    assert dict(second.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}


def test_preferred_devices_are_near_each_other(kubelet: FakeKubelet, service: Service) -> None:
    service.tend()
    with kubelet.plugin(SOCKET) as plugin:
        assert sorted(plugin.preferred(["GPU-0", "GPU-2", "GPU-3"], [], 2)) == ["GPU-2", "GPU-3"]


def test_a_strange_device_is_refused_by_name(kubelet: FakeKubelet, service: Service) -> None:
    service.tend()
    with kubelet.plugin(SOCKET) as plugin:
        with pytest.raises(grpc.RpcError, match="unknown device 'GPU-9'"):
            plugin.allocate(["GPU-9"])
        with pytest.raises(grpc.RpcError, match="cannot take 3 of 1"):
            plugin.preferred(["GPU-0"], [], 3)


def test_it_registers_again_when_kubelet_starts_again(kubelet: FakeKubelet, service: Service) -> None:
    service.tend()
    kubelet.registrations.get(timeout=LIMIT_S)
    kubelet.stop()
    service.tend()  # kubelet is away: nothing to do, nothing counted
    kubelet.start()
    tick_until_registered(service, kubelet)
    with kubelet.plugin(SOCKET) as plugin:
        assert len(plugin.allocate(["GPU-0"])) == 1


def test_it_serves_and_registers_again_when_its_own_socket_goes(
    kubelet: FakeKubelet, service: Service, folder: Path
) -> None:
    service.tend()
    kubelet.registrations.get(timeout=LIMIT_S)
    (folder / SOCKET).unlink()
    tick_until_registered(service, kubelet)
    with kubelet.plugin(SOCKET) as plugin:
        assert len(next(plugin.watch())) == 4


def tick_until_registered(service: Service, kubelet: FakeKubelet) -> None:
    """As the plugin's own loop does; gRPC may take an old server's socket away a little late."""
    ticked = threading.Event()
    for _ in range(20):
        service.tend()
        ticked.wait(0.1)
        if not kubelet.registrations.empty() and (kubelet.folder / SOCKET).exists():
            return
    pytest.fail("it did not register again")


def test_it_gives_up_when_kubelet_keeps_refusing(kubelet: FakeKubelet, service: Service) -> None:
    kubelet.refuse = True
    service.tend()
    service.tend()
    with pytest.raises(PluginError, match="refused 3 times"):
        service.tend()


def test_the_cdi_specification_names_each_gpu(tmp_path: Path) -> None:
    content = specification("nvidia.com/gpu", CARDS[:2], [("/opt/lib/libcuda.so.1", "/usr/lib/libcuda.so.1")])
    path = write_specification(tmp_path / "cdi", content)
    assert [file.name for file in path.parent.iterdir()] == ["nvidia.com-gpu.json"]
    read = json.loads(path.read_text())
    assert read["kind"] == "nvidia.com/gpu"
    assert [device["name"] for device in read["devices"]] == ["GPU-0", "GPU-1"]
    assert read["devices"][1]["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert {"path": "/dev/nvidiactl"} in read["containerEdits"]["deviceNodes"]
    assert read["containerEdits"]["mounts"][0]["hostPath"] == "/opt/lib/libcuda.so.1"


def test_a_missing_kubelet_folder_is_one_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sim.device_plugin", "--kubelet-dir", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--kubelet-dir" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not importlib.util.find_spec("grpc_tools"), reason="grpcio-tools is not installed")
def test_the_stubs_are_those_of_the_proto(tmp_path: Path) -> None:
    proto = "tests/sim/device_plugin_pb/device_plugin.proto"
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, proto], cwd=TOP, check=True)
    for name in ("device_plugin_pb2.py", "device_plugin_pb2.pyi"):
        made: Any = (tmp_path / "tests/sim/device_plugin_pb" / name).read_text()
        committed = (TOP / "tests/sim/device_plugin_pb" / name).read_text()
        assert committed == f"# SPDX-License-Identifier: Apache-2.0\n{made}"
