# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU: that it behaves as a GPU does where spotgpu looks, and that its guard can fail."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guestlib.containerd import wait_until
from tests.guestlib.leftovers import blocked_tasks
from tests.sim.clients import (
    CUDA_CLIENT,
    ClientError,
    burner,
    cgroup,
    finish,
    kill_cgroup,
    nvcall,
    python,
    run,
    spawn,
)
from tests.sim.nvsim import BUILD, Sim

GPUS = 4
MIB = 1 << 20
CTX = 300 * MIB
LIMIT_S = 30.0

UVM_INITIALIZE = 0x30000001
RM_ALLOC = 0xC020462B
XFER_CMD = 0xC01046D3
CLASS_CLIENT, CLASS_DEVICE, CLASS_VASPACE = 0x41, 0x80, 0x90F1


@pytest.fixture
def sim() -> Iterator[Sim]:
    loaded = Sim.load(gpus=GPUS)
    yield loaded
    loaded.clear_faults()
    loaded.unload()


@pytest.fixture
def nvml(sim: Sim) -> Iterator[Any]:
    # pynvml asks the loader for the bare name, which is then the library that is loaded already.
    ctypes.CDLL(str(BUILD / "lib/libnvidia-ml.so.1"))
    import pynvml

    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


@pytest.fixture
def owner() -> Iterator[Path]:
    with cgroup("owner") as path:
        yield path


@pytest.fixture
def spot() -> Iterator[Path]:
    with cgroup("spot") as path:
        yield path


def waits_in_driver(pid: int) -> bool:
    """Whether the process sleeps in the driver, for a fault or a teardown.

    Not its stat file: that borrows the process's memory, and who gives it back last closes what is mapped
    there. A test that reads stat at the wrong moment does the teardown itself, and a stuck one for ever.
    """
    try:
        where = Path(f"/proc/{pid}/wchan").read_text()
    except FileNotFoundError:
        return False
    return where in {"wait_cleared", "nvsim_fault_wait_blocked", "nvsim_fault_wait_teardown", "msleep"}


# What is there


def test_nvml_sees_every_gpu_as_the_driver_describes_it(sim: Sim, nvml: Any) -> None:
    assert nvml.nvmlDeviceGetCount() == GPUS
    assert nvml.nvmlSystemGetDriverVersion() == sim.knob("driver_version")
    for gpu in sim.gpus():
        device = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        pci = nvml.nvmlDeviceGetPciInfo(device)
        assert nvml.nvmlDeviceGetUUID(device) == gpu.uuid
        assert nvml.nvmlDeviceGetMinorNumber(device) == gpu.index
        assert f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" == gpu.pci
        assert nvml.nvmlDeviceGetMemoryInfo(device).total == gpu.total == 81559 * MIB
        assert nvml.nvmlDeviceGetNumaNodeId(device) == gpu.numa
        assert nvml.nvmlDeviceGetMigMode(device) == [0, 0]
        for found in (
            nvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
            nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
        ):
            assert nvml.nvmlDeviceGetIndex(found) == gpu.index


def test_nvml_knows_the_topology(sim: Sim, nvml: Any) -> None:
    devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(GPUS)]
    levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(devices[0], other) for other in devices]
    assert levels == [
        nvml.NVML_TOPOLOGY_INTERNAL,
        nvml.NVML_TOPOLOGY_HOSTBRIDGE,
        nvml.NVML_TOPOLOGY_SYSTEM,
        nvml.NVML_TOPOLOGY_SYSTEM,
    ]
    near = nvml.nvmlDeviceGetTopologyNearestGpus(devices[0], nvml.NVML_TOPOLOGY_NODE)
    assert [nvml.nvmlDeviceGetIndex(device) for device in near] == [1]


def test_identity_comes_from_the_parameters() -> None:
    uuids = [f"GPU-0000000{i}-aaaa-bbbb-cccc-123456789abc" for i in range(2)]
    sim = Sim.load(gpus=2, uuids=uuids, pci=["0000:01:00", "0001:02:03"], numa=[3, 1], memory_mib=2048)
    gpus = sim.gpus()
    sim.unload()
    assert [gpu.uuid for gpu in gpus] == uuids
    assert [gpu.pci for gpu in gpus] == ["0000:01:00.0", "0001:02:03.0"]
    assert [gpu.numa for gpu in gpus] == [3, 1]
    assert {gpu.total for gpu in gpus} == {2048 * MIB}


def test_uuids_are_the_same_at_every_load_and_never_twice() -> None:
    seen = []
    for _ in range(2):
        sim = Sim.load(gpus=16)
        seen.append([gpu.uuid for gpu in sim.gpus()])
        sim.unload()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 16


@pytest.mark.parametrize(
    "parameters",
    [
        {"gpus": 0},
        {"gpus": 17},
        {"gpus": 1, "uuids": ["GPU-nonsense"]},
        {"gpus": 2, "uuids": ["GPU-00000000-aaaa-bbbb-cccc-123456789abc"] * 2},
        {"gpus": 1, "pci": ["1b"]},
        {"gpus": 1, "memory_mib": 0},
    ],
)
def test_a_bad_parameter_refuses_the_load(parameters: dict[str, object]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        Sim.load(**parameters)
    assert not Path("/sys/module/nvsim").exists()


def test_the_nodes_have_the_drivers_numbers(sim: Sim) -> None:
    majors = re.findall(r"^ *(\d+) nvidia-uvm$", Path("/proc/devices").read_text(), re.MULTILINE)
    uvm = int(majors[0])
    expected = {f"/dev/nvidia{i}": (195, i) for i in range(GPUS)}
    expected["/dev/nvidiactl"] = (195, 255)
    expected["/dev/nvidia-uvm"] = (uvm, 0)
    expected["/dev/nvidia-uvm-tools"] = (uvm, 1)
    for path, numbers in expected.items():
        node = Path(path).stat()
        assert (os.major(node.st_rdev), os.minor(node.st_rdev)) == numbers, path
        assert stat.S_IMODE(node.st_mode) == 0o666, path


def test_what_can_be_hooked_by_fentry_and_what_can_not(sim: Sim) -> None:
    functions = Path("/sys/kernel/tracing/available_filter_functions").read_text()
    traceable = set(re.findall(r"^(\S+) \[nvsim\]", functions, re.MULTILINE))
    assert {
        "nvidia_unlocked_ioctl",
        "nvidia_close",
        "uvm_unlocked_ioctl_entry",
        "uvm_release_entry",
    } <= traceable
    assert {"nvsim_count_ioctl", "nvsim_count_compat_ioctl"} <= traceable
    assert "nvsim_plain_ioctl" not in traceable
    assert "nvsim_plain_ioctl" in Path("/proc/kallsyms").read_text()


# Computing


@pytest.mark.parametrize(
    "client", [[str(BUILD / "bin/cuda-add"), "5000", "1"], [str(CUDA_CLIENT), "-n", "5000", "-d", "1"]]
)
def test_a_client_computes_right_on_the_gpu(sim: Sim, client: list[str]) -> None:
    before = sim.counters()
    done = run(client)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok 5000 elements, first call waited ")
    assert sim.counters()["launches"] == before["launches"] + 1
    assert sim.gpu(1).used == 0
    assert sim.gpu(1).contexts == 0


def test_the_answer_comes_from_the_engine_and_not_from_the_library(sim: Sim) -> None:
    sim.set_knob("sample_ms", 1500)
    begin = time.monotonic()
    assert run([BUILD / "bin/cuda-add"]).returncode == 0
    assert time.monotonic() - begin > 1.0


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "UUID3,UUID1"}, [3, 1]),
        ({"NVIDIA_VISIBLE_DEVICES": "UUID2"}, [2]),
        ({"NVIDIA_VISIBLE_DEVICES": "1,3", "CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
    ],
)
def test_the_environment_says_which_gpus_a_client_sees(
    sim: Sim, env: dict[str, str], seen: list[int]
) -> None:
    uuids = [gpu.uuid for gpu in sim.gpus()]
    for i, uuid in enumerate(uuids):
        env = {name: value.replace(f"UUID{i}", uuid) for name, value in env.items()}
    code = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)))
for i in range(count.value):
    cuda.cuDeviceGetUuid(uuid, i)
    print(bytes(uuid).hex())
"""
    first, *found = python(code, env=env).stdout.splitlines()
    assert first == ("0 0" if seen else "100 3")
    assert found == [uuids[i].removeprefix("GPU-").replace("-", "") for i in seen]


def test_more_memory_than_there_is_is_refused(sim: Sim) -> None:
    with (
        pytest.raises(ClientError, match="out of memory"),
        burner(options=["--device", "0", "--mib", "81300"]),
    ):
        pass
    assert sim.gpu(0).used == 0


def test_touching_more_memory_than_the_host_backs_is_a_bus_error(sim: Sim) -> None:
    sim.set_knob("backing_mib", 1)
    assert run([BUILD / "bin/cuda-add", "1000000"]).returncode == -signal.SIGBUS
    assert sim.gpu(0).used == 0
    assert run([BUILD / "bin/cuda-add", "1000"]).returncode == 0


# Accounting


def test_memory_is_attributed_to_the_processes_that_hold_it(sim: Sim, nvml: Any) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(2)
    with burner(procs=3, options=["--device", "2", "--mib", "1024"]):
        held = {process.pid: process.bytes for process in sim.processes()}
        seen = {
            process.pid: process.usedGpuMemory
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)
        }
        memory = nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2)
        assert seen == held
        assert list(held.values()) == [1024 * MIB + CTX] * 3
        assert memory.used == sim.gpu(2).used == sum(held.values())
        assert memory.free == memory.total - memory.used - memory.reserved
        assert nvml.nvmlDeviceGetMemoryInfo(device).used == memory.used + memory.reserved
    wait_until(lambda: sim.gpu(2).used == 0, LIMIT_S, "memory back")
    assert nvml.nvmlDeviceGetComputeRunningProcesses(device) == []


QUERIES = """
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    device = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceGetName(device), n.nvmlDeviceGetMemoryInfo(device), n.nvmlDeviceGetUtilizationRates(device)
    n.nvmlDeviceGetComputeRunningProcesses(device), n.nvmlDeviceGetGraphicsRunningProcesses(device)
    n.nvmlDeviceGetTemperature(device, 0), n.nvmlDeviceGetPowerUsage(device)
    n.nvmlDeviceGetPersistenceMode(device)
n.nvmlShutdown()
print("asked")
"""


def test_queries_make_no_context_and_no_compute_operation(sim: Sim) -> None:
    before = sim.counters()
    assert python(QUERIES).stdout == "asked\n"
    assert nvcall("query", "-n", 100)["errors"] == 0
    after = sim.counters()
    assert after["control"] > before["control"]
    made = {name for name in after if after[name] > before[name]}
    assert made == {
        "alloc_root",
        "alloc_device",
        "alloc_subdevice",
        "control",
        "frontend",
        "free",
        "opens",
        "closes",
    }
    assert sim.audit() == []


def test_each_operation_is_counted_and_audited_once(sim: Sim) -> None:
    before = sim.counters()
    told = nvcall("compute", "-n", 25, "-t", 4, "-d", 3)
    assert told["errors"] == 0
    audit = sim.audit()
    assert sim.counters()["alloc_vaspace"] == before["alloc_vaspace"] + 100
    assert len(audit) == 100
    assert {op.tid for op in audit} == {call["tid"] for call in told["calls"]}
    assert {(op.tgid, op.gpu, op.cls, op.result) for op in audit} == {(told["pid"], 3, CLASS_VASPACE, 0)}
    assert all(told["start_ns"] <= op.ktime_ns <= told["end_ns"] for op in audit)


def test_the_counting_devices_count_each_entry_apart(sim: Sim) -> None:
    results = sorted(call["result"] for call in nvcall("count", "-n", 50, "-t", 4)["calls"])
    assert results == list(range(1, 201))
    assert [call["result"] for call in nvcall("plain", "-n", 3)["calls"]] == [1, 2, 3]
    done = run([BUILD / "bin/nvcall32", "/dev/nvsim-count", "7", "3"])
    assert done.stdout == "1\n2\n3\n"
    counters = sim.counters()
    assert (counters["count"], counters["count_compat"], counters["plain"]) == (200, 3, 3)


@pytest.mark.parametrize(("path", "cmd"), [("/dev/nvidia-uvm", UVM_INITIALIZE), ("/dev/nvidiactl", RM_ALLOC)])
def test_a_32_bit_process_can_call_the_driver(sim: Sim, path: str, cmd: int) -> None:
    done = run([BUILD / "bin/nvcall32", path, hex(cmd), "2"])
    assert (done.returncode, done.stdout) == (0, "0\n0\n")


# The calls themselves


class Rm:
    """An open /dev/nvidiactl with a root client, driven by raw ioctls."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/nvidiactl", os.O_RDWR)
        self.client = self.alloc(0, 0, CLASS_CLIENT)[0]

    def __enter__(self) -> Rm:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def alloc(
        self, parent: int, handle: int, cls: int, root: int | None = None, params: bytes = b""
    ) -> tuple[int, int]:
        """RM_ALLOC; returns the handle and the status."""
        extra = ctypes.create_string_buffer(params, len(params)) if params else None
        address = ctypes.addressof(extra) if extra else 0
        root = getattr(self, "client", 0) if root is None else root
        args = bytearray(struct.pack("=IIIIQII", root, parent, handle, cls, address, len(params), 0))
        fcntl.ioctl(self.fd, RM_ALLOC, args)
        fields = struct.unpack("=IIIIQII", args)
        return fields[2], fields[6]

    def device(self, handle: int, gpu: int) -> int:
        """Make a device object; returns the status."""
        return self.alloc(
            self.client, handle, CLASS_DEVICE, params=struct.pack("=5I4xQQQI4x", gpu, *[0] * 8)
        )[1]


def test_a_handle_is_its_clients_alone_and_taken_once(sim: Sim) -> None:
    with Rm() as one, Rm() as two:
        assert one.client != two.client
        assert one.device(0x10, 0) == 0
        assert one.device(0x10, 0) == 0x19  # INSERT_DUPLICATE_NAME
        assert two.alloc(0x10, 0x20, CLASS_VASPACE)[1] == 0x36  # INVALID_OBJECT_PARENT
        assert two.alloc(0x10, 0x20, CLASS_VASPACE, root=one.client)[1] == 0x23  # INVALID_CLIENT
        assert one.alloc(0x10, 0x20, CLASS_VASPACE)[1] == 0
        assert one.device(0x11, GPUS) == 0x26  # INVALID_DEVICE
        assert one.alloc(0x10, 0x30, 0xC6C0)[1] == 0x36  # a compute object needs a channel
        assert one.alloc(0x10, 0x30, 0x1234)[1] == 0x22  # INVALID_CLASS
    assert sim.gpu(0).used == 0


def test_xfer_cmd_wraps_another_call(sim: Sim) -> None:
    with Rm() as rm:
        inner = ctypes.create_string_buffer(
            struct.pack("=IIIIQII", rm.client, rm.client, 0x10, CLASS_DEVICE, 0, 0, 0), 32
        )
        fcntl.ioctl(rm.fd, XFER_CMD, bytearray(struct.pack("=IIQ", 0x2B, 32, ctypes.addressof(inner))))
        assert struct.unpack("=IIIIQII", inner.raw)[6] == 0
        assert sim.gpu(0).handles == 1


def test_root_clients_are_made_on_nvidiactl_alone_and_nonsense_is_refused(sim: Sim) -> None:
    def errno_of(path: str, cmd: int, size: int) -> int:
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.ioctl(fd, cmd, bytearray(size))
        except OSError as error:
            return error.errno or 0
        finally:
            os.close(fd)
        return 0

    assert errno_of("/dev/nvidia0", RM_ALLOC, 32) == errno.EINVAL
    assert errno_of("/dev/nvidiactl", 0xC0204600, 32) == errno.EINVAL
    assert errno_of("/dev/nvidiactl", RM_ALLOC & ~0xFF00, 32) == errno.EINVAL
    assert errno_of("/dev/nvidia-uvm", 12345, 32) == errno.EINVAL
    assert errno_of("/dev/nvidiactl", RM_ALLOC, 32) == 0


def test_uvm_wants_its_initialisation_first(sim: Sim) -> None:
    fd = os.open("/dev/nvidia-uvm", os.O_RDWR)
    args = bytearray(bytes.fromhex(sim.gpu(0).uuid[4:].replace("-", "")) + bytes(24))
    fcntl.ioctl(fd, 37, args)
    assert struct.unpack_from("=I", args, 36)[0] == 0x16  # ILLEGAL_ACTION
    fcntl.ioctl(fd, UVM_INITIALIZE, bytearray(16))
    fcntl.ioctl(fd, 37, args)
    assert struct.unpack_from("=I", args, 36)[0] == 0
    assert sim.gpu(0).handles == 1
    os.close(fd)
    assert sim.gpu(0).handles == 0


# Death


@pytest.mark.parametrize(
    ("knobs", "least_s"), [({"teardown_ms_per_ctx": 1200}, 1.2), ({"teardown_ms_per_gib": 600}, 1.3)]
)
def test_the_last_close_takes_its_time_and_only_then_gives_memory_back(
    sim: Sim, knobs: dict[str, int], least_s: float
) -> None:
    for name, value in knobs.items():
        sim.set_knob(name, value)
    with burner(options=["--device", "0", "--mib", "2048"]) as process:
        begin = time.monotonic()
        process.kill()
        time.sleep(0.3)
        assert sim.gpu(0).used == 2048 * MIB + CTX
        assert waits_in_driver(process.pid)
        process.wait(LIMIT_S)
        assert time.monotonic() - begin >= least_s
    assert sim.gpu(0).used == 0


def test_memory_can_come_back_later_than_the_process_goes(sim: Sim) -> None:
    sim.set_knob("async_free_ms", 1500)
    with burner(options=["--device", "0"]) as process:
        process.kill()
        process.wait(LIMIT_S)
        gone = time.monotonic()
    assert sim.gpu(0).used == 1024 * MIB + CTX
    assert sim.gpu(0).handles == 0
    assert sim.processes() == []
    wait_until(lambda: sim.gpu(0).used == 0, LIMIT_S, "memory back")
    assert time.monotonic() - gone >= 1.0


# Work


def test_work_through_the_doorbell_is_utilisation_without_a_driver_call(sim: Sim, nvml: Any) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(1)
    names = ("control", "compute", "frontend", "map", "free", "opens", "alloc_root")
    with burner(options=["--device", "1"]):
        before = sim.counters()
        wait_until(lambda: sim.gpu(1).utilisation >= 50, LIMIT_S, "utilisation")
        after = sim.counters()
        assert [after[name] for name in names] == [before[name] for name in names]
        assert after["launches"] > before["launches"]
        assert nvml.nvmlDeviceGetUtilizationRates(device).gpu >= 50
        assert sim.gpu(0).utilisation == 0
    wait_until(lambda: sim.gpu(1).utilisation == 0, LIMIT_S, "rest")


def test_a_context_without_work_is_no_utilisation(sim: Sim) -> None:
    with burner(options=["--device", "1", "--idle"]):
        time.sleep(1.2)
        assert sim.gpu(1).utilisation == 0
        assert sim.gpu(1).contexts == 1


# Faults


def test_an_xid_reaches_who_waits_for_it(sim: Sim, nvml: Any) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(2)
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 50)
    sim.xid(1, 31)  # another GPU's is not ours
    sim.xid(2, 79)
    event = nvml.nvmlEventSetWait_v2(events, 5000)
    assert (event.eventType, event.eventData) == (nvml.nvmlEventTypeXidCriticalError, 79)
    assert nvml.nvmlDeviceGetIndex(event.device) == 2
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 50)
    nvml.nvmlEventSetFree(events)


def test_leaked_memory_stays_until_cleared(sim: Sim) -> None:
    sim.set_leak(0, 700)
    with burner(options=["--device", "0"]):
        pass
    wait_until(lambda: sim.gpu(0).leaked == 700 * MIB, LIMIT_S, "leak")
    assert sim.gpu(0).used == 700 * MIB
    assert sim.processes() == []
    sim.set_leak(0, 0)
    assert sim.gpu(0).used == 0


def test_a_stuck_teardown_holds_the_process_in_d_until_cleared(sim: Sim) -> None:
    with burner(options=["--device", "0"]) as process:
        sim.set_stuck(0, True)
        process.kill()
        wait_until(lambda: waits_in_driver(process.pid), LIMIT_S, "a stuck teardown")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert sim.gpu(0).used > 0
        sim.set_stuck(0, False)
        process.wait(LIMIT_S)
    assert sim.gpu(0).used == 0


ASK_ONE = """
import pynvml as n
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex({gpu})
print(n.nvmlDeviceGetMemoryInfo(device).used)
"""


def test_a_blocked_gpu_blocks_its_callers_unkillably_and_no_others(sim: Sim) -> None:
    with sim.fault("block", 1):
        stuck = [spawn(["python3", "-c", ASK_ONE.format(gpu=1)]), spawn([BUILD / "bin/cuda-add", "16", "1"])]
        for process in stuck:
            wait_until(lambda pid=process.pid: waits_in_driver(pid), LIMIT_S, "a blocked call")  # type: ignore[misc]
        assert python(ASK_ONE.format(gpu=0)).stdout == f"{MIB}\n"
        named = " ".join(blocked_tasks())
        assert all(f"({process.pid})" in named for process in stuck), "the check after every suite sees them"
        stuck[0].kill()
        with pytest.raises(subprocess.TimeoutExpired):
            stuck[0].wait(1)
    assert finish(stuck[0]).returncode == -9
    assert finish(stuck[1]).stdout.startswith("ok 16 elements")


def test_a_lost_gpu_fails_every_call_until_it_is_back(sim: Sim, nvml: Any) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    with burner(options=["--device", "0"]) as process, sim.fault("lost", 0):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            nvml.nvmlDeviceGetMemoryInfo(device)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1))
        assert process.wait(LIMIT_S) == 1
    assert nvml.nvmlDeviceGetMemoryInfo(device).used == MIB
    assert run([BUILD / "bin/cuda-add"]).returncode == 0


# The guard


def test_the_guard_is_content_while_the_owner_is_alone(sim: Sim, owner: Path) -> None:
    sim.guard_add(0, owner)
    assert run([BUILD / "bin/cuda-add", "16", "0"], cgroup=owner).returncode == 0
    guard = sim.guard()
    assert guard.checks > 0
    assert (guard.violations, guard.last) == (0, "-")


def test_the_guard_counts_a_foreign_process_on_the_gpu(sim: Sim, owner: Path, spot: Path) -> None:
    sim.guard_add(0, owner)
    with burner(cgroup=spot, options=["--device", "0"]) as process:
        assert nvcall("compute", "-d", 0, cgroup=owner)["errors"] == 0
        guard = sim.guard()
        assert (guard.checks, guard.violations) == (1, 1)
        assert f"pid {process.pid} (gpu-burn)" in guard.last
        assert nvcall("compute", "-d", 1, cgroup=owner)["errors"] == 0  # a GPU that nobody guards
        assert nvcall("compute", "-d", 0, cgroup=spot)["errors"] == 0  # the foreigner is not the guarded one
        assert nvcall("uvm", cgroup=owner)["errors"] == 0  # names no GPU: all that are guarded for the owner
        assert (sim.guard().checks, sim.guard().violations) == (2, 2)
    burnt = 1024 * MIB + CTX
    assert [op.foreign_bytes for op in sim.audit()[-4:]] == [burnt, 0, 0, burnt]
    sim.guard_clear()
    assert sim.guard() == type(guard)(0, 0, "-")


def test_the_guard_counts_memory_whose_process_is_gone(sim: Sim, owner: Path, spot: Path) -> None:
    sim.guard_add(0, owner)
    sim.set_knob("async_free_ms", 3000)
    with burner(cgroup=spot, options=["--device", "0"]):
        pass
    kill_cgroup(spot)
    assert nvcall("compute", "-d", 0, cgroup=owner)["errors"] == 0
    assert sim.guard().violations == 1
    assert " 0 foreign handles" in sim.guard().last
    wait_until(lambda: sim.gpu(0).used == 0, LIMIT_S, "memory back")
    sim.set_knob("async_free_ms", 0)
    assert nvcall("compute", "-d", 0, cgroup=owner)["errors"] == 0
    assert (sim.guard().checks, sim.guard().violations) == (2, 1)


def test_the_guard_takes_a_nested_cgroup_for_the_owner_and_allows_the_allowed(
    sim: Sim, owner: Path, spot: Path
) -> None:
    child = owner / "child"
    child.mkdir()
    sim.guard_add(0, owner)
    with burner(cgroup=child, options=["--device", "0"]):
        assert nvcall("compute", "-d", 0, cgroup=owner)["errors"] == 0
        assert sim.guard().violations == 0
    kill_cgroup(child)
    with burner(cgroup=spot, options=["--device", "0"]):
        sim.guard_allow(spot)
        assert nvcall("compute", "-d", 0, cgroup=child)["errors"] == 0
        assert (sim.guard().checks > 1, sim.guard().violations) == (True, 0)
    child.rmdir()


def test_an_open_node_alone_is_a_foreign_handle(sim: Sim, owner: Path) -> None:
    sim.guard_add(0, owner)
    fd = os.open("/dev/nvidia0", os.O_RDWR)
    nvcall("compute", "-d", 0, cgroup=owner)
    os.close(fd)
    assert sim.guard().violations == 1
    nvcall("compute", "-d", 0, cgroup=owner)
    assert sim.guard().violations == 1


@pytest.mark.parametrize(
    "line", ["", "add", "add 99 1", "add 0 123456789", "allow", "allow x", "nonsense", "add 0 1 2"]
)
def test_a_wrong_guard_line_is_refused(sim: Sim, line: str) -> None:
    with pytest.raises(OSError, match=r"Invalid|No such"):
        Path("/sys/kernel/debug/nvsim/guard").write_text(line + "\n")
    assert sim.guard().checks == 0


@pytest.mark.parametrize(
    ("name", "line"), [("block", "0 2"), ("block", "99 1"), ("leak", "0 999999999"), ("xid", "x")]
)
def test_a_wrong_fault_line_is_refused(sim: Sim, name: str, line: str) -> None:
    with pytest.raises(OSError, match=r"Invalid|No such|out of range"):
        Path(f"/sys/kernel/debug/nvsim/{name}").write_text(line)
    assert not sim.gpu(0).blocked


# The device plugin


def test_the_device_plugin_offers_what_nvml_shows(sim: Sim, tmp_path: Path) -> None:
    from tests.sim.fake_kubelet import FakeKubelet  # gRPC takes seconds to import under emulation

    kubelet = FakeKubelet(tmp_path)
    kubelet.start()
    options: list[str | Path] = [
        "--kubelet-dir",
        tmp_path,
        "--cdi-dir",
        tmp_path / "cdi",
        "--library-dir",
        BUILD / "lib",
    ]
    process = spawn([sys.executable, "-m", "tests.sim.device_plugin", *options])
    endpoint = kubelet.registrations.get(timeout=120).endpoint
    uuids = [gpu.uuid for gpu in sim.gpus()]
    with kubelet.plugin(endpoint) as plugin:
        lists = plugin.watch()
        assert next(lists) == {gpu.uuid: ("Healthy", [gpu.numa]) for gpu in sim.gpus()}
        assert sorted(plugin.preferred(uuids[1:], [], 2)) == sorted(uuids[2:])
        answer = plugin.allocate([uuids[3]])[0]
        assert [device.host_path for device in answer.devices][:2] == ["/dev/nvidia3", "/dev/nvidiactl"]
        assert all(Path(mount.host_path).exists() for mount in answer.mounts)
        assert [device.name for device in answer.cdi_devices] == [f"nvidia.com/gpu={uuids[3]}"]
        sim.xid(1, 31)  # an application's fault
        sim.xid(2, 79)
        healths = {uuid: health for uuid, (health, _) in next(lists).items()}
        assert [healths[uuid] for uuid in uuids] == ["Healthy", "Healthy", "Unhealthy", "Healthy"]
    process.terminate()
    assert finish(process).returncode == 0
    assert not (tmp_path / endpoint).exists()
    assert sim.counters()["compute"] == 0
    kubelet.stop()


# Leaving nothing behind


def test_the_module_cannot_be_unloaded_while_it_is_used() -> None:
    sim = Sim.load(gpus=1)
    fd = os.open("/dev/nvidiactl", os.O_RDWR)
    with pytest.raises(subprocess.CalledProcessError):
        sim.unload()
    os.close(fd)
    sim.unload()
    assert not Path("/dev/nvidiactl").exists()


def test_it_loads_and_unloads_again_and_again_even_with_memory_still_late() -> None:
    for _ in range(10):
        sim = Sim.load(gpus=16, async_free_ms=60000)
        nvcall("compute", "-n", 2, "-d", 15)
        sim.set_leak(15, 10)
        nvcall("compute", "-d", 15)
        assert sim.gpu(15).used > 0
        sim.unload()


def storm(sim: Sim, rounds: int, pick: random.Random) -> None:
    """Start clients of every kind, and kill each at a random moment."""
    clients: list[Callable[[], list[str | Path]]] = [
        lambda: [BUILD / "bin/gpu-burn", "--mib", "64", "--procs", "2", "--interval-ms", "20"],
        lambda: [BUILD / "bin/nvcall", "compute", "-n", "200", "-t", "4", "-d", str(pick.randrange(GPUS))],
        lambda: [BUILD / "bin/nvcall", "uvm", "-n", "500", "-t", "2"],
        lambda: [BUILD / "bin/cuda-add", "2000", str(pick.randrange(GPUS))],
    ]
    with cgroup("storm") as path:
        for _ in range(rounds):
            processes = [spawn(pick.choice(clients)(), cgroup=path) for _ in range(8)]
            time.sleep(pick.uniform(0.0, 0.6))
            sim.guard(), sim.gpus(), sim.processes()
            kill_cgroup(path)
            for process in processes:
                process.communicate(timeout=LIMIT_S)


def test_a_storm_of_dying_clients_leaves_nothing(sim: Sim) -> None:
    sim.set_knob("teardown_ms_per_ctx", 20)
    storm(sim, 5, random.Random(3))
    counters = sim.counters()
    assert counters["opens"] == counters["closes"]
    assert all((gpu.used, gpu.contexts, gpu.handles) == (0, 0, 0) for gpu in sim.gpus())


@pytest.mark.soak
def test_a_long_storm_leaves_nothing(sim: Sim) -> None:
    storm(sim, 40, random.Random(5))
    assert all((gpu.used, gpu.contexts, gpu.handles) == (0, 0, 0) for gpu in sim.gpus())
