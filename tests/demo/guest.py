# SPDX-License-Identifier: Apache-2.0
"""The demo, in the guest: spot containers on owners' simulated GPUs, a real agent, owners that come back.

Shows what happens as it happens, as the agent's log tells it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pynvml
import yaml

from spotgpu import admin
from tests.guestlib.containerd import (
    NAMESPACE,
    SOCKET,
    Container,
    run_container,
    running_containerd,
    wait_until,
)
from tests.sim.nvsim import Gpu, Sim

BUILD = Path("/opt/spotgpu/build")
RESULTS = Path(os.environ.get("RESULTS", "/results"))
LABEL = "spotgpu.dev/lender"
CONFIG = Path("/etc/spotgpu/config.yaml")
#: What a real driver takes to tear a context down, by the published range of 0.1 to 1 s.
TEARDOWN_MS = 300
SPOT_MIB = 24 * 1024
AGENT_LIMIT_S = 90.0
CLIENT_LIMIT_S = 120.0


@dataclass(frozen=True)
class Pair:
    """One owner, the spot container on its GPUs, and those GPUs."""

    owner: Container
    spot: Container
    gpus: tuple[Gpu, ...]


def headline(text: str) -> None:
    """Print what the next lines are about."""
    print(f"\n== {text}", flush=True)


def nodes(gpus: Sequence[Gpu]) -> list[str]:
    """The device nodes a container with these GPUs gets, as NVIDIA's device plugin would give them."""
    return [*(f"/dev/nvidia{gpu.index}" for gpu in gpus), "/dev/nvidiactl", "/dev/nvidia-uvm"]


def load(gpus: int) -> Sim:
    """Load the driver, its libraries, and khook."""
    sim = Sim.load(gpus=gpus, memory_mib=81920, teardown_ms_per_ctx=TEARDOWN_MS)
    sim.install_libraries()
    subprocess.run(["insmod", str(BUILD / "kmod/khook.ko")], check=True)
    return sim


def start_pair(number: int, gpus: Sequence[Gpu]) -> Pair:
    """Start an owner that uses no GPU, and a spot container that burns the owner's GPUs."""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}
    name = f"owner-{number}"
    owner = run_container(name, ["sleep", "infinity"], devices=nodes(gpus), env=env)
    burn = [str(BUILD / "sim/bin/gpu-burn"), "--mib", str(SPOT_MIB)]
    spot = run_container(f"spot-{number}", burn, devices=nodes(gpus), env=env, labels={LABEL: name})
    wait_until(lambda: "ready" in spot.output(), CLIENT_LIMIT_S, f"spot-{number} burns its GPUs")
    return Pair(owner, spot, tuple(gpus))


def write_config(pairs: Sequence[Pair]) -> None:
    """Write the agent's configuration, as an administrator would."""
    owners = [
        {
            "name": pair.owner.name,
            "container": {"id": pair.owner.name},
            "devices": [gpu.uuid for gpu in pair.gpus],
            "spot": [{"container": {"labels": {LABEL: pair.owner.name}}}],
        }
        for pair in pairs
    ]
    config = {
        "node": "demo",
        "containerd": {"socket": str(SOCKET), "namespace": NAMESPACE},
        "traces": str(RESULTS / "traces.jsonl"),
        "policy": {"deadline": "60s"},  # emulation is some twenty times slower than a node
        "owners": owners,
    }
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(yaml.safe_dump(config, sort_keys=False))


def smi() -> None:
    """Print what `nvidia-smi` would: memory, utilisation and processes of each GPU, through NVML."""
    pynvml.nvmlInit()
    print("  GPU  UUID            memory used / total        util  processes")
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        util = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        processes = [f"{p.pid}" for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        used, total = memory.used >> 20, memory.total >> 20
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))[:12]
        print(f"  {index:>3}  {uuid}…  {used:>9,} / {total:,} MiB  {util:>4} %  {' '.join(processes) or '-'}")
    pynvml.nvmlShutdown()
    sys.stdout.flush()


class Feed:
    """The agent's log, shown live: one JSON object a line in, one sentence a line out."""

    def __init__(self, source: IO[str], log: IO[str]) -> None:
        self._source, self._log = source, log
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for line in self._source:
            self._log.write(line)
            self._log.flush()
            try:
                entry = json.loads(line)
            except ValueError:
                print(f"  agent  {line.rstrip()}", flush=True)
                continue
            print(f"  agent  {entry['msg']}", flush=True)


def spotgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the spotgpu command."""
    argv = [sys.executable, "-m", "spotgpu", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=AGENT_LIMIT_S)


def lent(count: int) -> bool:
    """Whether the agent says that so many devices are lent."""
    try:
        devices = admin.ask("status")["devices"]
    except admin.NoAgent:
        return False
    assert isinstance(devices, list)
    return [device["state"] for device in devices].count("lent") == count


def owners_return(pairs: Sequence[Pair]) -> bool:
    """Run an ordinary CUDA client in every owner at once; True if all computed the right answer."""
    client = ["python3", "/src/tests/sim/cuda_client.py"]
    running = [
        subprocess.Popen(
            ["ctr", "-n", NAMESPACE, "task", "exec", "--exec-id", "client", pair.owner.name, *client],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for pair in pairs
    ]
    good = True
    for pair, process in zip(pairs, running, strict=True):
        out, _ = process.communicate(timeout=CLIENT_LIMIT_S)
        for line in out.splitlines():
            print(f"  {pair.owner.name}  {line}", flush=True)
        good = good and process.returncode == 0
    return good


def demo(owners: int, sim: Sim) -> bool:
    """Run the whole act; True if every owner's client came back with the right answer."""
    gpus = sim.gpus()
    each = len(gpus) // owners
    headline(f"{owners} owner(s) hold {each} GPU(s) each and use none; spot containers burn them")
    pairs = [start_pair(i, gpus[i * each : (i + 1) * each]) for i in range(owners)]
    write_config(pairs)
    smi()
    headline("the agent: arms the gates, watches the owners, lends their GPUs")
    argv = [sys.executable, "-m", "spotgpu", "agent", "--standalone", str(CONFIG)]
    with (RESULTS / "agent.log").open("w") as log:
        agent = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert agent.stderr
        Feed(agent.stderr, log)
        wait_until(lambda: lent(each * owners), AGENT_LIMIT_S, "the agent has lent the devices", poll_s=1.0)
        headline("the owner comes back: an ordinary CUDA client")
        good = owners_return(pairs)
        time.sleep(1.0)
        headline("after")
        smi()
        agent.terminate()
        agent.wait(timeout=AGENT_LIMIT_S)
    traces = RESULTS / "traces.jsonl"
    headline("the hand-back as one trace" if owners == 1 else "the hand-backs, one trace each")
    drawn = spotgpu("trace", "--file", str(traces), "--last", str(owners))
    print(drawn.stdout, drawn.stderr, flush=True)
    page = spotgpu(
        "trace", "--file", str(traces), "--last", str(owners), "--html", str(RESULTS / "handback.html")
    )
    return good and drawn.returncode == 0 and page.returncode == 0


def main() -> int:
    """Load what a node has loaded, run the demo, exit 0 if it did what it promises."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--owners", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    options = parser.parse_args()
    headline("a node: containerd, khook, simulated GPUs")
    sim = load(options.gpus)
    with running_containerd():
        return 0 if demo(options.owners, sim) else 1


if __name__ == "__main__":
    sys.exit(main())
