# SPDX-License-Identifier: Apache-2.0
"""P1, in a guest: hand-backs and floors, taking turns on one node with one agent.

GPU 0 has an owner with proof, GPU 1 one whose release is on the empty lease, GPU 2 one with notify; GPU 3
belongs to nobody, and its spot container is killed the shortest way there is. Every round starts the same
spot container on each. A hand-back is what khook measured: first held ioctl to release. Writes one JSON
object to the file named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from spotgpu import admin
from spotgpu_khook.client import Khook
from spotgpu_khook.model import CgroupKey, Watch
from tests.bench.figures import PROCESSES
from tests.bench.python_loop import loop_ns
from tests.guestlib.containerd import (
    NAMESPACE,
    SOCKET,
    Container,
    delete_container,
    run_container,
    running_containerd,
    wait_until,
)
from tests.sim.nvsim import BUILD, Sim

CONFIG = Path("/etc/spotgpu/config.yaml")
LABEL = "spotgpu.dev/lender"
#: What a context takes to tear down on hardware, before it is dilated.
TEARDOWN_MS = 100
SPOT_MIB = 64
LIMIT_S = 180.0
MODES = {"proof": {"release_on": "proof"}, "empty": {"release_on": "empty"}, "notify": {"on_hold": "notify"}}
FLOOR_GPU = len(MODES)


@dataclass(frozen=True)
class Owner:
    """An owner's container and the GPU it lends."""

    mode: str
    gpu: int
    container: Container


def nodes(gpu: int) -> list[str]:
    """The device nodes of a container with this GPU."""
    return [f"/dev/nvidia{gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def start_owners() -> list[Owner]:
    """One idle owner a mode."""
    return [
        Owner(mode, gpu, run_container(f"owner-{mode}", ["sleep", "infinity"], devices=nodes(gpu)))
        for gpu, mode in enumerate(MODES)
    ]


def write_config(owners: list[Owner], sim: Sim) -> None:
    """The agent's configuration: a deadline that emulation can't reach, and idle soon after a return."""
    uuids = [gpu.uuid for gpu in sim.gpus()]
    config = {
        "node": "bench",
        "containerd": {"socket": str(SOCKET), "namespace": NAMESPACE},
        "traces": "/results/traces.jsonl",
        "policy": {"deadline": "120s", "heartbeat": "60s", "max_inactive": "1s"},
        "owners": [
            {
                "name": owner.mode,
                "container": {"id": owner.container.name},
                "devices": [uuids[owner.gpu]],
                "policy": MODES[owner.mode],
                "spot": [{"container": {"labels": {LABEL: owner.mode}}}],
            }
            for owner in owners
        ],
    }
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(yaml.safe_dump(config))


def state_of(owner: str) -> str:
    """What the agent says of an owner's device."""
    try:
        devices = admin.ask("status")["devices"]
    except admin.NoAgent:
        return "no agent"
    assert isinstance(devices, list)
    return next(str(device["state"]) for device in devices if device["owner"] == owner)


def start_spot(name: str, gpu: int, processes: int) -> Container:
    """A spot container with so many processes, each with a context; returned when all have one."""
    argv = [str(BUILD / "bin/gpu-burn"), "--mib", str(SPOT_MIB), "--procs", str(processes), "--idle"]
    spot = run_container(name, argv, devices=nodes(gpu), labels={LABEL: name.split("-")[1]})
    wait_until(
        lambda: spot.output().count("ready") == processes, LIMIT_S, f"{name}: {processes} contexts", 0.1
    )
    return spot


def touch(owner: Owner) -> None:
    """The owner's first compute call, by a process born in its container's cgroup; returns when it has."""
    join = f"echo $$ >{owner.container.cgroup}/cgroup.procs; exec {BUILD}/bin/nvcall compute -d {owner.gpu}"
    subprocess.run(["sh", "-c", join], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)


def last_return(owner: Owner) -> Watch:
    """The watch of an owner with its last return, as khook tells it."""

    async def ask() -> list[Watch]:
        async with await Khook.connect() as khook:
            return await khook.watches()

    key = CgroupKey(owner.container.cgroup_id)
    return next(watch for watch in asyncio.run(ask()) if watch.key == key)


def handback_ns(owner: Owner, processes: int) -> int:
    """Lend, return, and give the length of the hand-back."""
    spot = start_spot(f"spot-{owner.mode}", owner.gpu, processes)
    wait_until(lambda: state_of(owner.mode) == "lent", LIMIT_S, f"{owner.mode} is lent", 0.2)
    touch(owner)
    watch = last_return(owner)
    delete_container(spot)
    return watch.release_ns - watch.first_ns


def floor_ns(processes: int) -> int:
    """The same spot container, killed the shortest way."""
    spot = start_spot("spot-nobody", FLOOR_GPU, processes)
    done = subprocess.run(
        [str(BUILD / "bin/floor"), str(spot.cgroup), str(FLOOR_GPU)], check=True, capture_output=True
    )
    delete_container(spot)
    times: dict[str, int] = json.loads(done.stdout)
    return times["end_ns"] - times["start_ns"]


def series(owners: list[Owner], processes: int, rounds: int) -> dict[str, list[int]]:
    """So many rounds of floor and hand-backs, taking turns."""
    samples: dict[str, list[int]] = {"floor": [], **{owner.mode: [] for owner in owners}}
    for number in range(rounds):
        samples["floor"].append(floor_ns(processes))
        for owner in owners:
            samples[owner.mode].append(handback_ns(owner, processes))
        told = {mode: f"{values[-1] / 1e6:.0f} ms" for mode, values in samples.items()}
        print(f"  {processes} process(es), round {number + 1} of {rounds}: {told}", flush=True)
    return samples


def measure(sim: Sim, owners: list[Owner], rounds: int, slowdown: float) -> dict[str, dict[str, list[int]]]:
    """All series: dilated teardown with 1, 8 and 64 processes; then one process with 100 ms and with none."""
    sim.set_knob("teardown_ms_per_ctx", round(TEARDOWN_MS * slowdown))
    figures = {str(count): series(owners, count, rounds) for count in PROCESSES}
    proof = [owner for owner in owners if owner.mode == "proof"]
    for name, teardown in (("raw100", TEARDOWN_MS), ("raw0", 0)):
        sim.set_knob("teardown_ms_per_ctx", teardown)
        figures[name] = series(proof, 1, rounds)
    return figures


def main() -> None:
    """Set the node up, measure, write the samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--host-loop-ns", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    slowdown = loop_ns() / options.host_loop_ns
    print(f"  one Python loop, guest ÷ host: {slowdown:.1f}", flush=True)
    sim = Sim.load(gpus=FLOOR_GPU + 1, memory_mib=81920, ctx_mib=64)
    sim.install_libraries()
    subprocess.run(["insmod", "/opt/spotgpu/build/kmod/khook.ko"], check=True)
    with running_containerd():
        owners = start_owners()
        write_config(owners, sim)
        with Path("/results/agent.log").open("w") as log:
            argv = [sys.executable, "-m", "spotgpu", "agent", "--standalone", str(CONFIG)]
            agent = subprocess.Popen(argv, stderr=log)
            wait_until(
                lambda: {state_of(owner.mode) for owner in owners} == {"lendable"}, LIMIT_S, "lendable", 0.5
            )
            begin = time.monotonic()
            samples = measure(sim, owners, options.rounds, slowdown)
            print(f"  measured in {time.monotonic() - begin:.0f} s", flush=True)
            agent.terminate()
            agent.wait(timeout=LIMIT_S)
    options.out.write_text(json.dumps({"slowdown": slowdown, "samples": samples}))


if __name__ == "__main__":
    main()
