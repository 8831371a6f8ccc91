# SPDX-License-Identifier: Apache-2.0
"""The CDI specification of the GPUs: what a runtime adds to a container for each CDI name."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sim.placement import Card

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def specification(kind: str, cards: Sequence[Card], libraries: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the specification; a device is named by its UUID. `libraries` are (host, container) paths."""
    mounts = [
        {"hostPath": host, "containerPath": container, "options": ["ro", "nosuid", "nodev", "bind"]}
        for host, container in libraries
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "containerEdits": {"deviceNodes": [{"path": path} for path in CONTROL_NODES], "mounts": mounts},
        "devices": [
            {"name": card.uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{card.minor}"}]}}
            for card in cards
        ],
    }


def write_specification(folder: Path, content: dict[str, Any]) -> Path:
    """Write it where runtimes look (/etc/cdi or /var/run/cdi), whole or not at all, and return its path."""
    path = folder / f"{content['kind'].replace('/', '-')}.json"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    with scratch.open("w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)
    return path
