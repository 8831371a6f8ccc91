# SPDX-License-Identifier: Apache-2.0
"""`make shell`, in the guest: a whole node that goes on running, and two commands to play with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spotgpu.names import TRACES_ENV
from tests.demo.guest import (
    AGENT_LIMIT_S,
    CONFIG,
    RESULTS,
    headline,
    lent,
    load,
    start_pair,
    write_config,
)
from tests.guestlib.containerd import NAMESPACE, start_containerd, wait_until

BIN = Path("/usr/local/bin")
LOG = Path("/run/spotgpu/agent.log")
GPUS = 2


def install(name: str, command: str) -> None:
    """Make a command of a line of shell."""
    path = BIN / name
    exports = f'export PYTHONPATH="{os.environ["PYTHONPATH"]}" {TRACES_ENV}={RESULTS}/traces.jsonl'
    path.write_text(f"#!/bin/sh\n{exports}\nexec {command}\n")
    path.chmod(0o755)


def main() -> None:
    """Set the node up and leave it running."""
    headline("a node: containerd, khook, simulated GPUs, an owner, a spot container, the agent")
    sim = load(GPUS)
    start_containerd()
    write_config([start_pair(0, sim.gpus())])
    install("spotgpu", f'{sys.executable} -m spotgpu "$@"')
    install(
        "owner-back",
        f"ctr -n {NAMESPACE} task exec --exec-id back-$$ owner-0 python3 /src/tests/sim/cuda_client.py",
    )
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("w") as log:
        argv = [sys.executable, "-m", "spotgpu", "agent", "--standalone", str(CONFIG)]
        subprocess.Popen(argv, stderr=log, start_new_session=True)
    wait_until(lambda: lent(GPUS), AGENT_LIMIT_S, "the agent has lent the devices", poll_s=1.0)
    headline("lent. What now?")
    print("  spotgpu status       gates, watches, holds, leases")
    print("  owner-back           a CUDA client in the owner: it is held until the card is free")
    print("  spotgpu trace --last 1")
    print(f"  tail -f {LOG}; spotgpu doctor; exit ends the guest", flush=True)


if __name__ == "__main__":
    main()
