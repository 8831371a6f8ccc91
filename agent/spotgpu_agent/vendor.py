# SPDX-License-Identifier: Apache-2.0
"""What the agent must know of a vendor: which nodes have gates, and which device numbers are whose.

NVIDIA: nvidiaN and nvidiactl share one handler (major 195), nvidia-uvm has its own and a dynamic major. Most
of the driver's work goes through nvidiactl, whatever the GPU, so only nvidiaN says which GPU a process has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotgpu_agent.errors import PlatformError

NVIDIA_MAJOR: Final = 195  # Documentation/admin-guide/devices.txt
NVIDIA_GPUS: Final = range(248)  # minors of single GPUs; above: modeset 254, control 255
UVM_NAME: Final = "nvidia-uvm"


@dataclass(frozen=True, slots=True)
class Node:
    """A device node whose handler is to be a gate.

    Attributes:
        path: of the node.
        classifier: which of its ioctls are compute, by khook's name.
        module: the kernel module that makes it, for the remedy.
    """

    path: Path
    classifier: str
    module: str

    def open(self) -> int:
        """A file descriptor of the node.

        Raises:
            PlatformError: it can't be opened.
        """
        try:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            remedy = f"load the driver: modprobe {self.module}"
            raise PlatformError(error.strerror or str(error), str(self.path), remedy) from error


@dataclass(frozen=True, slots=True)
class Numbers:
    """Device numbers of a vendor on this node.

    Attributes:
        majors: all majors; whoever has such a node open or mapped is a holder.
        devices: device number -> UUID, of the nodes that are one GPU's own.
    """

    majors: frozenset[int]
    devices: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Nvidia:
    """NVIDIA's driver, 535 and later."""

    dev: Path = Path("/dev")
    proc: Path = Path("/proc")

    def nodes(self) -> tuple[Node, ...]:
        """Nodes to make gates of; every other node shares a handler with one of them."""
        return (
            Node(self.dev / "nvidiactl", "nvidia_rm", "nvidia"),
            Node(self.dev / "nvidia-uvm", "nvidia_uvm", "nvidia-uvm"),
        )

    def numbers(self, minors: Mapping[int, str]) -> Numbers:
        """The device numbers.

        Args:
            minors: minor number of each GPU's node -> its UUID, as NVML has them.

        Raises:
            PlatformError: the UVM driver is not loaded.
        """
        uvm = self._major(UVM_NAME)
        devices = {
            os.makedev(NVIDIA_MAJOR, minor): uuid for minor, uuid in minors.items() if minor in NVIDIA_GPUS
        }
        return Numbers(frozenset({NVIDIA_MAJOR, uvm}), devices)

    def _major(self, name: str) -> int:
        for line in (self.proc / "devices").read_text().splitlines():
            number, _, found = line.strip().partition(" ")
            if found == name:
                return int(number)
        raise PlatformError(f"{name} has no device number", "/proc/devices", f"modprobe {name}")


VENDORS: Final = {"nvidia": Nvidia}
