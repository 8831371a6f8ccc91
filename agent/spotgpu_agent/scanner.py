# SPDX-License-Identifier: Apache-2.0
"""Asks the handle scan (handles.py, a child process) and turns device numbers into devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from spotgpu_agent.child import Child
from spotgpu_agent.errors import ChildError
from spotgpu_agent.model import Holder
from spotgpu_agent.vendor import Numbers

MODULE: Final = "spotgpu_agent.handles"


class Scanner:
    """A child that scans, for one owner.

    Args:
        name: for logs.
        numbers: the vendor's device numbers on this node.
        abandoned: called once for every child that is left behind.
    """

    def __init__(self, name: str, numbers: Numbers, abandoned: Callable[[], None]) -> None:
        self.child = Child(name, MODULE, abandoned)
        self._numbers = numbers

    async def start(self) -> None:
        """Start the child.

        Raises:
            ChildError: it does not answer.
        """
        await self.child.start()

    async def scan(self, skip: Iterable[int], deadline_s: float) -> tuple[Holder, ...] | None:
        """Every process with a node of the vendor open or mapped. None: no answer.

        Args:
            skip: pids of the agent and its children.
            deadline_s: seconds for the answer.
        """
        request = {"majors": sorted(self._numbers.majors), "skip": sorted(skip)}
        try:
            reply = await self.child.ask(request, deadline_s)
        except ChildError:
            return None  # the child has logged and counted it
        return tuple(self._holder(one) for one in reply["found"])

    def _holder(self, one: list[Any]) -> Holder:
        pid, comm, cgroup, numbers, mapped = one
        devices = tuple(
            self._numbers.devices[number] for number in numbers if number in self._numbers.devices
        )
        return Holder(pid, comm, cgroup, devices, len(devices) < len(numbers), mapped)

    async def close(self) -> None:
        """End the child."""
        await self.child.close()
