# SPDX-License-Identifier: Apache-2.0
"""P4, in a guest that counts instructions: what a gate costs the ioctls of a caller that nobody watches.

Under `-icount shift=0` one instruction is one virtual nanosecond, so CLOCK_MONOTONIC counts instructions.
Three states of the same driver take turns: no gate; a gate that is armed, but nothing is watched, so that the
function is not hooked; a live gate, as while somebody else is watched. Writes one JSON object: state ->
operation -> instructions a call, a list.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from spotgpu_khook.abi import Classifier, GateState
from spotgpu_khook.client import Khook
from spotgpu_khook.model import CgroupKey, WatchPolicy
from tests.sim.nvsim import BUILD, Sim, cgroup_id

CALLS = 4000
ROUNDS = 5
#: What is asked: a real driver query, and the smallest ioctl there can be.
OPERATIONS = {
    "query": ("/dev/nvidiactl", Classifier.NVIDIA_RM),
    "count": ("/dev/nvsim-count", Classifier.ANY),
}
#: Unhooking is done by a delayed work item.
UNHOOK_LIMIT_S = 30.0


def instructions(operation: str) -> float:
    """Return the instructions of one call, from one clock reading before the loop and one after it."""
    argv = [str(BUILD / "bin/nvcall"), operation, "-n", str(CALLS), "--summary", "--tight"]
    out: dict[str, int] = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    return (out["end_ns"] - out["start_ns"]) / CALLS


def measure() -> dict[str, float]:
    """Return one sample of each operation."""
    return {operation: instructions(operation) for operation in OPERATIONS}


async def wait_state(khook: Khook, state: GateState) -> None:
    """Wait until every gate is in `state`. Raises TimeoutError: a figure of another state would be a lie."""
    deadline = time.monotonic() + UNHOOK_LIMIT_S
    while any(gate.state is not state for gate in await khook.gates()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"gates are not {state.name} after {UNHOOK_LIMIT_S} s: {await khook.gates()}")
        await asyncio.sleep(0.05)


async def one_round(khook: Khook, other: int) -> dict[str, dict[str, float]]:
    """Measure the three states one after the other."""
    sample = {"none": measure()}
    fds = [os.open(path, os.O_RDWR) for path, _ in OPERATIONS.values()]
    gates = [
        await khook.arm(fd, classifier) for fd, (_, classifier) in zip(fds, OPERATIONS.values(), strict=True)
    ]
    await wait_state(khook, GateState.ARMED)
    sample["disarmed"] = measure()
    watch = await khook.detect(CgroupKey(other), WatchPolicy())
    await wait_state(khook, GateState.LIVE)
    sample["armed"] = measure()
    await khook.undetect(watch.id)
    await wait_state(khook, GateState.ARMED)
    for gate in gates:
        await khook.disarm(gate.id)
    for fd in fds:
        os.close(fd)
    return sample


async def run(other: int) -> dict[str, dict[str, list[float]]]:
    """Run all rounds with the cgroup `other` watched; the first is thrown away: everything is cold in it."""
    khook = await Khook.connect()
    samples = [await one_round(khook, other) for _ in range(ROUNDS + 1)][1:]
    await khook.close()
    return {
        state: {operation: [sample[state][operation] for sample in samples] for operation in OPERATIONS}
        for state in samples[0]
    }


def main() -> None:
    """Write the samples to the file named as the only argument."""
    Sim.load(gpus=1)
    subprocess.run(["insmod", "/opt/spotgpu/build/kmod/khook.ko"], check=True)
    other = Path("/sys/fs/cgroup/somebody-else")
    other.mkdir()
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(run(cgroup_id(other)))))


if __name__ == "__main__":
    main()
