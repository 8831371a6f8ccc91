# SPDX-License-Identifier: Apache-2.0
"""What the device plugin offers, and what an allocated GPU brings into a container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sim.cdi import CONTROL_NODES
from tests.sim.device_plugin_pb import device_plugin_pb2 as pb
from tests.sim.placement import Card

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
CONTAINER_LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Offer:
    """What is served: the resource, and what an allocation brings along beside its GPU nodes."""

    resource: str
    cards: tuple[Card, ...]
    library_dir: Path | None = None
    cdi_kind: str | None = None

    def libraries(self) -> list[tuple[str, str]]:
        """Return (host, container) paths of the libraries a container needs."""
        if not self.library_dir:
            return []
        return [(str(self.library_dir / name), f"{CONTAINER_LIBRARY_DIR}/{name}") for name in LIBRARIES]


def allocation(offer: Offer, uuids: Sequence[str]) -> Any:
    """Return kubelet's answer for one container. Raises KeyError for a UUID that is not offered."""
    known = {card.uuid: card for card in offer.cards}
    cards = [known[uuid] for uuid in uuids]
    nodes = [f"/dev/nvidia{card.minor}" for card in cards] + list(CONTROL_NODES)
    names = [f"{offer.cdi_kind}={uuid}" for uuid in uuids] if offer.cdi_kind else []
    return pb.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)},
        mounts=[
            pb.Mount(host_path=host, container_path=inside, read_only=True)
            for host, inside in offer.libraries()
        ],
        devices=[pb.DeviceSpec(host_path=node, container_path=node, permissions="rw") for node in nodes],
        cdi_devices=[pb.CDIDevice(name=name) for name in names],
    )
