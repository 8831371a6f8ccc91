# SPDX-License-Identifier: Apache-2.0
"""The start: everything is looked at before anything is armed, and one clear error ends it.

Order: kernel and cgroups, children, containerd and the containers, the GPUs, khook, the state file, the
sockets. Only then the agent attaches and arms. What was acquired is let go in reverse, whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotgpu_agent import cgroup
from spotgpu_agent.clock import Clock
from spotgpu_agent.config import Config
from spotgpu_agent.containerd import Containerd
from spotgpu_agent.errors import AgentError, ChildError, ConfigError, ContainerdError, PlatformError
from spotgpu_agent.hands import Hands, own_pids
from spotgpu_agent.hold import HoldBackend, KhookBackend
from spotgpu_agent.nvml import Inventory, Nvml
from spotgpu_agent.resolve import Container, check_containers, check_devices
from spotgpu_agent.scanner import Scanner
from spotgpu_agent.vendor import VENDORS, Node, Numbers

OLDEST_KERNEL: Final = (6, 1)
PIDNS: Final = Path("/proc/self/ns/pid")
INITIAL_PIDNS: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


@dataclass(slots=True)
class NodeAccess:
    """All that the agent has its hands on.

    Attributes:
        containers: as they were at the start.
        nodes: device nodes whose handlers are to be gates.
        hands: samplers by owner.
    """

    config: Config
    backend: HoldBackend
    containerd: Containerd
    containers: list[Container]
    inventory: Inventory
    nodes: tuple[Node, ...]
    hands: dict[str, Hands]


def check_kernel(release: str) -> None:
    """The kernel is one that khook is built and tested for.

    Raises:
        PlatformError: it is older.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        raise PlatformError(f"Linux {release} is not supported", "kernel", f"run Linux {oldest} or later")


def check_pid_namespace(number: int) -> None:
    """The agent sees every process of the node.

    Args:
        number: inode number of its pid namespace.

    Raises:
        PlatformError: it runs in a pid namespace below.
    """
    if number != INITIAL_PIDNS:
        message = "the agent does not see the node's processes"
        raise PlatformError(message, str(PIDNS), "run it in the host's pid namespace (hostPID: true)")


@asynccontextmanager
async def opened(config: Config, clock: Clock, abandoned: Callable[[], None]) -> AsyncIterator[NodeAccess]:
    """Look at everything and have it open for the length of a `with`.

    Args:
        config: the configuration.
        clock: of the process.
        abandoned: called for every NVML child that is left behind.

    Raises:
        ConfigError: the configuration does not fit the node.
        PlatformError: the node lacks something.
        StateError: the state file can't be used.
    """
    check_kernel(os.uname().release)
    check_pid_namespace(PIDNS.stat().st_ino)
    cgroup.check_unified()
    vendor = VENDORS[config.vendor]()
    nodes = vendor.nodes()
    for node in nodes:
        os.close(node.open())
    async with AsyncExitStack() as stack:
        # The children start while this process imports grpc.
        libraries = {owner.name: Nvml(f"nvml of {owner.name}", abandoned) for owner in config.owners}
        for library in libraries.values():
            stack.push_async_callback(library.close)
        inventories = asyncio.create_task(_inventories(libraries))
        stack.push_async_callback(_broken_off, inventories)
        containerd = Containerd(config.containerd_socket, config.containerd_namespace, _wanted(config))
        stack.push_async_callback(containerd.close)
        containers = await _containers(containerd)
        check_containers(config, containers, cgroup.path_of(os.getpid()))
        inventory = await _inventory(inventories)
        check_devices(config, [gpu.uuid for gpu in inventory.gpus])
        backend = await KhookBackend.connect()
        stack.push_async_callback(backend.close)
        numbers = vendor.numbers({gpu.minor: gpu.uuid for gpu in inventory.gpus})
        hands = await _hands(config, clock, numbers, libraries, stack)
        yield NodeAccess(config, backend, containerd, containers, inventory, nodes, hands)


def _wanted(config: Config) -> Callable[[str, dict[str, str]], bool]:
    selectors = [owner.container for owner in config.owners]
    selectors += [spot.container for owner in config.owners for spot in owner.spot]
    return lambda container, labels: any(selector.matches(container, labels) for selector in selectors)


async def _containers(containerd: Containerd) -> list[Container]:
    try:
        await containerd.connect()
        return await containerd.containers()
    except ContainerdError as error:
        remedy = "start containerd, or correct the path"
        raise ConfigError(error.message, "containerd.socket", remedy) from error


async def _inventories(libraries: dict[str, Nvml]) -> list[Inventory]:
    return await asyncio.gather(*(library.start() for library in libraries.values()))


async def _broken_off(task: asyncio.Task[list[Inventory]]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _inventory(inventories: asyncio.Task[list[Inventory]]) -> Inventory:
    try:
        return (await inventories)[0]
    except ChildError as error:
        remedy = "is the driver loaded, and libnvidia-ml.so.1 found? try nvidia-smi"
        raise PlatformError(error.message, "vendor", remedy) from error


async def _hands(
    config: Config,
    clock: Clock,
    numbers: Numbers,
    libraries: dict[str, Nvml],
    stack: AsyncExitStack,
) -> dict[str, Hands]:
    hands: dict[str, Hands] = {}
    for owner in config.owners:
        scanner = Scanner(f"handle scan of {owner.name}", numbers, lambda: None)
        stack.push_async_callback(scanner.close)
        hands[owner.name] = Hands(
            owner.name, scanner, libraries[owner.name], clock, lambda: own_pids(hands.values())
        )
    try:
        await asyncio.gather(*(hand.scanner.start() for hand in hands.values()))
    except (ChildError, OSError) as error:
        raise AgentError(str(error)) from error
    return hands
