# SPDX-License-Identifier: Apache-2.0
"""What the driver's library says, asked in a child process with a deadline. Nothing here imports NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spotgpu.names import Attr
from spotgpu_agent.child import Child
from spotgpu_agent.errors import ChildError
from spotgpu_agent.model import Amounts, ProcessMemory

MODULE: Final = "spotgpu_agent.nvml_child"
START_S: Final = 60.0  # nvmlInit takes seconds on a node with many GPUs and no persistence mode


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this node.

    Attributes:
        minor: of its own device node.
        total: bytes of memory.
    """

    uuid: str
    minor: int
    name: str
    total: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of this node, and the driver's version."""

    gpus: tuple[Gpu, ...]
    driver: str

    def attributes(self, vendor: str) -> dict[str, dict[Attr, str]]:
        """What the trace of a hand-back says of each GPU (OpenTelemetry's hw.*), by UUID."""
        return {
            gpu.uuid: {
                Attr.HW_ID: gpu.uuid,
                Attr.HW_TYPE: "gpu",
                Attr.HW_NAME: gpu.name,
                Attr.HW_VENDOR: vendor,
                Attr.HW_DRIVER_VERSION: self.driver,
            }
            for gpu in self.gpus
        }


class Nvml:
    """A child that speaks NVML, for one owner: a GPU of another owner that hangs does not matter here.

    Args:
        name: for logs.
        abandoned: called once for every child that is left behind.
    """

    def __init__(self, name: str, abandoned: Callable[[], None]) -> None:
        self.child = Child(name, MODULE, abandoned)

    async def start(self) -> Inventory:
        """Start the child and read the inventory.

        Raises:
            ChildError: it does not answer, or NVML does not work.
        """
        await self.child.start()
        reply = await self.child.ask({"op": "inventory"}, START_S)
        gpus = tuple(Gpu(one["uuid"], one["minor"], one["name"], one["total"]) for one in reply["devices"])
        return Inventory(gpus, str(reply["driver"]))

    async def memory(
        self, limits: Mapping[str, int], deadline_s: float
    ) -> tuple[Amounts, tuple[ProcessMemory, ...]] | None:
        """Bytes in use; of devices above their limit also by process. None: no answer.

        Args:
            limits: device -> bytes that count as free.
            deadline_s: seconds for the answer.
        """
        reply = await self._ask({"op": "memory", "limits": dict(limits)}, deadline_s)
        if reply is None:
            return None
        processes = tuple(ProcessMemory(*one) for one in reply["processes"])
        return tuple(reply["used"].items()), processes

    async def usage(self, devices: tuple[str, ...], deadline_s: float) -> tuple[Amounts, Amounts] | None:
        """Bytes in use and utilisation (per cent) by device. None: no answer."""
        reply = await self._ask({"op": "usage", "devices": devices}, deadline_s)
        if reply is None:
            return None
        return tuple(reply["used"].items()), tuple(reply["utilisation"].items())

    async def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any] | None:
        try:
            return await self.child.ask(request, deadline_s)
        except ChildError:
            return None  # the child has logged and counted it

    async def close(self) -> None:
        """End the child."""
        await self.child.close()
